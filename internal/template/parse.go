package template

import (
	"maps"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/strictyaml"
)

var kind = strictyaml.Kind{Name: "template", Many: "templates", Limit: 256 << 10, Hint: "docs/templates.md has all that a template may say"}

// Read reads a template; paths to copy are relative to the template file's directory.
// Errors: invalid, with the line.
func Read(path string) (*Template, error) {
	t := &Template{Output: Image}
	doc, err := kind.Read(path, t)
	if err == nil {
		err = t.accept(path, doc)
	}
	if err != nil {
		return nil, err
	}
	t.dir = filepath.Dir(path)
	return t, nil
}

// Parse reads a template without copies; file is the name in messages. Errors:
// invalid, with the line.
func Parse(file string, b []byte) (*Template, error) {
	t := &Template{Output: Image}
	doc, err := kind.Parse(file, b, t)
	if err == nil {
		err = t.accept(file, doc)
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Make checks a template that was not read from a cay.yaml. file is its name in
// messages, and dir the directory that copies are taken from. Errors: invalid.
func Make(t Template, file, dir string) (*Template, error) {
	t.file, t.dir, t.made = file, dir, true
	if f := t.check(); f != nil {
		return nil, cay.Errorf(cay.Invalid, "%s: %w", file, f.err)
	}
	return &t, nil
}

// accept checks what was read.
func (t *Template) accept(file string, doc *strictyaml.Document) error {
	t.file = file
	if f := t.check(); f != nil {
		return cay.Errorf(cay.Invalid, "%s:%d: %w", file, doc.Line(steps(f.path)...), f.err)
	}
	return nil
}

// step matches a step of a path such as $.steps[0].run.
var step = regexp.MustCompile(`\.([^.\[]+)|\[(\d+)\]`)

// steps returns the keys and indexes of a path.
func steps(path string) (all []any) {
	for _, m := range step.FindAllStringSubmatch(path, -1) {
		if m[1] != "" {
			all = append(all, m[1])
			continue
		}
		i, err := strconv.Atoi(m[2])
		if err != nil { // more than any list has
			return all
		}
		all = append(all, i)
	}
	return all
}

// merge returns the variables of both; over takes precedence.
func merge(env, over map[string]string) map[string]string {
	if len(env)+len(over) == 0 {
		return nil
	}
	all := make(map[string]string, len(env)+len(over))
	maps.Copy(all, env)
	maps.Copy(all, over)
	return all
}
