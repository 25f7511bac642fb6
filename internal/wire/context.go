package wire

import (
	"context"
	"errors"
	"fmt"

	"github.com/cayhq/cay"
)

// ContextError returns the error for a caller whose ctx has ended: the cause of the end if
// the cause has a code, otherwise deadline_exceeded or canceled, which wrap ctx.Err() and
// the cause. It returns nil if ctx has not ended.
func ContextError(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != err {
		var coded *cay.Error
		if errors.As(cause, &coded) && coded.Code != cay.Internal {
			return cause
		}
		err = fmt.Errorf("%w: %w", err, cause)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return cay.Errorf(cay.DeadlineExceeded, "the time given was not enough: %w", err)
	}
	return cay.Errorf(cay.Canceled, "the caller gave up: %w", err)
}
