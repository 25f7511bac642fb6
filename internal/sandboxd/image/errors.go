package image

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

// diskError gives a full disk its code.
func diskError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return errNoSpace(err)
	}
	return err
}

func errNoSpace(err error) error {
	return cay.Errorf(cay.NoSpace, "the disk that holds the images is full: %w", err).
		WithHint("free space there, for example with: cay image remove NAME")
}

// workError gives what ended a piece of work its code.
func workError(ctx context.Context, err error) error {
	var coded *cay.Error
	switch {
	case err == nil || errors.As(err, &coded):
		return err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return cay.Errorf(cay.DeadlineExceeded, "the time given was not enough: %w", err)
	case ctx.Err() != nil:
		return cay.Errorf(cay.Canceled, "canceled: %w", err)
	default:
		return diskError(err)
	}
}
