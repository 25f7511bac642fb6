package plan

import (
	"context"
	"fmt"
	"slices"

	"github.com/cayhq/cay/internal/gatewayd/asks"
	"github.com/cayhq/cay/internal/gatewayd/guard"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/request"
	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// Guard applies the guards to a request for a model, and returns the payload to send,
// which they may have changed.
func (v *View) Guard(ctx context.Context, caller *ledger.Caller, model string, p request.Payload) (request.Payload, *hub.Error) {
	if v.Guards == nil {
		return p, nil
	}
	if p.Parts != nil {
		return p, v.guardForm(ctx, caller, model, p)
	}
	raw, err := v.Guards.Request(ctx, caller, model, p.Raw)
	if err != nil {
		return p, hub.AsError(err)
	}
	if len(raw) == len(p.Raw) && len(raw) > 0 && &raw[0] == &p.Raw[0] {
		return p, nil
	}
	o, err := scan.Read(raw)
	if err != nil {
		return p, hub.AsError(err)
	}
	p.Raw, p.Object = raw, o
	return p, nil
}

// Buffers reports whether a stream must be complete before it is sent, because guards
// check answers.
func (v *View) Buffers(rq *request.Request) bool { return rq.Stream && v.Guards.GuardsAnswers() }

// Guarded applies the guards to a whole answer of a model and returns the answer to send.
func (v *View) Guarded(ctx context.Context, caller *ledger.Caller, model string, body []byte) ([]byte, *hub.Error) {
	if !v.Guards.GuardsAnswers() {
		return body, nil
	}
	body, err := v.Guards.Answer(ctx, caller, model, body)
	if err != nil {
		e := *hub.AsError(err)
		e.Kind = hub.Forbidden // no other provider is tried
		return nil, &e
	}
	return body, nil
}

// Allow checks what a body asks for against the key's scope and the guards, and returns
// the payload of the request, which guards may have changed.
func (v *View) Allow(ctx context.Context, caller *ledger.Caller, a *asks.Asks, o *Offer, p request.Payload) (request.Payload, *hub.Error) {
	key := caller.Key
	if key != nil && key.MaxOutputTokens > 0 && a.Output > key.MaxOutputTokens {
		return p, &hub.Error{Kind: hub.Forbidden, Code: "max_output_tokens",
			Message: fmt.Sprintf("this key may ask for at most %d output tokens, and this request comes to %d", key.MaxOutputTokens, a.Output)}
	}
	if err := v.Guards.Output(a.Output); err != nil {
		return p, hub.AsError(err)
	}
	for _, name := range a.Models {
		id := name
		if m, _ := v.At(o.Provider.Name, name); m != nil {
			id = m.ID
		}
		if key != nil && !Allows(key.Models, id) {
			return p, &hub.Error{Kind: hub.Forbidden, Code: "model_not_allowed", Param: id, Message: "this key may not use the model " + id + ", which the request names beside its own"}
		}
		var err *hub.Error
		if p, err = v.Guard(ctx, caller, id, p); err != nil {
			return p, err
		}
	}
	return p, nil
}

// fileFields are the form fields whose bytes are files, if they have a file name.
var fileFields = []string{"file", "image", "image[]", "mask"}

// guardForm passes the texts of a form to the guards, which may change them: text fields
// and file names. A file name makes a field a file only if the field is in fileFields;
// for other fields the content is guarded as well, because servers may read it as text.
func (v *View) guardForm(ctx context.Context, caller *ledger.Caller, model string, form request.Payload) *hub.Error {
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
