package settings

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/strictyaml"
)

var kind = strictyaml.Kind{
	Name: "gateway's settings", Many: "settings", Limit: 1 << 20, Hint: "docs/gateway.md has all that the settings may say",
}

// source is the parsed content of a settings file.
type source struct {
	name string
	file File
	doc  *strictyaml.Document
}

// read reads the file at path. Errors: invalid, with the line.
func read(path string) (*source, error) {
	s := &source{name: path}
	var err error
	s.doc, err = kind.Read(path, &s.file)
	return s, err
}

// parse parses settings; name is the file's name in error messages.
func parse(name string, b []byte) (*source, error) {
	s := &source{name: name}
	var err error
	s.doc, err = kind.Parse(name, b, &s.file)
	return s, err
}

// wrongAt is an error about the value at a path of keys (string) and indexes (int).
type wrongAt struct {
	path []any
	err  error
}

func (w *wrongAt) Error() string {
	var b strings.Builder
	for _, step := range w.path {
		if i, ok := step.(int); ok {
			fmt.Fprintf(&b, "[%d]", i)
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		fmt.Fprint(&b, step)
	}
	return b.String() + ": " + w.err.Error()
}

func (w *wrongAt) Unwrap() error { return w.err }

// at adds a path to err, in front of a path that err already has.
func at(err error, path ...any) error {
	if err == nil {
		return nil
	}
	var inner *wrongAt
	if errors.As(err, &inner) {
		return &wrongAt{append(path, inner.path...), inner.err}
	}
	return &wrongAt{path, err}
}

// locate adds the file name and the line to an error.
func (s *source) locate(err error) error {
	var w *wrongAt
	if err == nil || !errors.As(err, &w) {
		return err
	}
	hint := kind.Hint
	var e *cay.Error
	if errors.As(w.err, &e) && e.Hint != "" {
		hint = e.Hint
	}
	return cay.Errorf(cay.Invalid, "%s:%d: %w", s.name, s.doc.Line(w.path...), w).WithHint("%s", hint)
}
