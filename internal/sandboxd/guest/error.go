package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cayhq/cay"
)

// fromGuest lists the error codes that a guest may answer with. Other codes, about tokens
// or the sandbox's state, are for the daemon only.
var fromGuest = map[cay.Code]bool{
	cay.Invalid: true, cay.NotFound: true, cay.FileNotFound: true, cay.AlreadyExists: true,
	cay.Conflict: true, cay.ExecutableMissing: true, cay.TooLarge: true, cay.QuotaExceeded: true,
	cay.NoSpace: true, cay.NotSupported: true, cay.PermissionDenied: true, cay.Unavailable: true,
	cay.DeadlineExceeded: true, cay.Internal: true,
}

const (
	maxErrorBody  = 64 << 10
	maxErrorText  = 1024
	maxRetryAfter = time.Minute
)

// EncodeError returns err as JSON for the wire. An error without a code is sent as
// internal, with its text: the guest has no secrets from its daemon.
func EncodeError(err error) []byte {
	body := ErrorBody{Code: string(cay.CodeOf(err)), Message: cut(err.Error())}
	if e, ok := errors.AsType[*cay.Error](err); ok {
		body.Hint = cut(e.Hint)
		body.RetryAfter = e.RetryAfter.Milliseconds()
	}
	b, mErr := json.Marshal(body)
	if mErr != nil {
		panic("guest: an ErrorBody does not marshal: " + mErr.Error())
	}
	return b
}

// decodeError turns an ErrorBody into the error to return. It never returns nil.
func decodeError(data []byte) error {
	var body ErrorBody
	if err := json.Unmarshal(data, &body); err != nil {
		return unavailable(&protocolError{"an error that is not JSON"})
	}
	code := cay.Code(body.Code)
	if !fromGuest[code] {
		code = cay.Unavailable
	}
	e := cay.Errorf(code, "%s", printable(body.Message))
	e.Hint = printable(body.Hint)
	if d := body.RetryAfter; d > 0 {
		e.RetryAfter = min(time.Duration(min(d, maxRetryAfter.Milliseconds()))*time.Millisecond, maxRetryAfter)
	}
	return e
}

// unavailable is the error for a guest that gave no proper answer.
func unavailable(err error) error {
	if _, ok := errors.AsType[*cay.Error](err); ok {
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return cay.Errorf(cay.Canceled, "canceled: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return cay.Errorf(cay.DeadlineExceeded, "the sandbox did not answer in time: %w", err)
	}
	return cay.Errorf(cay.Unavailable, "the sandbox does not answer: %w", err)
}

func cut(s string) string {
	if len(s) <= maxErrorText {
		return s
	}
	s = s[:maxErrorText]
	for len(s) > 0 && !utf8.RuneStart(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	return s[:len(s)-1] + "…"
}

// printable makes a text from the guest fit to show: it bounds the length and removes
// characters that control a terminal or the direction of writing.
func printable(s string) string {
	s = cut(strings.ToValidUTF8(s, "\uFFFD"))
	steers := func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }
	if strings.IndexFunc(s, steers) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if steers(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
