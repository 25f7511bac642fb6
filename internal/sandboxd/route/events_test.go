package route

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// decodeLines decodes the output of an eventEncoder.
func decodeLines(t interface{ Fatal(...any) }, b []byte) []sandbox.Event {
	var out []sandbox.Event
	for line := range bytes.Lines(b) {
		var e sandbox.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err, string(line))
		}
		out = append(out, e)
	}
	return out
}

func TestEventEncoder(t *testing.T) {
	t.Parallel()
	out := func(s sandbox.Stream, cursor int64, data string) sandbox.Event {
		return sandbox.Event{Stream: s, Cursor: cursor, Data: []byte(data)}
	}
	exit := sandbox.Event{Exit: &sandbox.Exit{}}
	long := strings.Repeat("ä", maxChunk)
	for _, tt := range []struct {
		name string
		in   []sandbox.Event
		want []string // the data of each line; "exit" for the exit
	}{
		{"text", []sandbox.Event{out("stdout", 0, "a\n"), exit}, []string{"a\n", "exit"}},
		{"a character in two pieces", []sandbox.Event{out("stdout", 0, "a\xc3"), out("stdout", 2, "\xa4b")}, []string{"a", "äb"}},
		{"a character in four pieces", []sandbox.Event{out("stdout", 0, "\xf0"), out("stdout", 1, "\x9f"), out("stdout", 2, "\x98"), out("stdout", 3, "\x80")}, []string{"😀"}},
		{"half a character, then the exit", []sandbox.Event{out("stdout", 0, "a\xc3"), exit}, []string{"a", "\xc3", "exit"}},
		{"half a character, then the other stream", []sandbox.Event{out("stdout", 0, "\xc3"), out("stderr", 1, "e"), out("stdout", 2, "\xa4")}, []string{"\xc3", "e", "\xa4"}},
		{"half a character, then a gap", []sandbox.Event{out("stdout", 0, "\xc3"), out("stdout", 9, "\xa4")}, []string{"\xc3", "\xa4"}},
		{"no character at all", []sandbox.Event{out("stdout", 0, "\xff\xfe"), out("stdout", 2, "\xc3\xc3")}, []string{"\xff\xfe", "\xc3", "\xc3"}},
		{"a long chunk", []sandbox.Event{out("stdout", 0, "x"+long)}, []string{"x" + strings.Repeat("ä", maxChunk/2-1), strings.Repeat("ä", maxChunk/2), "ä"}},
		{"an empty chunk", []sandbox.Event{out("stdout", 0, ""), exit}, []string{"exit"}},
	} {
		enc := &eventEncoder{}
		var b []byte
		var err error
		for _, e := range tt.in {
			if b, err = enc.Append(b, e); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for _, e := range decodeLines(t, enc.Release(b)) {
			if e.Exit != nil {
				got = append(got, "exit")
			} else {
				got = append(got, string(e.Data))
			}
		}
		if strings.Join(got, "|") != strings.Join(tt.want, "|") {
			t.Errorf("%s: %d lines %.100q, want %d", tt.name, len(got), got, len(tt.want))
		}
	}
}

// However the output is cut into chunks, all of it arrives at its cursor, and text
// arrives as text.
func TestEventEncoder_Property(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(t *rapid.T) {
		text := rapid.Bool().Draw(t, "text")
		var data []byte
		if text {
			data = []byte(rapid.String().Draw(t, "data"))
		} else {
			data = rapid.SliceOf(rapid.Byte()).Draw(t, "data")
		}
		enc := &eventEncoder{}
		var b []byte
		at := 0
		for at < len(data) {
			n := rapid.IntRange(1, min(5, len(data)-at)).Draw(t, "n")
			chunk := bytes.Clone(data[at : at+n])
			var err error
			if b, err = enc.Append(b, sandbox.Event{Stream: sandbox.Stdout, Cursor: int64(at), Data: chunk}); err != nil {
				t.Fatal(err)
			}
			clear(chunk) // the source may use it again
			at += n
		}
		b = enc.Release(b)
		if text && !bytes.ContainsFunc(data, unicode.IsControl) && bytes.Contains(b, []byte(`"encoding"`)) {
			t.Fatal("text was sent as base64")
		}
		var got []byte
		for _, e := range decodeLines(t, b) {
			if e.Cursor != int64(len(got)) {
				t.Fatalf("cursor %d after %d bytes", e.Cursor, len(got))
			}
			got = append(got, e.Data...)
		}
		if !bytes.Equal(got, data) {
			t.Fatalf("%q became %q", data, got)
		}
	})
}
