package sse_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cayhq/cay/internal/sse"
)

// show returns an event as text, for comparison.
func show(name, data []byte) string { return fmt.Sprintf("%q %q", name, data) }

func read(r io.Reader, limit int) (events []string, err error) {
	for d := sse.NewReader(r, limit); ; {
		e, err := d.Next()
		if err != nil {
			_, again := d.Next()
			if again != err {
				return events, fmt.Errorf("%w, and then %w", err, again)
			}
			return events, err
		}
		events = append(events, show(e.Name, e.Data))
	}
}

func split(stream []byte, size, limit int) (events []string, s *sse.Splitter) {
	s = sse.NewSplitter(limit)
	for p := range slices.Chunk(bytes.Clone(stream), size) {
		s.Write(p, func(e sse.Event) { events = append(events, show(e.Name, e.Data)) })
		clear(p) // the splitter must not keep references to p
	}
	return events, s
}

var lineEnd = regexp.MustCompile("\r\n|\n|\r")

// model is a reference implementation that has the whole stream at once.
func model(stream []byte, limit int) (events []string, dropped int, cut bool) {
	lines := lineEnd.Split(string(stream), -1)
	var name string
	var data []string
	skip := false
	for i, line := range lines {
		first := i == 0
		size := len(name) + len(strings.Join(data, "\n"))
		if line != "" && (first || line[0] != ':') && size+len(line) > limit && !skip {
			skip, data, name = true, nil, ""
			dropped++
		}
		if first {
			line = strings.TrimPrefix(line, "\xef\xbb\xbf")
		}
		if i == len(lines)-1 {
			return events, dropped, skip || data != nil || name != "" || line != "" && line[0] != ':'
		}
		if line == "" {
			if data != nil {
				events = append(events, show([]byte(name), []byte(strings.Join(data, "\n"))))
			}
			name, data, skip = "", nil, false
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case skip:
		case field == "data":
			data = append(data, value)
		case field == "event":
			name = value
		}
	}
	panic("unreachable")
}

const plenty = 1 << 20

func TestReader(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, stream string
		want         []string
		err          error
	}{
		{"nothing", "", nil, io.EOF},
		{"an event", "data: a\n\n", []string{`"" "a"`}, io.EOF},
		{"a name", "event: x\ndata: a\n\n", []string{`"x" "a"`}, io.EOF},
		{"no space", "event:x\ndata:a\n\n", []string{`"x" "a"`}, io.EOF},
		{"two spaces", "data:  a\n\n", []string{`"" " a"`}, io.EOF},
		{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", []string{`"" "a"`, `"" "b"`}, io.EOF},
		{"CR", "data: a\r\rdata: b\r\r", []string{`"" "a"`, `"" "b"`}, io.EOF},
		{"mixed", "data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", []string{`"" "a"`, `"" "b"`, `"" "c"`}, io.EOF},
		{"lines", "data: a\ndata: b\ndata\ndata:\n\n", []string{`"" "a\nb\n\n"`}, io.EOF},
		{"empty data", "data\n\n", []string{`"" ""`}, io.EOF},
		{"comments", ": OPENROUTER PROCESSING\n\n:\ndata: a\n: b\n\n", []string{`"" "a"`}, io.EOF},
		{"other fields", "id: 1\nretry: 5\ndata: a\nfoo: bar\nfoo\n\n", []string{`"" "a"`}, io.EOF},
		{"a name without data", "event: x\n\ndata: a\n\n", []string{`"" "a"`}, io.EOF},
		{"the last name counts", "event: x\nevent: y\ndata: a\n\n", []string{`"y" "a"`}, io.EOF},
		{"byte order mark", "\xef\xbb\xbfdata: a\n\n", []string{`"" "a"`}, io.EOF},
		{"one byte order mark", "\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", []string{`"" "b"`}, io.EOF},
		{"cut after the data", "data: a\n\ndata: b\n", []string{`"" "a"`}, sse.ErrCut},
		{"cut within a line", "data: a\n\ndat", []string{`"" "a"`}, sse.ErrCut},
		{"cut after the name", "data: a\n\nevent: x\n", []string{`"" "a"`}, sse.ErrCut},
		{"a comment may be cut", "data: a\n\n: keep-al", []string{`"" "a"`}, io.EOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for name, r := range map[string]io.Reader{
				"at once":        strings.NewReader(tt.stream),
				"byte by byte":   iotest.OneByteReader(strings.NewReader(tt.stream)),
				"error with end": iotest.DataErrReader(strings.NewReader(tt.stream)),
			} {
				got, err := read(r, plenty)
				if !slices.Equal(got, tt.want) || err != tt.err {
					t.Errorf("%s: %q, %v; want %q, %v", name, got, err, tt.want, tt.err)
				}
			}
		})
	}
}

