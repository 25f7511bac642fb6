package workflow

import (
	"context"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

const (
	maxAttributeKey   = 256
	maxAttributeValue = 4096
	maxAttributes     = 64 // bound of one call
)

// SetAttributes changes attributes of the run, which lists of runs can be filtered by; an
// empty value removes an attribute. Errors: invalid for an empty key, keys of more than
// 256 bytes, values of more than 4096, or more than 64 of them; ErrCancelled or
// ErrTimeout if ctx has ended.
func SetAttributes(ctx Context, attributes map[string]string) error {
	f := ctx.flow()
	f.x.use()
	if err := checkAttributes(attributes); err != nil {
		return err
	}
	if err := f.cancel.cause(); err != nil || f.x.closing || len(attributes) == 0 {
		return err
	}
	o := f.x.ask(f, kindAttr, "set", nil)
	m := make(map[string]string, len(attributes)) // the caller may change its map
	for k, v := range attributes {
		m[k] = v
	}
	o.event = &Event{Type: history.AttrSet, Attributes: m}
	return nil
}

// SetStepAttributes is SetAttributes for a step; ctx is the step's context. It returns
// when the attributes are recorded. Errors: invalid, as for SetAttributes; not_supported
// if ctx is not a step's context.
func SetStepAttributes(ctx context.Context, attributes map[string]string) error {
	if err := checkAttributes(attributes); err != nil {
		return err
	}
	e := stepEnvOf(ctx)
	if e == nil || e.setAttributes == nil {
		return cay.Errorf(cay.NotSupported, "attributes can be set in a step only")
	}
	if len(attributes) == 0 {
		return nil
	}
	return e.setAttributes(ctx, attributes)
}

func checkAttributes(attributes map[string]string) error {
	if len(attributes) > maxAttributes {
		return cay.Errorf(cay.Invalid, "%d attributes are more than %d", len(attributes), maxAttributes)
	}
	for k, v := range attributes {
		switch {
		case k == "":
			return cay.Errorf(cay.Invalid, "an attribute has no key")
		case len(k) > maxAttributeKey:
			return cay.Errorf(cay.Invalid, "the attribute's key %.40q... is longer than %d bytes", k, maxAttributeKey)
		case len(v) > maxAttributeValue:
			return cay.Errorf(cay.Invalid, "the value of attribute %q is longer than %d bytes", k, maxAttributeValue)
		}
	}
	return nil
}
