package gateway

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The tests and cases that docs/gateway.md names in "What is tested" exist.
func TestDocs(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(doc), "## What is tested\n")
	if !ok {
		t.Fatal("there is no such section")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var tests strings.Builder
	for _, dir := range []string{".", "../../internal/gatewayd"} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.Name() == "node_modules" || e.Name() == ".venv" {
				return filepath.SkipDir
			}
			if strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".mjs") {
				text, err := os.ReadFile(path)
				tests.Write(text)
				return err
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	rows := 0
	for line := range strings.SplitSeq(section, "\n") {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 2 || cells[1] == "where" {
			continue
		}
		rows++
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			name := m[1]
			if strings.Contains(name, "/") || strings.Contains(name, ".mjs") {
				continue // where it is
			}
			function := strings.Contains(tests.String(), "func "+name+"(")
			title := strings.Contains(tests.String(), "'"+name) || strings.Contains(tests.String(), "async "+name+"(")
			if !function && !title {
				t.Errorf("no test is called %q", name)
			}
		}
	}
	if rows < 20 {
		t.Errorf("%d rows only", rows)
	}
}
