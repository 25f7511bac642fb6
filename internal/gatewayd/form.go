package gatewayd

import (
	"context"
	"slices"

	"github.com/cayhq/cay/internal/gatewayd/guard"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// fileFields are the form fields whose bytes are files, if they have a file name.
var fileFields = []string{"file", "image", "image[]", "mask"}

// guardForm passes the texts of a form to the guards, which may change them: text fields
// and file names. A file name makes a field a file only if the field is in fileFields;
// for other fields the content is guarded as well, because servers may read it as text.
func (v *view) guardForm(ctx context.Context, caller *ledger.Caller, model string, form request.Payload) *hub.Error {
	var fields []guard.Field
	var of []int // the part of a field
	for i := range form.Parts {
		p := &form.Parts[i]
		name := p.FileName()
		if name != "" {
			fields, of = append(fields, guard.Field{Name: p.Name, Text: name, File: true}), append(of, i)
		}
		if name == "" || !slices.Contains(fileFields, p.Name) {
			fields, of = append(fields, guard.Field{Name: p.Name, Text: string(p.Data)}), append(of, i)
		}
	}
	changed, err := v.Guards.Form(ctx, caller, model, int64(len(form.Raw)), fields)
	if err != nil {
		return hub.AsError(err)
	}
	for i := range changed {
		if changed[i].Text != fields[i].Text {
			form.Parts[of[i]].Data = []byte(changed[i].Text)
		}
	}
	return nil
}
