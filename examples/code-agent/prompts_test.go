package main

import (
	"strings"
	"testing"
)

func TestProgram(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, answer, want string }{
		{"no fence", "x = 1", "x = 1\n"},
		{"a fence", "```python\nx = 1\n```", "x = 1\n"},
		{"words around it", "Here:\n\n```py\nx = 1\n\ny = 2\n```\nDone.", "x = 1\n\ny = 2\n"},
		{"the longest of several", "```\na\n```\nand\n```python\nlonger = 1\n```", "longer = 1\n"},
		{"a fence in a fence", "````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"},
		{"tildes", "~~~\nx = 1\n~~~", "x = 1\n"},
		{"not closed", "```python\nx = 1", "x = 1\n"},
		{"carriage returns", "```python\r\nx = 1\r\n```\r\n", "x = 1\n"},
		{"indented", "  ```python\nx = 1\n  ```", "x = 1\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := program(tt.answer)
			if err != nil || got != tt.want {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
	for _, bad := range []string{"", " \n", "```python\n```", strings.Repeat("x", maxProgram+1)} {
		if got, err := program(bad); err == nil {
			t.Errorf("%.20q gave a program of %d bytes", bad, len(got))
		}
	}
}

func FuzzProgram(f *testing.F) {
	for _, s := range []string{"```python\nx\n```", "````\n```\n````", "~~~\n```\n~~~", "\xff```"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		got, err := program(answer)
		if err == nil && (strings.TrimSpace(got) == "" || !strings.HasSuffix(got, "\n") || len(got) > len(answer)+1) {
			t.Errorf("%q became %q", answer, got)
		}
	})
}

func TestRequest_Check(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]Request{
		"no prompt": {Prompt: " \n"}, "a long prompt": {Prompt: strings.Repeat("x", maxPrompt+1)},
		"an option for pip": {Prompt: "x", Packages: []string{"--index-url=http://example.com"}},
		"a URL":             {Prompt: "x", Packages: []string{"git+https://example.com/x"}},
		"many packages":     {Prompt: "x", Packages: make([]string, maxPackages+1)},
	} {
		if err := r.check("a/b", "c/d"); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	r := Request{Prompt: " add ", Packages: []string{"numpy==2.1", "attrs"}, Coder: "x/y"}
	if err := r.check("a/b", "c/d"); err != nil || r.Prompt != "add" || r.Coder != "x/y" || r.Tester != "c/d" {
		t.Errorf("%+v, %v", r, err)
	}
}
