package strictyaml_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/strictyaml"
)

var kind = strictyaml.Kind{Name: "menu", Many: "menus", Limit: 4 << 10, Hint: "docs/menus.md"}

type menu struct {
	Name   string
	Dishes []struct {
		Name  string
		Price map[string]int
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"menu.yaml:3: unknown field \"nmae\"": "name: a\ndishes:\n  - nmae: canary\n",
		"menu.yaml:2: menus have no anchors":  "dishes:\n  - name: &a canary\n",
		"menu.yaml:1: menus have no aliases":  "name: *a\n",
		"menu.yaml:3: there is more than one": "name: a\n---\nname: canary\n",
		"menu.yaml:2: it is nested too":       "name: a\ndishes: " + strings.Repeat("[", 100),
		"menu.yaml:1: it is nested too":       strings.Repeat("- ", 100) + "canary",
		"menu.yaml:3: ":                       "name: a\ndishes: []\nname: canary\n", // twice
		"menu.yaml:":                          "name: [",
		"menu.yaml is larger than 4 KiB":      "# " + strings.Repeat("canary", 1000),
	} {
		_, err := kind.Parse("menu.yaml", []byte(text), new(menu))
		if cay.CodeOf(err) != cay.Invalid || !strings.HasPrefix(err.Error(), name) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%.40q: %v, want %s", text, err, name)
		}
	}
	m := menu{Name: "kept"}
	for _, text := range []string{"", "# nothing\n", "---\n"} {
		if _, err := kind.Parse("menu.yaml", []byte(text), &m); err != nil || m.Name != "kept" {
			t.Errorf("%q: %v, %+v", text, err, m)
		}
	}
}

func TestDocument_Line(t *testing.T) {
	t.Parallel()
	var m menu
	d, err := kind.Parse("menu.yaml", []byte("# a menu\nname: a\ndishes:\n  - name: one\n  - name: two\n    price: {small: 1,\n      large: 2}\n"), &m)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path []any
		want int
	}{
		{nil, 1}, {[]any{"name"}, 2}, {[]any{"dishes", 1, "price"}, 6}, {[]any{"dishes", 1, "price", "large"}, 7},
		{[]any{"dishes", 1, "none", "x"}, 5}, {[]any{"dishes", 9}, 3}, {[]any{"none"}, 1}, {[]any{0}, 1},
	} {
		if got := d.Line(test.path...); got != test.want {
			t.Errorf("%v is in line %d, want %d", test.path, got, test.want)
		}
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "menu.yaml")
	if _, err := kind.Read(file, new(menu)); !errors.Is(err, fs.ErrNotExist) || cay.CodeOf(err) != cay.Invalid || !strings.HasPrefix(err.Error(), "cannot read the menu") {
		t.Error(err)
	}
	if err := os.WriteFile(file, []byte("name: a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var m menu
	if _, err := kind.Read(file, &m); err != nil || m.Name != "a" {
		t.Errorf("%v, %+v", err, m)
	}
	if err := os.WriteFile(file, make([]byte, 5<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := kind.Read(file, &m); err == nil || !strings.Contains(err.Error(), "larger than 4 KiB") {
		t.Error(err)
	}
}

// Reading any file ends, and its error has a place.
func FuzzParse(f *testing.F) {
	f.Add([]byte("name: a\ndishes: [{name: b, price: {c: 1}}]\n"))
	f.Add([]byte("dishes:\n- - - - x\n? [a]: b\n"))
	f.Add([]byte("name: &a [*a]\n--- |\n  x\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := kind.Parse("menu.yaml", b, new(menu))
		if err != nil {
			if cay.CodeOf(err) != cay.Invalid || !strings.HasPrefix(err.Error(), "menu.yaml") {
				t.Errorf("%v", err)
			}
			return
		}
		if n := d.Line("dishes", 0, "name"); n < 1 {
			t.Errorf("line %d", n)
		}
	})
}
