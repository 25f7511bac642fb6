package cay_test

import (
	"fmt"
	"go/ast"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/template"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The table of errors in docs/api.md has every code with its status.
func TestDocs_Errors(t *testing.T) {
	doc := read(t, "docs/api.md")
	codes := 0
	for _, s := range sources(t) {
		if s.name != "error.go" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "Code" {
				return true
			}
			code, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			codes++
			if row := fmt.Sprintf("| `%s` | %d |", code, api.Status(cay.Code(code))); !strings.Contains(doc, row) {
				t.Errorf("docs/api.md has no row that begins with %q", row)
			}
			return true
		})
	}
	if codes == 0 {
		t.Error("no codes found in error.go")
	}
}

// The configuration shown in docs/operations.md is valid.
func TestDocs_Configuration(t *testing.T) {
	_, rest, ok := strings.Cut(read(t, "docs/operations.md"), "```yaml\n")
	example, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatal("docs/operations.md has no YAML example")
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(example), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(config.Sources{File: file}); err != nil {
		t.Errorf("the example of docs/operations.md: %v", err)
	}
}

// The template shown in docs/templates.md is valid.
func TestDocs_Template(t *testing.T) {
	_, rest, ok := strings.Cut(read(t, "docs/templates.md"), "```yaml\n")
	example, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatal("docs/templates.md has no YAML example")
	}
	if _, err := template.Parse("docs/templates.md", []byte(example)); err != nil {
		t.Error(err)
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Links between pages lead somewhere.
func TestDocs_Links(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && path != "." && notOurs(e.Name()) {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		for _, m := range link.FindAllStringSubmatch(read(t, path), -1) {
			u, err := url.Parse(m[1])
			if err != nil || u.Scheme != "" || u.Path == "" {
				continue // elsewhere, or on the same page
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), u.Path)); err != nil {
				t.Errorf("%s links %s: %v", path, m[1], err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
