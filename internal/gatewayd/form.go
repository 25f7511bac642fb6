package gatewayd

import (
	"mime"
	"slices"
	"unicode/utf8"

	"github.com/cayhq/cay/internal/gatewayd/guard"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// fileFields are fields of forms whose bytes are files, if they come with a name.
var fileFields = []string{"file", "image", "image[]", "mask"}

// guardForm shows the texts of a form to the guards, which may change them: fields,
// and names of files. What a client calls a file is one only in fields that have
// files; servers that read others as text may take it for one.
func (c *call) guardForm(model string) *hub.Error {
	var fields []guard.Field
	var of []int // the part of a field
	for i := range c.parts {
		p := &c.parts[i]
		name := p.fileName()
		if name != "" {
			fields, of = append(fields, guard.Field{Name: p.name, Text: name, File: true}), append(of, i)
		}
		if name == "" || !slices.Contains(fileFields, p.name) {
			fields, of = append(fields, guard.Field{Name: p.name, Text: string(p.data)}), append(of, i)
		}
	}
	changed, err := c.v.Guards.Form(c.ctx, c.caller, model, int64(len(c.body)), fields)
	if err != nil {
		return asError(err)
	}
	for i := range changed {
		if changed[i].Text != fields[i].Text {
			c.parts[of[i]].data = []byte(changed[i].Text)
		}
	}
	return nil
}

// fileName returns what the client calls the file of a field, "" for one that is a
// text.
func (p *formPart) fileName() string {
	for name, values := range p.header {
		if name != "Content-Disposition" {
			continue
		}
		for _, v := range values {
			_, params, err := mime.ParseMediaType(v)
			if err != nil || !utf8.ValidString(params["filename"]) {
				return v // whoever reads it, reads all of it
			}
			if params["filename"] != "" {
				return params["filename"]
			}
		}
	}
	return ""
}
