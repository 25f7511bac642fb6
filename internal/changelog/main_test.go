package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func TestRun(t *testing.T) {
	dir := fstest.MapFS{
		"TEMPLATE":               {Data: []byte("no change")},
		"unreleased/new.md":      {Data: []byte("Feature: Do more\n")},
		"0.9.0_2026-12-01/a.md":  {Data: []byte("Bugfix: Mend it\n\nIt was broken.\n")},
		"0.9.0_2026-12-01/b.md":  {Data: []byte("Security: Close a hole\n\nUpdate.\n")},
		"0.10.0_2027-01-31/a.md": {Data: []byte("Breaking: Rename it\n\n| old | new |\n")},
	}
	for only, want := range map[string]string{
		"": "# Unreleased\n\n## Features\n\n### Do more\n\n" +
			"# 0.10.0 (2027-01-31)\n\n## Breaking changes\n\n### Rename it\n\n| old | new |\n\n" +
			"# 0.9.0 (2026-12-01)\n\n## Security\n\n### Close a hole\n\nUpdate.\n\n## Bugfixes\n\n### Mend it\n\nIt was broken.\n",
		"0.10.0": "# 0.10.0 (2027-01-31)\n\n## Breaking changes\n\n### Rename it\n\n| old | new |\n",
	} {
		var out bytes.Buffer
		if err := run(&out, dir, only); err != nil || out.String() != want {
			t.Errorf("%q: %v\n%s\nwant\n%s", only, err, out.String(), want)
		}
	}
	if err := run(new(bytes.Buffer), dir, "0.2.0"); err == nil {
		t.Error("a version that is none was printed")
	}
}

func TestRun_Refuses(t *testing.T) {
	for name, dir := range map[string]fstest.MapFS{
		"kind":      {"unreleased/a.md": {Data: []byte("Chore: Tidy up\n")}},
		"full stop": {"unreleased/a.md": {Data: []byte("Bugfix: Mend it.\n")}},
		"no blank":  {"unreleased/a.md": {Data: []byte("Bugfix: Mend it\nIt was broken.\n")}},
		"directory": {"next/a.md": {Data: []byte("Bugfix: Mend it\n")}},
	} {
		if err := run(new(bytes.Buffer), dir, ""); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The project's own changes can be printed.
func TestRun_Own(t *testing.T) {
	var out bytes.Buffer
	if err := run(&out, os.DirFS("../../changelog"), ""); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "# 0.1.0 (") {
		t.Errorf("version 0.1.0 is missing:\n%.500s", out.String())
	}
}
