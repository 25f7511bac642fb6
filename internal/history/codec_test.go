package history_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/history"
)

// fill sets every field of a struct, so that a field that the codec forgets is noticed.
func fill(t *testing.T, v any, only int) {
	t.Helper()
	s := reflect.ValueOf(v).Elem()
	for i := range s.NumField() {
		if only >= 0 && i != only {
			continue
		}
		switch f := s.Field(i); f.Kind() {
		case reflect.String:
			f.SetString("s" + fmt.Sprint(i))
		case reflect.Int, reflect.Int64:
			f.SetInt(int64(-1000 - i))
		case reflect.Uint8:
			f.SetUint(uint64(200 + i))
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			f.SetBytes([]byte{byte(i)})
		case reflect.Map:
			f.Set(reflect.ValueOf(map[string]string{"a": "1", "b": ""}))
		default:
			t.Fatalf("field %s: fill knows no %s", s.Type().Field(i).Name, f.Kind())
		}
	}
}

func TestAppendEvent(t *testing.T) {
	t.Parallel()
	events := []history.Event{
		{},
		{Slot: 1, Type: history.RunCreated, At: 1_700_000_000_000, Name: "order", Payload: []byte(`json{}`), Attributes: map[string]string{}},
		{Slot: 2, Type: history.StepCompleted, At: 5, ID: "step_charge.1", Payload: make([]byte, 300), Input: []byte{}, Attempt: 3, StartedAt: 4, Until: -9},
		{Slot: 3, Type: history.StepRetrying, Attempt: 1 << 40}, // no engine stores this any more, but one did
		{Slot: 1 << 60, Type: 255, ID: strings.Repeat("x", 70_000), Until: 1<<63 - 1, At: -1 << 62},
	}
	for only := -1; only < reflect.TypeFor[history.Event]().NumField(); only++ {
		var e history.Event
		fill(t, &e, only)
		events = append(events, e)
	}
	data := history.AppendEvents([]byte("before"), events)
	got, err := history.DecodeEvents(data[6:], nil)
	if err != nil || !bytes.HasPrefix(data, []byte("before")) {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, events) {
		t.Fatalf("got  %+v\nwant %+v", got, events)
	}
	// A truncated encoding must not decode as a shorter log.
	whole := history.AppendEvent(nil, &events[5])
	for n := 1; n < len(whole); n++ {
		if _, err := history.DecodeEvents(whole[:n], nil); err == nil {
			t.Fatalf("%d bytes of %d were read", n, len(whole))
		}
	}
}

func TestAppendRun(t *testing.T) {
	t.Parallel()
	for only := -1; only < reflect.TypeFor[history.Run]().NumField(); only++ {
		var r, got history.Run
		fill(t, &r, only)
		data := history.AppendRun(nil, &r)
		rest, err := history.DecodeRun(append(data, "rest"...), &got)
		if err != nil || string(rest) != "rest" {
			t.Fatalf("%q, %v", rest, err)
		}
		if !reflect.DeepEqual(got, r) {
			t.Fatalf("got  %+v\nwant %+v", got, r)
		}
		for n := range data {
			if _, err := history.DecodeRun(data[:n], &got); err == nil {
				t.Fatalf("%d bytes of %d were read", n, len(data))
			}
		}
	}
}

// TestDecode_Later checks that data of a later release is refused, so that no part of it
// is lost.
func TestDecode_Later(t *testing.T) {
	t.Parallel()
	event := history.AppendEvent(nil, &history.Event{Slot: 1, Type: history.Noop})
	run := history.AppendRun(nil, &history.Run{ID: "r"})
	for i, data := range [][]byte{event, run} {
		mask := 3 - i // after the length, the version, and the type of an event
		version := bytes.Clone(data)
		version[1]++
		// A bit far beyond the known ones.
		bit := slices.Concat(data[:mask], []byte{0x80, 0x80, 0x80, 0x80, 0x08}, data[mask+1:])
		bit[0] += 4
		for _, b := range [][]byte{version, bit} {
			var err error
			if i == 0 {
				_, err = history.DecodeEvents(b, nil)
			} else {
				_, err = history.DecodeRun(b, new(history.Run))
			}
			if err == nil || !strings.Contains(err.Error(), "later release") {
				t.Errorf("%q: %v", b, err)
			}
		}
	}
}

// TestDecode_Stored reads what the first release has written.
func TestDecode_Stored(t *testing.T) {
	t.Parallel()
	const event = "\x22\x01\x0c\x1f\x04\x80\xd0\xc8\xc0\xd9\x64\x08step_a.1\x01a\x05json2\x05json1\x02"
	e := history.Event{
		Slot: 2, Type: history.StepCompleted, At: 1_730_000_000_000, ID: "step_a.1", Name: "a",
		Payload: []byte("json2"), Input: []byte("json1"), Attempt: 1,
	}
	if got := history.AppendEvent(nil, &e); string(got) != event {
		t.Errorf("an event is stored as %q", got)
	}
}

func FuzzDecodeEvents(f *testing.F) {
	var e history.Event
	e.Attributes = map[string]string{"a": "b"}
	f.Add(history.AppendEvents(nil, []history.Event{e, {Slot: 2, Type: history.StepCompleted, ID: "x", Name: "y", Payload: []byte("z")}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		events, err := history.DecodeEvents(b, nil)
		if err != nil {
			return
		}
		again, err := history.DecodeEvents(history.AppendEvents(nil, events), nil)
		if err != nil || !reflect.DeepEqual(again, events) {
			t.Fatalf("got %+v, %v\nwant %+v", again, err, events)
		}
	})
}

func FuzzDecodeRun(f *testing.F) {
	f.Add(history.AppendRun(nil, &history.Run{ID: "r", Attributes: map[string]string{"a": "b"}, Recoveries: 3}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again history.Run
		if _, err := history.DecodeRun(b, &r); err != nil {
			return
		}
		rest, err := history.DecodeRun(history.AppendRun(nil, &r), &again)
		if len(r.Attributes) == 0 {
			r.Attributes = nil
		}
		if err != nil || len(rest) > 0 || !reflect.DeepEqual(again, r) {
			t.Fatalf("got %+v, %v\nwant %+v", again, err, r)
		}
	})
}

func BenchmarkAppendEvent(b *testing.B) {
	e := history.Event{
		Slot: 100, Type: history.StepCompleted, At: 1_730_000_000_000, StartedAt: 1_730_000_000_000, ID: "step_charge.100", Name: "charge",
		Payload: []byte(`json{"id":1}`), Input: []byte(`json{"id":1}`), Attempt: 1,
	}
	var buf []byte
	for range b.N {
		buf = history.AppendEvent(buf[:0], &e)
	}
	b.SetBytes(int64(len(buf)))
}
