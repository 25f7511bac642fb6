package protocol_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/workflowd/protocol"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fill gives every field of v a different value.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("text", *n))
	case reflect.Int, reflect.Int64:
		v.SetInt(1_700_000_000_000 + int64(*n))
	case reflect.Uint8:
		v.SetUint(uint64(history.StepCompleted))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"k": fmt.Sprint(*n)}))
	case reflect.Slice:
		v.Set(reflect.ValueOf(fmt.Appendf(nil, "json%d", *n)))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	default:
		panic(v.Kind())
	}
}

// through encodes a value as JSON and decodes it.
func through[Wire any](t *testing.T, v *Wire) *Wire {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	out := new(Wire)
	if err := json.Unmarshal(b, out); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return out
}

// Every field is sent, including fields added later, except data for runtimes of other
// languages.
func TestConversions(t *testing.T) {
	t.Parallel()
	n := 0
	var run history.Run
	fill(reflect.ValueOf(&run).Elem(), &n)
	run.Extra = nil // it belongs to another runtime
	if got := *through(t, protocol.RunOf(&run)).Run(); !reflect.DeepEqual(got, run) {
		t.Errorf("run\n%+v\n%+v", got, run)
	}
	var event history.Event
	fill(reflect.ValueOf(&event).Elem(), &n)
	event.Extra = nil
	if got := through(t, protocol.EventOf(&event)).Event(); !reflect.DeepEqual(got, event) {
		t.Errorf("event\n%+v\n%+v", got, event)
	}
	var hook history.Hook
	fill(reflect.ValueOf(&hook).Elem(), &n)
	if got := *through(t, protocol.HookOf(&hook)).Hook(); !reflect.DeepEqual(got, hook) {
		t.Errorf("hook\n%+v\n%+v", got, hook)
	}
	var schedule history.Schedule
	fill(reflect.ValueOf(&schedule).Elem(), &n)
	if got := *through(t, protocol.ScheduleOf(&schedule)).Schedule(); !reflect.DeepEqual(got, schedule) {
		t.Errorf("schedule\n%+v\n%+v", got, schedule)
	}
	for d, want := range map[time.Duration]time.Duration{0: 0, 1: time.Millisecond, -1: -time.Millisecond, time.Hour: time.Hour, -time.Second: -time.Second} {
		if got := protocol.Duration(protocol.DurationMillis(d)); got != want {
			t.Errorf("%v travels as %v, want %v", d, got, want)
		}
	}
}

