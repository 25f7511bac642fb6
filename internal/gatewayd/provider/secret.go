package provider

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/cayhq/cay"
)

// Secret is a text that does not show itself: not printed, not logged, not
// encoded, also as a part of something else. The zero value is no secret.
type Secret struct{ text *string } // a pointer: fmt prints unexported texts of structs

const hidden = "[secret]"

// NewSecret returns the secret of a text, which is what a header can have: spaces
// around it are cut, and inside of it there is nothing but printable ASCII.
// Errors: invalid, without the text.
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

// newSecret is NewSecret for what goes into no header.
func newSecret(text string) Secret { return Secret{&text} }

// reveal returns the text.
func (s Secret) reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsZero reports whether there is none.
func (s Secret) IsZero() bool { return s.text == nil }

// String hides the text.
func (s Secret) String() string { return hidden }

// Format hides the text from every verb.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, hidden) } // fmt ignores it as well

// MarshalText hides the text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue hides the text.
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }
