package cay_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/cayhq/cay"
)

// Exactly these codes correspond to errors of package fs, anywhere in a chain.
func TestError_Is(t *testing.T) {
	t.Parallel()
	files := map[cay.Code]error{cay.FileNotFound: fs.ErrNotExist, cay.AlreadyExists: fs.ErrExist, cay.PermissionDenied: fs.ErrPermission}
	for _, code := range []cay.Code{
		cay.Invalid, cay.Unauthenticated, cay.PermissionDenied, cay.NotFound, cay.FileNotFound, cay.AlreadyExists, cay.Conflict, cay.Stopped,
		cay.ExecutableMissing, cay.TooLarge, cay.QuotaExceeded, cay.NoSpace, cay.NotSupported, cay.Unavailable, cay.DeadlineExceeded, cay.Canceled, cay.Internal,
	} {
		err := fmt.Errorf("read: %w", cay.Errorf(code, "no"))
		for _, target := range []error{fs.ErrNotExist, fs.ErrExist, fs.ErrPermission, fs.ErrInvalid, fs.ErrClosed} {
			if got := errors.Is(err, target); got != (files[code] == target) {
				t.Errorf("%s is %q: %t", code, target, got)
			}
		}
		if !errors.Is(err, &cay.Error{Code: code}) || errors.Is(err, &cay.Error{Code: "other"}) {
			t.Errorf("%s is not itself alone", code)
		}
	}
}
