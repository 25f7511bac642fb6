package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// The edits fit the gVisor of go.mod, and each file in _gvisor is added where it belongs.
func TestWrite(t *testing.T) {
	root, dirs, err := packages("github.com/cayhq/cay/cmd/cay-sentry", "")
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if err := write(root, dirs, out); err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		for _, d := range c.edits {
			if d.renamed == "" {
				continue
			}
			names := functions(t, filepath.Join(out, filepath.Dir(d.file)))
			old, now := d.name, d.name[:strings.Index(d.name, ".")+1]+d.renamed
			if file := names[old]; !strings.HasPrefix(file, "cay_") {
				t.Errorf("%s: %s is declared in %q, not in a file of ours", c.name, old, file)
			}
			if file := names[now]; file != filepath.Base(d.file) {
				t.Errorf("%s: %s is declared in %q, not in %s", c.name, now, file, d.file)
			}
		}
	}
	if err := add(out); err == nil {
		t.Error("a file of gVisor's was replaced")
	}
}

// functions returns the files of a directory that declare each function.
func functions(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]string)
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok {
				names[receiver(d)+d.Name.Name] = filepath.Base(name)
			}
		}
	}
	return names
}

// Each change says why it is there, and has a test.
func TestChanges(t *testing.T) {
	t.Parallel()
	var text []byte
	for _, name := range []string{"../fuse_test.go", "../docker_test.go"} {
		more, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, more...)
	}
	names := map[string]bool{}
	for _, c := range changes {
		_, test, _ := strings.Cut(c.test, "/")
		if c.reason == "" || c.issue == "" || !strings.Contains(string(text), `t.Run("`+test+`"`) {
			t.Errorf("%s has no reason, no issue or no test: %+v", c.name, c)
		}
		if names[c.name] {
			t.Errorf("there are two changes %s", c.name)
		}
		names[c.name] = true
	}
	err := fs.WalkDir(added, ".", func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !strings.HasPrefix(path.Base(name), "cay_") {
			t.Errorf("%s: the names of added files begin with cay_", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

const source = `package p

// T is a type.
type T struct {
	a int
}

const limit = 1 + 1

func (t *T) get() int { // gets
	return t.a
}

func free() {}
`

func TestDeclaration_apply(t *testing.T) {
	t.Parallel()
	get := tokens([]byte("func (t *T) get() int { return t.a }"))
	for name, tt := range map[string]struct {
		d             declaration
		old, now, err string // what stands where, or the error
	}{
		"method":   {d: declaration{name: "T.get", sum: get, renamed: "got"}, old: "get() int", now: "got() int"},
		"function": {d: declaration{name: "free", sum: tokens([]byte("func free() {}")), renamed: "freed"}, old: "func free()", now: "func freed()"},
		"field":    {d: declaration{name: "T", sum: tokens([]byte("T struct {\n a int\n }")), field: "b int"}, old: "a int\n}", now: "a int\n\n\tb int\n}"},
		"constant": {d: declaration{name: "limit", sum: tokens([]byte("limit = 1 + 1")), value: "3"}, old: "1 + 1", now: "3"},
		"missing":  {d: declaration{name: "T.gone", sum: get, renamed: "got"}, err: "no such declaration"},
		"changed":  {d: declaration{name: "T.get", sum: "0123", renamed: "got"}, err: "its checksum is " + get},
		"no name":  {d: declaration{name: "T.get", sum: get, value: "3"}, err: "can only be renamed"},
		"no value": {d: declaration{name: "limit", sum: tokens([]byte("limit = 1 + 1")), renamed: "3"}, err: "another value"},
		"no field": {d: declaration{name: "T", sum: tokens([]byte("T struct {\n a int\n }")), renamed: "U"}, err: "a struct that gets a field"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := tt.d.apply([]byte(source))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("%v, want %q", err, tt.err)
				}
				return
			}
			if want := strings.Replace(source, tt.old, tt.now, 1); err != nil || string(text) != want {
				t.Errorf("%v\n%s\nwant\n%s", err, text, want)
			}
		})
	}
}

// The error of an edit that does not fit has the edit's reason.
func TestEdit_fails(t *testing.T) {
	t.Parallel()
	_, err := edit(t.TempDir())
	for _, c := range changes {
		if err == nil || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := run("../out", "./cmd/cay-sentry", ""); err == nil {
		t.Error("wrote outside of the current directory")
	}
}
