package sse_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cayhq/cay/internal/sse"
)

// capital converts events with a b to capitals, drops events with a c, doubles events
// with a d, and ends the stream after the first event with an e.
func capital() sse.Edit {
	var out []byte
	return func(event []byte) ([]byte, bool) {
		switch {
		case bytes.IndexByte(event, 'b') >= 0:
			out = append(out[:0], bytes.ToUpper(event)...)
			return out, false
		case bytes.IndexByte(event, 'c') >= 0:
			return nil, false
		case bytes.IndexByte(event, 'd') >= 0:
			out = append(append(out[:0], event...), event...)
			return out, false
		}
		return event, bytes.IndexByte(event, 'e') >= 0
	}
}

func TestRewriter(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ stream, want string }{
		"nothing":            {"", ""},
		"as they are":        {"x: 1\n\nx: 2\n\n", "x: 1\n\nx: 2\n\n"},
		"one changes":        {"x: 1\n\nx: b\n\nx: 2\n\n", "x: 1\n\nX: B\n\nx: 2\n\n"},
		"the first changes":  {"x: b\n\nx: 1\n\nx: b\n\n", "X: B\n\nx: 1\n\nX: B\n\n"},
		"left out":           {"x: c\n\nx: 1\n\nx: c\n\n", "x: 1\n\n"},
		"all left out":       {"x: c\n\nx: c\n\n", ""},
		"more than there is": {"x: d\n\nx: 1\n\n", "x: d\n\nx: d\n\nx: 1\n\n"},
		"CRLF":               {"x: 1\r\n\r\nx: b\r\n\r\n", "x: 1\r\n\r\nX: B\r\n\r\n"},
		"CR":                 {"x: 1\r\rx: b\r\r", "x: 1\r\rX: B\r\r"},
		"without an end":     {"x: 1\n\nx: b", "x: 1\n\nx: b"},
		"after the last":     {"x: 1\n\nx: e\n\nx: 2\n\n", "x: 1\n\nx: e\n\n"},
		"over the limit":     {"x: b\n\nx: " + strings.Repeat("1", 100) + "\n\nx: b\n\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for how, read := range map[string]func(io.Reader) io.Reader{
				"all at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "half": iotest.HalfReader, "with its end": iotest.DataErrReader,
			} {
				for _, size := range []int{1, 3, 512} {
					limit := 1 << 20
					if tt.want == "" && len(tt.stream) > 100 {
						limit = 50
					}
					got, err := drain(sse.NewRewriter(io.NopCloser(read(strings.NewReader(tt.stream))), limit, capital()), size)
					if limit == 50 { // an event that is read whole is within no limit but that of the read
						if !strings.HasPrefix(got, "X: B\n\nx: 1") || len(got) != len(tt.stream) {
							t.Errorf("%s, by %d: %q", how, size, got)
						}
					} else if got != tt.want || err != nil {
						t.Errorf("%s, by %d: %q, %v", how, size, got, err)
					}
				}
			}
			failed := errors.New("failed")
			got, err := drain(sse.NewRewriter(io.NopCloser(io.MultiReader(strings.NewReader("x: b\n\nx: 1"), iotest.ErrReader(failed))), 1<<20, capital()), 64)
			if got != "X: B\n\nx: 1" || !errors.Is(err, failed) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// drain reads all of r in reads of size bytes.
func drain(r io.Reader, size int) (string, error) {
	var all []byte
	b := make([]byte, size)
	for {
		n, err := r.Read(b)
		all = append(all, b[:n]...)
		if err == io.EOF {
			return string(all), nil
		}
		if err != nil {
			return string(all), err
		}
	}
}

// Unchanged events are read without a copy.
func TestRewriter_NoCopies(t *testing.T) {
	stream := strings.Repeat("data: {\"a\":1}\n\n", 100)
	b := make([]byte, 2048)
	body := strings.NewReader(stream)
	r := sse.NewRewriter(io.NopCloser(body), 1<<20, func(event []byte) ([]byte, bool) { return event, false })
	if n := testing.AllocsPerRun(10, func() {
		body.Reset(stream)
		if n, err := r.Read(b); n != len(stream) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
