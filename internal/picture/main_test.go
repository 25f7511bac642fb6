package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// The committed picture is drawn from the committed text.
func TestPicture_Architecture(t *testing.T) {
	t.Parallel()
	const text, svg = "../../docs/images/architecture.txt", "../../docs/images/architecture.svg"
	in, err := os.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var got bytes.Buffer
	if err := run(in, &got); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Error("docs/images/architecture.svg is not what its text says: go run ./internal/picture <docs/images/architecture.txt >docs/images/architecture.svg")
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	text := `size 300 200 "a & b"
# a comment
group 0 0 300 100 "both"
box a 10 30 100 40 "first" "<x>"
box b 10 120 100 40 "second"
box c 190 30 100 40 "third"
arrow a b "down"
arrow c a ""
`
	if err := run(strings.NewReader(text), &out); err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(bytes.NewReader(out.Bytes())); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{`d="M60 70L60 120"`, `d="M190 50L110 50"`, "&lt;x&gt;", "<title>a &amp; b</title>", ">down<"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q in\n%s", want, out.String())
		}
	}
}

func TestRun_Refuses(t *testing.T) {
	t.Parallel()
	const size = "size 100 100 \"x\"\n"
	for text, want := range map[string]string{
		"":                             "there is no size",
		"size 1 2":                     "size has 2 numbers and 0 texts",
		size + "circle \"x\"":          `line 2: there is no "circle"`,
		size + "box a 0 0 x 9 \"b\"":   `"x" is no number`,
		size + "box":                   "box needs 1 names",
		size + "group 0 0 9 9 \"b":     "a text does not end",
		size + "box a 0 0 9 9 \"b\"":   "1 lines do not fit the box a",
		size + "box a 0 0 9 20 \"bb\"": `"bb" does not fit the box a`,
		size + "arrow a b \"\"":        "an arrow from a to b needs both boxes above it",
		size + "box a 0 0 9 20 \"b\"\nbox a 0 0 9 20 \"b\"": "the box a is there twice",
	} {
		if err := run(strings.NewReader(text), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
