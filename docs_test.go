package cay_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// pages calls f with the name and the text of each Markdown file.
func pages(t *testing.T, f func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && path != "." && notOurs(e.Name()) {
			return fs.SkipDir
		}
		if filepath.Ext(path) == ".md" {
			f(path, read(t, path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Links between pages lead to a file, and to a heading in it.
func TestDocs_Links(t *testing.T) {
	headings := map[string]map[string]bool{} // by file
	pages(t, func(path, text string) {
		headings[path] = anchors(text)
	})
	links := 0
	pages(t, func(path, text string) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			u, err := url.Parse(m[1])
			if err != nil || u.Scheme != "" {
				continue // elsewhere
			}
			target := path
			if u.Path != "" {
				target = filepath.Join(filepath.Dir(path), u.Path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links %s: %v", path, m[1], err)
			} else if u.Fragment != "" && !headings[target][u.Fragment] {
				t.Errorf("%s links %s: %s has no heading with that anchor", path, m[1], target)
			}
			links++
		}
	})
	if links == 0 {
		t.Error("no links found")
	}
}

// The tests that docs/upgrades.md names exist.
func TestDocs_Upgrades(t *testing.T) {
	tests := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test && f.Recv == nil {
				tests[f.Name.Name] = true
			}
		}
	}
	name := regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")
	rows := 0
	for line := range strings.Lines(read(t, "docs/upgrades.md")) {
		for _, m := range name.FindAllStringSubmatch(line, -1) {
			if rows++; !tests[m[1]] {
				t.Errorf("docs/upgrades.md names %s, which is no test", m[1])
			}
		}
	}
	if rows == 0 {
		t.Error("docs/upgrades.md names no test")
	}
}

var (
	fenced      = regexp.MustCompile("(?ms)^```([a-z]*)[^\n]*\n(.*?)^```")
	heading     = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *$`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors returns the anchors of a page's headings, as the forge makes them: lower case,
// with hyphens for spaces and without punctuation; a repeated heading has a number.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		title := link.ReplaceAllString(strings.ReplaceAll(m[1], "[", ""), "")
		anchor := strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		for n, first := 1, anchor; all[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", first, n)
		}
		all[anchor] = true
	}
	return all
}

func TestAnchors(t *testing.T) {
	t.Parallel()
	got := anchors("# Hello, `cay run`!\n\n## The [API](api.md) of a_b\n\n```sh\n# no heading\n```\n## Twice\n### Twice\n")
	want := []string{"hello-cay-run", "the-api-of-a_b", "twice", "twice-1"}
	for _, a := range want {
		if !got[a] {
			t.Errorf("%q is missing in %v", a, got)
		}
	}
	if len(got) != len(want) {
		t.Errorf("there are %v", got)
	}
}

// omitted matches the dots in code blocks that stand for code of the reader's own.
var omitted = regexp.MustCompile(`(,\s*|[\s{(])\.\.\.([\s)}])`)

// The Go code in the pages is Go, and the names in it that are cay's exist. Whole programs
// compile.
func TestDocs_Go(t *testing.T) {
	sdk := exported(t)
	programs := map[string]string{}
	blocks := 0
	pages(t, func(path, text string) {
		for _, m := range fenced.FindAllStringSubmatchIndex(text, -1) {
			if text[m[2]:m[3]] != "go" {
				continue
			}
			blocks++
			at := fmt.Sprintf("%s:%d", path, 1+strings.Count(text[:m[4]], "\n"))
			code := text[m[4]:m[5]]
			if strings.HasPrefix(code, "package ") {
				programs[at] = code
				continue
			}
			code = omitted.ReplaceAllString(code, "$1 $2")
			file, err := parser.ParseFile(token.NewFileSet(), at, "package p\n\nfunc _() {\n"+code+"\n}\n", parser.SkipObjectResolution)
			if err != nil {
				t.Errorf("%s: %v", at, err)
				continue
			}
			sdk.check(file, func(problem string) { t.Errorf("%s: %s", at, problem) })
		}
	})
	if blocks == 0 || len(programs) == 0 {
		t.Fatalf("found %d blocks of Go and %d programs", blocks, len(programs))
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	dir := t.TempDir()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "list", "-export") // compiles, and does not link
	for at, code := range programs {
		name := fmt.Sprintf("program%d", len(overlay.Replace))
		file := filepath.Join(dir, name+".go")
		if err := os.WriteFile(file, []byte("// "+at+"\n"+code), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, "docs", name, "main.go")] = file
		build.Args = append(build.Args, "./docs/"+name)
	}
	b, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, b, 0o600); err != nil {
		t.Fatal(err)
	}
	build.Args = slices.Insert(build.Args, 3, "-overlay="+list)
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as released
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("the programs in the pages do not compile: %v\n%s", err, out)
	}
}

// names are the exported names of packages, by the name of the package: functions, types,
// variables, constants. The value lists the fields of a type, nil for other names.
type names map[string]map[string]map[string]bool

// exported returns the names of the packages that programs import.
func exported(t *testing.T) names {
	all := names{}
	for _, s := range sources(t) {
		path := s.pkg.path()
		if s.test || within(path, "internal") || within(path, "cmd") || within(path, "bench") || within(path, "examples") || within(path, "conformance") {
			continue
		}
		pkg := all[s.pkg.Name] // workflow/trace and agent/trace have one
		if pkg == nil {
			pkg = map[string]map[string]bool{}
			all[s.pkg.Name] = pkg
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					pkg[d.Name.Name] = nil
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						pkg[spec.Name.Name] = fieldsOf(spec.Type)
					case *ast.ValueSpec:
						for _, id := range spec.Names {
							pkg[id.Name] = nil
						}
					}
				}
			}
		}
	}
	return all
}

func fieldsOf(typ ast.Expr) map[string]bool {
	st, ok := typ.(*ast.StructType)
	if !ok {
		return nil
	}
	fields := map[string]bool{}
	for _, f := range st.Fields.List {
		for _, id := range f.Names {
			fields[id.Name] = true
		}
	}
	return fields
}

// check reports names of cay's packages that do not exist, and fields that their types do
// not have.
func (n names) check(file *ast.File, report func(problem string)) {
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.SelectorExpr:
			x, ok := node.X.(*ast.Ident)
			if !ok || n[x.Name] == nil {
				break
			}
			if _, ok := n[x.Name][node.Sel.Name]; !ok {
				report(fmt.Sprintf("package %s has no %s", x.Name, node.Sel.Name))
			}
		case *ast.CompositeLit:
			sel, ok := node.Type.(*ast.SelectorExpr)
			if !ok {
				break
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok || n[x.Name] == nil || n[x.Name][sel.Sel.Name] == nil {
				break
			}
			for _, e := range node.Elts {
				kv, ok := e.(*ast.KeyValueExpr)
				if !ok {
					continue
				}
				if key, ok := kv.Key.(*ast.Ident); ok && !n[x.Name][sel.Sel.Name][key.Name] {
					report(fmt.Sprintf("%s.%s has no field %s", x.Name, sel.Sel.Name, key.Name))
				}
			}
		}
		return true
	})
}
