package gatewayd

import (
	"context"
	"mime"
	"slices"
	"unicode/utf8"

	"github.com/cayhq/cay/internal/gatewayd/guard"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// fileFields are the form fields whose bytes are files, if they have a file name.
var fileFields = []string{"file", "image", "image[]", "mask"}

// guardForm passes the texts of a form to the guards, which may change them: text fields
// and file names. A file name makes a field a file only if the field is in fileFields;
// for other fields the content is guarded as well, because servers may read it as text.
func (v *view) guardForm(ctx context.Context, caller *ledger.Caller, model string, form payload) *hub.Error {
	var fields []guard.Field
	var of []int // the part of a field
	for i := range form.parts {
		p := &form.parts[i]
		name := p.fileName()
		if name != "" {
			fields, of = append(fields, guard.Field{Name: p.name, Text: name, File: true}), append(of, i)
		}
		if name == "" || !slices.Contains(fileFields, p.name) {
			fields, of = append(fields, guard.Field{Name: p.name, Text: string(p.data)}), append(of, i)
		}
	}
	changed, err := v.Guards.Form(ctx, caller, model, int64(len(form.raw)), fields)
	if err != nil {
		return hub.AsError(err)
	}
	for i := range changed {
		if changed[i].Text != fields[i].Text {
			form.parts[of[i]].data = []byte(changed[i].Text)
		}
	}
	return nil
}

// fileName returns the file name of a field, "" for a text field.
func (p *formPart) fileName() string {
	for name, values := range p.header {
		if name != "Content-Disposition" {
			continue
		}
		for _, v := range values {
			_, params, err := mime.ParseMediaType(v)
			if err != nil || !utf8.ValidString(params["filename"]) {
				return v // malformed: guard the whole header
			}
			if params["filename"] != "" {
				return params["filename"]
			}
		}
	}
	return ""
}
