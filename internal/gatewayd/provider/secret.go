package provider

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/cayhq/cay"
)

// Secret is a text that is hidden when it is printed, logged or encoded, also inside
// another value. The zero value is no secret.
type Secret struct{ text *string } // a pointer: fmt prints unexported texts of structs

const hidden = "[secret]"

// NewSecret returns the secret with a text that must be a valid header value: surrounding
// spaces are removed, and all characters must be printable ASCII. Errors: invalid,
// without the text.
func NewSecret(text string) (Secret, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return Secret{}, cay.Errorf(cay.Invalid, "the secret is empty")
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 {
		return Secret{}, cay.Errorf(cay.Invalid, "the secret has a character a header cannot have, at byte %d of %d; is it one line?", i, len(text))
	}
	return newSecret(text), nil
}

// newSecret is NewSecret for secrets that are not sent in a header.
func newSecret(text string) Secret { return Secret{&text} }

// reveal returns the text.
func (s Secret) reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsZero reports whether the secret is unset.
func (s Secret) IsZero() bool { return s.text == nil }

// String hides the text.
func (s Secret) String() string { return hidden }

// Format hides the text from every verb.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, hidden) } // fmt ignores the error as well

// MarshalText hides the text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue hides the text.
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }
