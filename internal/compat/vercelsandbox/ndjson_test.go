package vercelsandbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// decodeLines decodes lines as clients do: the output by stream. Every line
// must be a line of output, and ASCII.
func decodeLines(t interface{ Fatalf(string, ...any) }, b []byte) map[string]string {
	out := map[string]string{}
	for line := range bytes.Lines(b) {
		var l struct{ Stream, Data string }
		if err := json.Unmarshal(line, &l); err != nil || l.Data == "" {
			t.Fatalf("line %q: %v", line, err)
		}
		for _, c := range line[:len(line)-1] {
			if c < ' ' || c >= 0x80 {
				t.Fatalf("line %q has byte %#x", line, c)
			}
		}
		out[l.Stream] += l.Data
	}
	return out
}

// whole returns the text of all bytes together.
func whole(b []byte) string { return string([]rune(string(b))) }

// However a command's output is divided into pieces, the text is the same.
func TestLines_AnyPieces(t *testing.T) {
	t.Parallel()
	// Bytes that begin, continue and break characters are more telling than
	// random ones.
	b := rapid.OneOf(rapid.Byte(), rapid.SampledFrom([]byte("a\"\\\n\x00\x1b\x7f\x80\x85\xbf\xc2\xc3\xe2\x80\xa8\xed\xa0\xef\xbf\xbd\xf0\x9f\x98\x80\xf4\x90\xff")))
	seedtest.Check(t, func(t *rapid.T) {
		l := &lines{output: true}
		var got []byte
		written := map[sandbox.Stream][]byte{}
		for _, piece := range rapid.SliceOf(rapid.SliceOfN(b, 0, 6)).Draw(t, "pieces") {
			stream := rapid.SampledFrom([]sandbox.Stream{sandbox.Stdout, sandbox.Stderr}).Draw(t, "stream")
			var err error
			if got, err = l.Append(got, sandbox.Event{Stream: stream, Data: piece}); err != nil {
				t.Fatalf("append: %v", err)
			}
			written[stream] = append(written[stream], piece...)
			clear(piece) // which is not the encoder's to keep
		}
		got, err := l.Append(got, sandbox.Event{Exit: &sandbox.Exit{}})
		if err != nil {
			t.Fatalf("append: %v", err)
		}
		text := decodeLines(t, got)
		for _, stream := range []sandbox.Stream{sandbox.Stdout, sandbox.Stderr} {
			if text[string(stream)] != whole(written[stream]) {
				t.Fatalf("%s: got %q, want %q", stream, text[string(stream)], whole(written[stream]))
			}
		}
	})
}

func FuzzText(f *testing.F) {
	f.Add([]byte("h\xc3\xa9llo\xf0\x9f\x98\x80\xff\xe2\x82"), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		var tx text
		var got []byte
		for rest := b; len(rest) > 0; {
			piece := rest[:min(len(rest), int(n)%7+1)]
			rest = rest[len(piece):]
			got = tx.append(got, sandbox.Stdout, piece, false)
		}
		got = tx.append(got, sandbox.Stdout, nil, true)
		if text := decodeLines(t, got)["stdout"]; text != whole(b) {
			t.Errorf("got %q, want %q", text, whole(b))
		}
	})
}

func TestLines(t *testing.T) {
	t.Parallel()
	started := &sandbox.Command{ID: "cmd_1", SandboxID: "sbx_1", Argv: []string{"echo", "\u0085é"}, WorkDir: "/w", StartedAt: time.UnixMilli(1000)}
	exit := &sandbox.Exit{Code: 137, Signal: 9, Duration: sandbox.Duration(1500 * time.Millisecond)}
	events := []sandbox.Event{
		{Command: started},
		{Stream: sandbox.Stdout, Data: []byte("a\n\xe2\x82")},
		{Stream: sandbox.Stderr, Cursor: 4, Data: []byte("b")},
		{Stream: sandbox.Stdout, Cursor: 5, Data: []byte("\xac")},
		{Truncated: true, Cursor: 10},
		{Stream: sandbox.Stdout, Cursor: 10, Data: []byte("c\xf0")},
		{Exit: exit},
	}
	first := `{"command":{"id":"cmd_1","name":"echo","args":["\u0085\u00e9"],"cwd":"/w","%s","exitCode":null,"startedAt":1000}}`
	last := `{"command":{"id":"cmd_1","name":"echo","args":["\u0085\u00e9"],"cwd":"/w","%s","exitCode":137,"startedAt":1000%s}}`
	output := []string{
		`{"stream":"stdout","data":"a\n"}`,
		`{"stream":"stderr","data":"b"}`,
		`{"stream":"stdout","data":"\u20ac"}`,
		`{"stream":"stderr","data":"[cay: 4 bytes of output are no longer kept]\n"}`,
		`{"stream":"stdout","data":"c"}`,
		`{"stream":"stdout","data":"\ufffd"}`,
	}
	session, box := `sessionId":"ses_1"`, `sandboxId":"sbx_1"`
	session, box = session[:len(session)-1], box[:len(box)-1]
	first2, last2 := fmt.Sprintf(first, session), fmt.Sprintf(last, session, `,"durationMs":1500`)
	for _, c := range []struct {
		name string
		l    *lines
		want []string
	}{
		{"Logs", &lines{output: true}, output},
		{"Wait", &lines{command: owner{ref: "ses_1"}.command}, []string{first2, last2}},
		{"WaitWithLogs", &lines{command: owner{ref: "ses_1"}.command, output: true}, append(append([]string{first2}, output...), last2)},
		{"V1", &lines{command: owner{ref: "sbx_1", v1: true}.command}, []string{fmt.Sprintf(first, box), fmt.Sprintf(last, box, "")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var got []byte
			for _, e := range events {
				var err error
				if got, err = c.l.Append(got, e); err != nil {
					t.Fatal(err)
				}
			}
			if got = c.l.Release(got); string(got) != strings.Join(c.want, "\n")+"\n" {
				t.Errorf("got\n%swant\n%s", got, strings.Join(c.want, "\n"))
			}
		})
	}
	if started.Exit != nil {
		t.Error("the command that was handed over was changed")
	}
}

func TestLines_Error(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]*cay.Error{
		`{"stream":"error","data":{"code":"sandbox_stream_closed","message":"gone \u00e9 (resume it)"}}`: cay.Errorf(cay.Stopped, "gone é").WithHint("resume it"),
		`{"stream":"error","data":{"code":"internal_server_error","message":"internal error"}}`:          cay.Errorf(cay.Internal, "internal error"),
	} {
		if got := new(lines).AppendError(nil, err); string(got) != want+"\n" {
			t.Errorf("got  %swant %s", got, want)
		}
	}
}
