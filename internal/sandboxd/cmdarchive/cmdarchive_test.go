package cmdarchive

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// memory is a blob.File that counts its Close calls.
type memory struct {
	*bytes.Reader
	closed int
}

func (m *memory) Size() int64  { return m.Reader.Size() }
func (m *memory) Close() error { m.closed++; return nil }

func written(t *testing.T, add func(*Writer) error) *memory {
	t.Helper()
	var buf bytes.Buffer
	w := NewWriter(&buf)
	if err := add(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &memory{Reader: bytes.NewReader(buf.Bytes())}
}

var started = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// file returns a file with a command without output, and one whose first 10 bytes of
// output are not kept.
func file(t *testing.T) *memory {
	return written(t, func(w *Writer) error {
		if err := w.Add(sandbox.Command{ID: "cmd_silent", Argv: []string{"true"}, StartedAt: started}, nil); err != nil {
			return err
		}
		return w.Add(sandbox.Command{ID: "cmd_talking", PID: 7, OutputStart: 10, OutputEnd: 20}, []sandbox.Event{
			{Stream: sandbox.Stdout, Cursor: 10, Data: []byte("hello ")},
			{Stream: sandbox.Stderr, Cursor: 16, Data: []byte("you\n"), Time: started.Add(time.Second)},
		})
	})
}

func TestFile(t *testing.T) {
	m := file(t)
	f, err := Open(m)
	if err != nil {
		t.Fatal(err)
	}
	all := f.Commands()
	if len(all) != 2 || all[0].ID != "cmd_silent" || !all[0].StartedAt.Equal(started) || !reflect.DeepEqual(all[0].Argv, []string{"true"}) {
		t.Errorf("got %+v", all)
	}
	if c := f.Command("cmd_talking"); c == nil || c.PID != 7 || f.Command("cmd_none") != nil {
		t.Errorf("got %+v", c)
	}
	exit := &sandbox.Exit{Code: 3}
	for _, tt := range []struct {
		id     string
		cursor int64
		exit   *sandbox.Exit
		want   string
	}{
		{"cmd_talking", 0, exit, "truncated 10, stdout 10 hello , stderr 16 you\n, exit 3"},
		{"cmd_talking", 10, nil, "stdout 10 hello , stderr 16 you\n"},
		{"cmd_talking", 13, nil, "stdout 13 lo , stderr 16 you\n"},
		{"cmd_talking", 16, exit, "stderr 16 you\n, exit 3"},
		{"cmd_talking", 19, exit, "stderr 19 \n, exit 3"},
		{"cmd_talking", 20, exit, "exit 3"},
		{"cmd_silent", 0, exit, "exit 3"},
		{"cmd_silent", 0, nil, ""},
	} {
		out, err := f.Output(tt.id, sandbox.OutputParams{Cursor: tt.cursor}, tt.exit)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for {
			ev, err := out.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if !ev.Time.IsZero() {
				t.Errorf("%q has a time that nobody asked for", ev.Data)
			}
			switch {
			case ev.Truncated:
				got = append(got, fmt.Sprint("truncated ", ev.Cursor))
			case ev.Exit != nil:
				got = append(got, fmt.Sprint("exit ", ev.Exit.Code))
			default:
				got = append(got, fmt.Sprint(ev.Stream, " ", ev.Cursor, " ", string(ev.Data)))
			}
		}
		if text := strings.Join(got, ", "); text != tt.want {
			t.Errorf("%s from %d: got %q, want %q", tt.id, tt.cursor, text, tt.want)
		}
	}
	out, err := f.Output("cmd_talking", sandbox.OutputParams{Cursor: 10, Times: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []time.Time{{}, started.Add(time.Second)} { // what was kept without a time has none
		if ev, err := out.Next(); err != nil || !ev.Time.Equal(want) {
			t.Errorf("%q is of %v, %v; want %v", ev.Data, ev.Time, err, want)
		}
	}
	if _, err := f.Output("cmd_talking", sandbox.OutputParams{Cursor: 21}, nil); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("beyond the end: %v", err)
	}
	if _, err := f.Output("cmd_none", sandbox.OutputParams{}, nil); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("no such command: %v", err)
	}
}

// Reading a file damaged in any way ends, with an error or without.
func TestFile_damaged(t *testing.T) {
	whole := file(t)
	data := make([]byte, whole.Size())
	if _, err := whole.ReadAt(data, 0); err != nil {
		t.Fatal(err)
	}
	read := func(data []byte) error {
		m := &memory{Reader: bytes.NewReader(data)}
		f, err := Open(m)
		if err != nil {
			if m.closed != 1 {
				t.Errorf("a file that cannot be read was closed %d times", m.closed)
			}
			return err
		}
		for _, c := range f.Commands() {
			out, err := f.Output(c.ID, sandbox.OutputParams{}, nil)
			for err == nil {
				_, err = out.Next()
			}
			if err != io.EOF {
				return err
			}
		}
		return nil
	}
	if err := read(data); err != nil {
		t.Fatal(err)
	}
	for n := range data {
		if read(data[:n]) == nil {
			t.Errorf("cut after %d bytes it is as good", n)
		}
		flipped := bytes.Clone(data)
		flipped[n] ^= 0x55
		_ = read(flipped) // some bytes of gzip's headers have no meaning
	}
}
