package sandbox

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestEvent_JSON(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		event Event
		want  string
	}{
		{Event{Stream: Stdout, Cursor: 0, Data: []byte("a<b>\n")}, `{"type":"stdout","cursor":0,"data":"a<b>\n"}`},
		{Event{Stream: Stderr, Cursor: 7, Data: []byte("\xff")}, `{"type":"stderr","cursor":7,"data":"/w==","encoding":"base64"}`},
		{Event{Stream: Stderr, Cursor: 8, Data: []byte("\x1b[1mb\x1b[0m\x00")}, `{"type":"stderr","cursor":8,"data":"\u001b[1mb\u001b[0m\u0000"}`},
		{Event{Stream: Stderr, Cursor: 9, Data: make([]byte, 30)}, `{"type":"stderr","cursor":9,"data":"` + strings.Repeat("AAAA", 10) + `","encoding":"base64"}`},
		{Event{Truncated: true, Cursor: 9}, `{"type":"truncated","cursor":9}`},
		{Event{Exit: &Exit{Code: 1, At: at, Duration: Duration(time.Second)}}, `{"type":"exit","exit":{"code":1,"at":"2026-11-20T00:00:00Z","duration_ms":1000}}`},
	} {
		b, err := json.Marshal(tt.event)
		if tt.event.Stream == Stdout {
			b, err = tt.event.MarshalJSON() // json.Marshal escapes < again
		}
		if err != nil || string(b) != tt.want {
			t.Errorf("%+v is %s, %v; want %s", tt.event, b, err, tt.want)
		}
		var got Event
		if err := json.Unmarshal([]byte(tt.want), &got); err != nil || !reflect.DeepEqual(got, tt.event) {
			t.Errorf("%s is %+v, %v", tt.want, got, err)
		}
	}
	if b, err := (Event{}).MarshalJSON(); err == nil {
		t.Errorf("an empty event is %s", b)
	}
}

// Output takes at most about twice its bytes as JSON, whatever its content.
func TestEvent_Size(t *testing.T) {
	t.Parallel()
	for c := range 256 {
		for name, data := range map[string][]byte{
			"alone": bytes.Repeat([]byte{byte(c)}, 10_000), "every other": bytes.Repeat([]byte{byte(c), 'x'}, 5_000),
			"every eighth": bytes.Repeat([]byte{'a', 'b', 'c', byte(c), 'd', 'e', 'f', 'g'}, 1_250),
		} {
			b, err := Event{Stream: Stdout, Data: data}.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			if len(b) > 2*len(data)+200 {
				t.Errorf("%d bytes with %#02x %s take %d", len(data), c, name, len(b))
			}
			var got Event
			if err := json.Unmarshal(b, &got); err != nil || !bytes.Equal(got.Data, data) {
				t.Errorf("%#02x %s came as %.100q, %v", c, name, got.Data, err)
			}
		}
	}
}

// No input makes the decoder panic, and accepted input is written unchanged.
func FuzzEvent(f *testing.F) {
	for _, s := range []string{
		`{"type":"start","command":{"id":"c","argv":["a"]}}`, `{"type":"stdout","cursor":1,"data":"x"}`,
		`{"type":"stderr","cursor":1,"data":"/w==","encoding":"base64"}`, `{"type":"truncated","cursor":5}`,
		`{"type":"exit","exit":{"code":1,"at":"2026-11-20T00:00:00Z"}}`, `{"type":"exit"}`, `{"type":"stdout","cursor":-1,"data":""}`, `null`, `[]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var e Event
		if err := json.Unmarshal(b, &e); err != nil {
			return
		}
		again, err := e.MarshalJSON()
		if err != nil {
			return // such as a time beyond year 9999
		}
		var f Event
		if err := json.Unmarshal(again, &f); err != nil {
			t.Fatalf("%s was written as %s: %v", b, again, err)
		}
		if string(e.Data) != string(f.Data) || e.Cursor != f.Cursor || e.Stream != f.Stream || e.Truncated != f.Truncated || (e.Exit == nil) != (f.Exit == nil) || (e.Command == nil) != (f.Command == nil) {
			t.Errorf("%s was written as %s", b, again)
		}
	})
}
