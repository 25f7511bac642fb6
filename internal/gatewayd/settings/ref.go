package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/cayhq/cay"
)

// Ref is a text, usually a secret, or a reference to one: the name of an environment
// variable, or the path of a file. Printing a Ref never shows the text; its JSON is the
// reference, or {"set": true}.
type Ref struct {
	Env  string
	File string
	text *string
}

// Text returns a Ref that is the text itself.
func Text(s string) *Ref { return &Ref{text: &s} }

type refForm struct {
	Env  string `yaml:"env" json:"env,omitempty"`
	File string `yaml:"file" json:"file,omitempty"`
}

// UnmarshalYAML implements yaml.InterfaceUnmarshaler: a text, {env: NAME} or
// {file: PATH}.
func (r *Ref) UnmarshalYAML(unmarshal func(any) error) error {
	var s string
	if unmarshal(&s) == nil {
		r.text = &s
		return nil
	}
	var f refForm
	if err := unmarshal(&f); err != nil {
		return err
	}
	if (f.Env == "") == (f.File == "") {
		return errors.New("write the text itself, or env: and the name of a variable, or file: and a path")
	}
	r.Env, r.File = f.Env, f.File
	return nil
}

// UnmarshalJSON accepts a text only: callers of the API cannot refer to the daemon's
// variables or files.
func (r *Ref) UnmarshalJSON(raw []byte) error {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return cay.Errorf(cay.Invalid, "a secret is a text; only the file of settings can name a variable or a file")
	}
	r.text = &s
	return nil
}

// MarshalJSON writes the reference, or for a text only that it is set.
func (r *Ref) MarshalJSON() ([]byte, error) {
	if r.text != nil {
		return []byte(`{"set":true}`), nil
	}
	return json.Marshal(refForm{r.Env, r.File})
}

// String returns the reference, without the text.
func (r *Ref) String() string {
	switch {
	case r.Env != "":
		return "$" + r.Env
	case r.File != "":
		return r.File
	}
	return "[secret]"
}

// Format writes String for every verb.
func (r *Ref) Format(f fmt.State, _ rune) { io.WriteString(f, r.String()) } // fmt ignores the error as well

const maxSecret = 64 << 10

// resolve returns the text. Errors: invalid, saying what is missing.
func (r *Ref) resolve(env func(string) string) (string, error) {
	switch {
	case r.text != nil:
		return *r.text, nil
	case r.Env != "":
		if v := env(r.Env); v != "" {
			return v, nil
		}
		return "", cay.Errorf(cay.Invalid, "the variable %s is not set", r.Env)
	}
	f, err := os.Open(r.File)
	if err != nil {
		return "", cay.Errorf(cay.Invalid, "cannot read the secret: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	switch {
	case err != nil:
		return "", cay.Errorf(cay.Invalid, "cannot read the secret: %w", err)
	case len(raw) > maxSecret:
		return "", cay.Errorf(cay.Invalid, "%s is larger than 64 KiB: it is no secret", r.File)
	}
	return strings.TrimSpace(string(raw)), nil
}
