package wire

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

func TestContextError(t *testing.T) {
	t.Parallel()
	ended := func(cause error) context.Context {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		return ctx
	}
	late := func(cause error) context.Context {
		ctx, cancel := context.WithDeadlineCause(t.Context(), time.Now().Add(-time.Second), cause)
		t.Cleanup(cancel)
		return ctx
	}
	revoked := cay.Errorf(cay.Unauthenticated, "the token was revoked")
	plain := errors.New("the signal INT")
	for name, tt := range map[string]struct {
		ctx   context.Context
		code  cay.Code
		wraps []error
	}{
		"live":            {t.Context(), "", nil},
		"canceled":        {ended(nil), cay.Canceled, []error{context.Canceled}},
		"coded cause":     {ended(revoked), cay.Unauthenticated, []error{revoked}},
		"plain cause":     {ended(plain), cay.Canceled, []error{context.Canceled, plain}},
		"internal cause":  {ended(cay.Errorf(cay.Internal, "no")), cay.Canceled, []error{context.Canceled}},
		"late":            {late(nil), cay.DeadlineExceeded, []error{context.DeadlineExceeded}},
		"late, by a code": {late(revoked), cay.Unauthenticated, []error{revoked}},
		"late, by others": {late(plain), cay.DeadlineExceeded, []error{context.DeadlineExceeded, plain}},
	} {
		err := ContextError(tt.ctx)
		if cay.CodeOf(err) != tt.code {
			t.Errorf("%s: the error is %v, want %q", name, err, tt.code)
		}
		for _, w := range tt.wraps {
			if !errors.Is(err, w) {
				t.Errorf("%s: %v does not wrap %v", name, err, w)
			}
		}
	}
}
