package converse_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"

	"github.com/cayhq/cay/internal/gatewayd/converse"
)

// frame returns a frame of InvokeModelWithResponseStream.
func frame(t testing.TB, kind, name, payload string) []byte {
	t.Helper()
	m := eventstream.Message{Payload: []byte(payload)}
	m.Headers.Set(":message-type", eventstream.StringValue(kind))
	m.Headers.Set(":"+kind+"-type", eventstream.StringValue(name))
	var b bytes.Buffer
	if err := eventstream.NewEncoder().Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestChunks(t *testing.T) {
	t.Parallel()
	ping := frame(t, "event", "chunk", `{"bytes":"eyJ0eXBlIjoKInBpbmcifQ==","p":"abc"}`) // {"type":\n"ping"}
	const pinged = "event: ping\ndata: {\"type\":\"ping\"}\n\n"
	for name, test := range map[string]struct {
		frames []byte
		want   string
		err    error
	}{
		"Events":      {append(append([]byte(nil), ping...), ping...), pinged + pinged, io.EOF},
		"OtherEvents": {append(frame(t, "event", "something", `{}`), ping...), pinged, io.EOF},
		"Exception": {frame(t, "exception", "throttlingException", `{"message":"wait \"a bit\""}`),
			"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"wait \\\"a bit\\\"\"}}\n\n", io.EOF},
		"UnknownException": {frame(t, "exception", "newException", `x`), "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"\"}}\n\n", io.EOF},
		"NoBase64":         {frame(t, "event", "chunk", `{"bytes":"???"}`), "event: \ndata: {\n\n", io.EOF},
		"NoLineOfItsOwn":   {frame(t, "event", "chunk", `{"bytes":"eyJ0eXBlIjoiYVxuZGF0YTogeCJ9"}`), "event: \ndata: {\"type\":\"a\\ndata: x\"}\n\n", io.EOF},
		"Cut":              {append(append([]byte(nil), ping...), ping[:20]...), pinged, io.ErrUnexpectedEOF},
		"NoFrame":          {append(append([]byte(nil), ping...), strings.Repeat("x", 100)...), pinged, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := converse.Chunks(io.NopCloser(iotest.OneByteReader(bytes.NewReader(test.frames))))
			var got bytes.Buffer
			var err error
			for b := make([]byte, 7); err == nil; {
				var n int
				n, err = r.Read(b)
				got.Write(b[:n])
			}
			if got.String() != test.want || test.err != nil && !errors.Is(err, test.err) || test.err == nil && errors.Is(err, io.EOF) {
				t.Errorf("%q, %v; want %q, %v", got.String(), err, test.want, test.err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// For any input, Chunks returns only whole events.
func FuzzChunks(f *testing.F) {
	f.Add(frame(f, "event", "chunk", `{"bytes":"eyJ0eXBlIjoicGluZyJ9"}`))
	f.Add(frame(f, "exception", "throttlingException", `{"message":"wait"}`))
	f.Add([]byte("no frame"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := io.ReadAll(converse.Chunks(io.NopCloser(bytes.NewReader(raw))))
		if err == nil && len(raw) > 0 && len(raw) < 16 {
			t.Errorf("%d bytes were taken for frames", len(raw))
		}
		for event := range strings.SplitSeq(strings.TrimSuffix(string(got), "\n\n"), "\n\n") {
			if lines := strings.Split(event, "\n"); len(got) > 0 && (len(lines) != 2 || !strings.HasPrefix(lines[0], "event: ") || !strings.HasPrefix(lines[1], "data: ")) {
				t.Errorf("%q is no event", event)
			}
		}
	})
}