func TestPayload(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	packed.WriteString("gzip")
	z := gzip.NewWriter(&packed)
	io.WriteString(z, `json{"a":1}`)
	z.Close()
	for _, tt := range []struct{ in, want, back string }{
		{"", "null", ""},
		{`json{"a":"<1>"}`, `{"json":{"a":"<1>"}}`, `json{"a":"<1>"}`},
		{"jsonnull", `{"json":null}`, "jsonnull"},
		{packed.String(), `{"json":{"a":1}}`, `json{"a":1}`},
		{"json{", `{"base64":"anNvbns="}`, "json{"},
		{"gzip?", `{"base64":"Z3ppcD8="}`, "gzip?"},
		{"encr\x00\xff", `{"base64":"ZW5jcgD/"}`, "encr\x00\xff"},
	} {
		b, err := protocol.Payload(tt.in).MarshalJSON()
		if err != nil || string(b) != tt.want {
			t.Errorf("%q travels as %s, %v, want %s", tt.in, b, err, tt.want)
		}
		var back protocol.Payload
		if err := json.Unmarshal(b, &back); err != nil || string(back) != tt.back {
			t.Errorf("%s is %q, %v, want %q", b, back, err, tt.back)
		}
		if b, err = json.Marshal(protocol.Exact(tt.in)); err != nil {
			t.Error(err)
		}
		var exact protocol.Exact
		if err := json.Unmarshal(b, &exact); err != nil || string(exact) != tt.in {
			t.Errorf("%s is %q, %v, want %q", b, exact, err, tt.in)
		}
	}
	for _, bad := range []string{`"x"`, `1`, `{}`, `{"json":1,"base64":"AA=="}`, `{"text":"x"}`, `{"base64":"?"}`} {
		if err := json.Unmarshal([]byte(bad), new(protocol.Payload)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

var messages = []protocol.Message{
	{Kind: protocol.KindHello, Body: []byte(`{"version":1}`)},
	{Kind: protocol.KindAppend, Seq: 1 << 40, Run: "r", Lease: 7, Events: []history.Event{{Type: history.StepCompleted, ID: "a", Payload: []byte("jsonx")}, {Type: history.WaitCreated, Until: 5}}},
	{Kind: protocol.KindStart, Seq: 2, Run: "r", Lease: 7, Body: []byte(`{"workflow":"w"}`), Events: []history.Event{{Type: history.ChildStarted, Token: "c"}}},
	{Kind: protocol.KindRelease, Run: "r", Lease: 7, Slot: 9},
	{Kind: protocol.KindWrite, Seq: 5, Run: "r", Lease: 7, Stream: "s", Chunks: [][]byte{[]byte("json1"), {}, []byte("json2")}, End: true},
	{Kind: protocol.KindWrite, Seq: 6, Run: "r", Lease: 7},
	{Kind: protocol.KindClose},
	{Kind: protocol.KindWelcome},
	{Kind: protocol.KindRefused, Body: []byte(`{"code":"invalid","message":"no"}`)},
	{Kind: protocol.KindAssign, Run: "r", Lease: 7, Recovered: true, More: true, Info: &history.Run{ID: "r", Workflow: "w", Status: history.Running, CreatedAt: 1, UpdatedAt: 2}, Events: []history.Event{{Type: history.RunCreated, Slot: 1, At: 3}}},
	{Kind: protocol.KindDeliver, Run: "r", Lease: 7, Events: []history.Event{{Type: history.RunStarted, Slot: 2, At: 3}}},
	{Kind: protocol.KindRevoke, Run: "r", Lease: 7},
	{Kind: protocol.KindDone, Seq: 3, Body: []byte(`{"code":"conflict","message":"no"}`)},
	{Kind: protocol.KindDone, Seq: 4, Body: []byte{}},
	{Kind: protocol.KindClosed},
	{Kind: protocol.KindPing},
}

func encode(t testing.TB, all []protocol.Message) []byte {
	t.Helper()
	var b []byte
	for i := range all {
		var err error
		if b, err = protocol.AppendMessage(b, &all[i]); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func TestMessages(t *testing.T) {
	t.Parallel()
	stream := encode(t, messages)
	r := protocol.NewMessageReader(bytes.NewReader(stream))
	for _, want := range messages {
		got, err := r.Next()
		if err != nil {
			t.Fatalf("kind %d: %v", want.Kind, err)
		}
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("got %+v\nwant %+v", *got, want)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	for cut := 1; cut < len(stream); cut++ {
		r := protocol.NewMessageReader(bytes.NewReader(stream[:cut]))
		var err error
		for err == nil {
			_, err = r.Next()
		}
		if err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
}

// Small parts are counted before memory is allocated for them.
func TestMessages_ManyParts(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	for kind, part := range map[protocol.Kind][]byte{
		protocol.KindAppend: history.AppendEvent(nil, &history.Event{}),
		protocol.KindWrite:  {0}, // an empty chunk
	} {
		// Encoded by hand, because decoding into memory would take too much.
		b := append(encode(t, []protocol.Message{{Kind: kind}}), bytes.Repeat(part, most+1)...)
		binary.BigEndian.PutUint32(b, uint32(len(b)-4))
		_, err := protocol.NewMessageReader(bytes.NewReader(b)).Next()
		if err == nil || !strings.Contains(err.Error(), "more than 1048576 events or chunks") {
			t.Errorf("kind %d: %v", kind, err)
		}
	}
	m := protocol.Message{Kind: protocol.KindAppend, Events: make([]history.Event, 10_000)}
	got, err := protocol.NewMessageReader(bytes.NewReader(encode(t, []protocol.Message{m}))).Next()
	if err != nil || len(got.Events) != 10_000 {
		t.Errorf("10,000 events: %v", err)
	}
}

// A length without data allocates no memory.
func TestMessages_HonestLengths(t *testing.T) {
	long := append([]byte{0x0f, 0xff, 0xff, 0xff}, make([]byte, 100)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := protocol.NewMessageReader(bytes.NewReader(long)).Next()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, io.ErrUnexpectedEOF) || n > 16<<20 {
		t.Errorf("%d bytes for a length that is a lie, %v", n, err)
	}
	for _, head := range []string{"\x00\x00\x00\x00", "\xff\xff\xff\xff", "GET "} {
		if _, err := protocol.NewMessageReader(strings.NewReader(head + "xxxxxx")).Next(); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("length %q: %v", head, err)
		}
	}
}

// Reading ends on any input, and the messages read can be sent again unchanged.
func FuzzMessages(f *testing.F) {
	f.Add(encode(f, messages))
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := protocol.NewMessageReader(bytes.NewReader(stream))
		for {
			m, err := r.Next()
			if err != nil {
				return
			}
			b, err := protocol.AppendMessage(nil, m)
			if err != nil {
				t.Fatalf("%+v: %v", m, err)
			}
			again, err := protocol.NewMessageReader(bytes.NewReader(b)).Next()
			if err != nil || !reflect.DeepEqual(again.Events, m.Events) || again.Run != m.Run || again.Seq != m.Seq || again.Lease != m.Lease {
				t.Fatalf("%+v\n%+v, %v", m, again, err)
			}
		}
	})
}

// pair returns two connected links; serve runs both and returns why they ended.
func pair(handleA, handleB func(*protocol.Message) error) (a, b *protocol.Link, serve func() (error, error)) {
	near, far := net.Pipe()
	a, b = protocol.NewLink(near), protocol.NewLink(far)
	return a, b, func() (errA, errB error) {
		var both sync.WaitGroup
		both.Go(func() { errA = a.Serve(handleA) })
		both.Go(func() { errB = b.Serve(handleB) })
		both.Wait()
		return errA, errB
	}
}

func ignore(*protocol.Message) error { return nil }

func TestLink(t *testing.T) {
	t.Parallel()
	var got []uint64
	var a, b *protocol.Link
	a, b, serve := pair(ignore, func(m *protocol.Message) error {
		got = append(got, m.Seq)
		if m.Seq == 1000 {
			b.Finish() // queued messages are sent
			return b.Send(protocol.Message{Kind: protocol.KindClosed})
		}
		return nil
	})
	go func() {
		for i := range 1000 {
			a.WaitForRoom()
			if err := a.Send(protocol.Message{Kind: protocol.KindAppend, Seq: uint64(i + 1), Events: []history.Event{{Payload: make([]byte, 20<<10)}}}); err != nil {
				t.Error(err)
			}
		}
	}()
	errA, errB := serve()
	for i, seq := range got {
		if seq != uint64(i+1) {
			t.Fatalf("message %d is number %d", i, seq)
		}
	}
	if len(got) != 1000 || !errors.Is(errB, protocol.ErrLinkClosed) || errA == nil {
		t.Errorf("%d messages, %v, %v", len(got), errA, errB)
	}
	if err := a.Send(protocol.Message{Kind: protocol.KindPing}); err == nil {
		t.Error("sent over a link that has ended")
	}
	a.WaitForRoom() // must not wait for ever
	if err := protocol.NewLink(nil).Send(protocol.Message{Kind: protocol.KindAppend, Events: []history.Event{{Payload: make([]byte, protocol.MaxMessage)}}}); cay.CodeOf(err) != cay.TooLarge {
		t.Errorf("a very large message: %v", err)
	}
}

// A silent link stays open if its other side lives, and ends if the other side is gone.
func TestLink_Silence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, _, serve := pair(ignore, ignore)
		time.AfterFunc(time.Hour, func() { a.Close(nil) })
		begin := time.Now()
		if errA, _ := serve(); !errors.Is(errA, protocol.ErrLinkClosed) || time.Since(begin) != time.Hour {
			t.Errorf("after %v: %v", time.Since(begin), errA)
		}

		near, far := net.Pipe()
		defer far.Close()
		go io.Copy(io.Discard, far)
		begin = time.Now()
		if err := protocol.NewLink(near).Serve(ignore); cay.CodeOf(err) != cay.Unavailable || time.Since(begin) != protocol.Silence {
			t.Errorf("a side that says nothing, after %v: %v", time.Since(begin), err)
		}

		near, far = net.Pipe()
		defer far.Close()
		l := protocol.NewLink(near)
		if err := l.Send(protocol.Message{Kind: protocol.KindClose}); err != nil {
			t.Error(err)
		}
		ping := encode(t, []protocol.Message{{Kind: protocol.KindPing}})
		var pinging sync.WaitGroup
		pinging.Go(func() {
			for {
				if _, err := far.Write(ping); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
		begin = time.Now()
		if err := l.Serve(ignore); cay.CodeOf(err) != cay.Unavailable || time.Since(begin) != protocol.Silence {
			t.Errorf("a side that takes nothing, after %v: %v", time.Since(begin), err)
		}
		far.Close()
		pinging.Wait()
	})
}
