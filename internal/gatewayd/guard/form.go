package guard

import (
	"context"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// Field is a text field of a form request.
type Field struct {
	Name string `json:"name"`
	Text string `json:"text"`
	// File says that Text is the name of an uploaded file, which cannot be changed.
	File bool `json:"file,omitempty"`
}

// Form is Request for a form of size bytes; it checks the form's texts. Patterns and the
// webhook receive the texts as {"form": [{"name": "prompt", "text": "..."}]}. Form
// returns the fields to pass on. Errors: as for Request; BadRequest if a text is not
// UTF-8, or if the name of a field or a file would have to change.
func (g *Guards) Form(ctx context.Context, c *ledger.Caller, model string, size int64, fields []Field) ([]Field, error) {
	if g == nil {
		return fields, nil
	}
	if most := g.cfg.MaxPrompt; most > 0 && size > most {
		return nil, tooLong(size, most)
	}
	for _, f := range fields {
		if !utf8.ValidString(f.Text) || !utf8.ValidString(f.Name) {
			return nil, refuse(hub.BadRequest, "form", fmt.Sprintf("the field %.100q of the form is no text", f.Name))
		}
	}
	type form struct {
		Form []Field `json:"form"`
	}
	asked, err := json.Marshal(form{fields})
	if err != nil {
		return nil, err
	}
	unbound := *g
	unbound.cfg.MaxPrompt = 0 // MaxPrompt bounds the form, not this JSON
	answer, err := unbound.Request(ctx, c, model, asked)
	if err != nil {
		return nil, err
	}
	var changed form
	if err := json.Unmarshal(answer, &changed); err != nil || len(changed.Form) != len(fields) {
		return nil, refuse(hub.BadRequest, "redact", "the form has something in it that is to be taken out, and that cannot be done with this one")
	}
	for i, f := range fields {
		to := changed.Form[i]
		if to.Name != f.Name || to.File != f.File || f.File && to.Text != f.Text {
			return nil, refuse(hub.BadRequest, "redact", "the name of a field or a file of the form has something in it that is to be taken out; give it another one")
		}
	}
	return changed.Form, nil
}

func tooLong(size, most int64) *guardError {
	return refuse(hub.TooLarge, "max_prompt", fmt.Sprintf("the request has %d bytes, and %d are allowed here", size, most))
}
