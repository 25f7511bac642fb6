package wire_test

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cayhq/cay/internal/wire"
)

func TestLineReader(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200<<10)
	for _, tt := range []struct {
		name, in string
		want     []string
		end      error
	}{
		{"nothing", "", nil, io.EOF},
		{"lines", "a\nb\n", []string{"a", "b"}, io.EOF},
		{"heartbeats", "\n\na\n\n\r\nb\n\n", []string{"a", "b"}, io.EOF},
		{"long lines", long + "\nb\n" + long + "\n", []string{long, "b", long}, io.EOF},
		{"broken off", "a\nb", []string{"a"}, io.ErrUnexpectedEOF},
		{"broken off in a long line", long, nil, io.ErrUnexpectedEOF},
	} {
		for _, r := range []io.Reader{strings.NewReader(tt.in), iotest.HalfReader(strings.NewReader(tt.in))} {
			lr := wire.NewLineReader(r)
			var got []string
			for {
				line, err := lr.Next(nil)
				if err != nil {
					if err != tt.end {
						t.Errorf("%s: ends with %v, want %v", tt.name, err, tt.end)
					}
					break
				}
				got = append(got, string(line))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%s: %d lines, want %d", tt.name, len(got), len(tt.want))
			}
		}
	}
}

func TestLineReader_Limit(t *testing.T) {
	t.Parallel()
	lr := wire.NewLineReader(io.LimitReader(endless{}, 3*wire.MaxLine))
	if line, err := lr.Next(nil); err == nil || err == io.ErrUnexpectedEOF {
		t.Errorf("a line of %d bytes, %v", len(line), err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// Any path arrives as the same bytes.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"/a", "", "ä/\xff", `{"base64":"x"}`, "\x00\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		line, err := json.Marshal(wire.Path(b))
		if err != nil {
			t.Fatal(err)
		}
		var got wire.Path
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatal(err)
		}
		if string(got) != string(b) {
			t.Errorf("%q became %q", b, got)
		}
		_ = got.UnmarshalJSON(bytes.Clone(b)) // of anything: must not panic
	})
}
