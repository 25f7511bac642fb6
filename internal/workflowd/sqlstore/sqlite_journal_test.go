package sqlstore

import (
	"reflect"
	"testing"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

// TestSameButProgress changes each field of a run: a field that sameButProgress forgets
// would be lost in a crash.
func TestSameButProgress(t *testing.T) {
	t.Parallel()
	for i := range reflect.TypeFor[history.Run]().NumField() {
		var a, b history.Run
		switch f := reflect.ValueOf(&b).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			f.SetBytes([]byte{1})
		case reflect.Map:
			f.Set(reflect.ValueOf(map[string]string{"a": "b"}))
		default:
			f.SetInt(1)
		}
		name := reflect.TypeFor[history.Run]().Field(i).Name
		if same := sameButProgress(&a, &b); same != (name == "Events" || name == "UpdatedAt") {
			t.Errorf("with another %s they are the same: %t", name, same)
		}
	}
}

// journalRecords returns records of every kind.
func journalRecords() *workflowd.Records {
	a := history.Run{ID: "a", Project: "p", Workflow: "w", Status: history.Running, Events: 2, Attributes: map[string]string{"k": "v"}}
	b := history.Run{ID: "b", Workflow: "w", Status: history.Pending, NotBefore: 5, Key: "key"}
	return &workflowd.Records{
		Runs: []history.Run{a, b},
		Logs: []workflowd.Log{{Run: &a, Events: []history.Event{
			{Slot: 1, Type: history.HookCreated, ID: "h", Token: "t", Payload: []byte("m")},
			{Slot: 2, Type: history.WaitCreated, ID: "x", Until: 9},
		}}},
		Chunks: []workflowd.StreamChunks{
			{Run: "a", Stream: "out", Chunks: []history.Chunk{{Index: 7, Data: []byte("x")}, {Index: 8, Data: []byte{}}}},
			{Run: "b", Stream: "out", Close: true},
		},
		Asleep: []string{"a"}, Awake: []string{"b"},
	}
}

// TestReplayRecords checks that replaying the journal gives the applied state.
func TestReplayRecords(t *testing.T) {
	t.Parallel()
	applied, replayed, g := newTail(), newTail(), newGroup()
	r := journalRecords()
	g.encode(applied, r)
	first := append([]byte{}, g.data...)
	applied.put(r, &g)
	if err := replayRecords(first, replayed); err != nil {
		t.Fatal(err)
	}
	// A second row repeats less.
	more := *r.Logs[0].Run
	more.Events = 3
	again := &workflowd.Records{Logs: []workflowd.Log{{Run: &more, Events: []history.Event{{Slot: 3, Type: history.HookDisposed, ID: "h", At: 4}}}}}
	more.UpdatedAt = 4
	g.encode(applied, again)
	if len(g.data) > 30 {
		t.Errorf("%d bytes for one small event", len(g.data))
	}
	applied.put(again, &g)
	if err := replayRecords(g.data, replayed); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(replayed, applied) {
		for id, tr := range applied.runs {
			if !reflect.DeepEqual(tr, replayed.runs[id]) {
				t.Errorf("run %s: replayed\n%+v\napplied\n%+v", id, replayed.runs[id], tr)
			}
		}
		t.Error("the tails differ")
	}
}

// FuzzReplayRecords checks that damaged rows cause no panic.
func FuzzReplayRecords(f *testing.F) {
	g := newGroup()
	g.encode(newTail(), journalRecords())
	f.Add(g.data)
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = replayRecords(b, newTail())
	})
}