func TestReader_Limit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, stream string
		want         []string
		err          error
	}{
		{"up to the limit", "data: 6789\n\ndata: 6789\n\n", []string{`"" "6789"`, `"" "6789"`}, io.EOF},
		{"a line", "data: 1\n\ndata: 67890\n\ndata: 2\n\n", []string{`"" "1"`}, sse.ErrTooLarge},
		{"a line without end", "data: " + strings.Repeat("x", 3*16<<10), nil, sse.ErrTooLarge},
		{"lines", "data: 1234\ndata: 1\n\n", nil, sse.ErrTooLarge},
		{"a name", "event: 678\ndata: 67\n\n", nil, sse.ErrTooLarge},
		{"comments of any size", ": " + strings.Repeat("x", 3*16<<10) + "\n: 123456789012\ndata: a\n\n", nil, sse.ErrTooLarge}, // a first line could be anything
		{"later comments", "data: a\n\n: " + strings.Repeat("x", 3*16<<10) + "\ndata: b\n\n", []string{`"" "a"`, `"" "b"`}, io.EOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := read(strings.NewReader(tt.stream), 10)
			if !slices.Equal(got, tt.want) || err != tt.err {
				t.Errorf("%q, %v; want %q, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

func TestReader_FailedReading(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	got, err := read(io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(broken)), plenty)
	if want := []string{`"" "a"`}; !slices.Equal(got, want) || err != broken {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := read(readNothing{}, plenty); err != io.ErrNoProgress {
		t.Errorf("of a reader that reads nothing: %v", err)
	}
}

type readNothing struct{}

func (readNothing) Read([]byte) (int, error) { return 0, nil }

// Events that one read brought are returned without another read.
func TestReader_More(t *testing.T) {
	t.Parallel()
	r := sse.NewReader(io.MultiReader(strings.NewReader("data: a\n\ndata: b\n\n: c\n\ndata: d"), strings.NewReader("\n\n")), plenty)
	var more []bool
	for range 3 {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		more = append(more, r.More())
	}
	if want := []bool{true, false, false}; !slices.Equal(more, want) {
		t.Errorf("more: %v, want %v", more, want)
	}
}

func TestSplitter_SkipsWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	stream := []byte("data: 1\n\ndata: 67890\ndata: x\n\ndata: 2\n\n")
	for size := 1; size <= len(stream); size++ {
		got, s := split(stream, size, 10)
		if want := []string{`"" "1"`, `"" "2"`}; !slices.Equal(got, want) || s.Dropped() != 1 || s.Cut() {
			t.Errorf("in pieces of %d: %q, dropped %d, cut %v", size, got, s.Dropped(), s.Cut())
		}
	}
}

func TestAppend(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ data, want string }{
		{``, "data: \n\n"},
		{`{"a":1}`, "data: {\"a\":1}\n\n"},
		{"a\nb\r\nc\rd\n", "data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n"},
	} {
		if got := string(sse.Append([]byte("x"), []byte(tt.data))); got != "x"+tt.want {
			t.Errorf("%q is %q, want %q", tt.data, got, tt.want)
		}
	}
	if got := string(sse.AppendNamed(nil, "ping", []byte("{}"))); got != "event: ping\ndata: {}\n\n" {
		t.Errorf("named: %q", got)
	}
	if got := string(sse.AppendComment(nil, "ok")); got != ": ok\n\n" {
		t.Errorf("comment: %q", got)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	stream := bytes.Repeat([]byte("event: message\ndata: {\"choices\":[{\"delta\":{\"content\":\"hello\"}}]}\n\n"), 100)
	s := sse.NewSplitter(plenty)
	n := 0
	f := func(sse.Event) { n++ }
	allocs := testing.AllocsPerRun(10, func() {
		for p := range slices.Chunk(stream, 1000) {
			s.Write(p, f)
		}
	})
	if allocs > 0 || n != 11*100 {
		t.Errorf("%v allocations for %d events", allocs, n)
	}
}

func FuzzStream(f *testing.F) {
	for _, s := range []string{
		"data: a\n\n", "\xef\xbb\xbfevent: x\r\ndata: a\r\rdata: b\n\n", ": c\n\nid: 4\ndata\ndata: x\n\n", "event: y\n", "data: 12345678901234\n\ndata: a\n\n",
	} {
		f.Add([]byte(s), uint8(3), uint8(12))
	}
	f.Fuzz(func(t *testing.T, stream []byte, size, limit uint8) {
		bound := int(limit) + 1
		want, dropped, cut := model(stream, bound)
		got, s := split(stream, int(size)+1, bound)
		if !slices.Equal(got, want) || s.Dropped() != dropped || s.Cut() != cut {
			t.Errorf("the splitter has %q, dropped %d, cut %v; want %q, %d, %v", got, s.Dropped(), s.Cut(), want, dropped, cut)
		}
		got, err := read(&pieces{bytes.Clone(stream), int(size) + 1}, bound)
		switch {
		case dropped > 0 && err != sse.ErrTooLarge, dropped == 0 && cut != (err == sse.ErrCut), dropped == 0 && !cut && err != io.EOF:
			t.Errorf("the reader ended with %v, dropped %d, cut %v", err, dropped, cut)
		case dropped == 0 && !slices.Equal(got, want), len(got) > len(want) || !slices.Equal(got, want[:len(got)]):
			t.Errorf("the reader has %q, want %q", got, want)
		}
	})
}

// pieces reads a few bytes at a time.
type pieces struct {
	rest []byte
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.rest[:min(p.size, len(p.rest))])
	p.rest = p.rest[n:]
	return n, nil
}

// Appended events are read back unchanged.
func FuzzAppend(f *testing.F) {
	f.Add("x", []byte("a\nb"))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		if strings.ContainsAny(name, "\r\n") {
			t.Skip("a name has no line ends")
		}
		stream := sse.AppendNamed(sse.AppendComment(nil, "c"), name, data)
		got, err := read(bytes.NewReader(stream), 2*len(stream))
		want := show([]byte(name), []byte(lineEnd.ReplaceAllString(string(data), "\n")))
		if err != io.EOF || len(got) != 1 || got[0] != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	})
}

func BenchmarkSplitter(b *testing.B) {
	stream := bytes.Repeat([]byte("data: {\"id\":\"chatcmpl-D8Z5oo6uDh67AD85p73ksdT1KxhE0\",\"object\":\"chat.completion.chunk\",\"created\":1770933892,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"}}]}\n\n"), 24)
	b.SetBytes(int64(len(stream)))
	s := sse.NewSplitter(plenty)
	for b.Loop() {
		s.Write(stream, func(sse.Event) {})
	}
}
