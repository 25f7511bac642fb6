package cache

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

func key(t testing.TB, q Question) Key {
	t.Helper()
	if q.Caller == nil {
		q.Caller = &ledger.Caller{TeamID: "t", ProjectID: "p", KeyID: "k"}
	}
	k, err := q.Key()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestQuestion_Key(t *testing.T) {
	t.Parallel()
	base := Question{Surface: "messages", Model: "a/b", Body: []byte(`{"a":[1,"x"],"b":{"c":null,"d":true}}`)}
	with := func(change func(*Question)) Question { q := base; change(&q); return q }
	for name, q := range map[string]Question{
		"spaces": with(func(q *Question) { q.Body = []byte(" {\n\"a\": [1, \"x\"], \"b\": {\"c\":null,\"d\":true}} ") }),
		"order":  with(func(q *Question) { q.Body = []byte(`{"b":{"d":true,"c":null},"a":[1,"x"]}`) }),
		"escape": with(func(q *Question) { q.Body = []byte(`{"\u0061":[1,"\u0078"],"b":{"c":null,"d":true}}`) }),
		"tags of the caller": with(func(q *Question) {
			q.Caller = &ledger.Caller{TeamID: "t", ProjectID: "p", KeyID: "k", Tags: []string{"x"}}
		}),
	} {
		if key(t, q) != key(t, base) {
			t.Errorf("%s: another key", name)
		}
	}
	caller := func(c ledger.Caller) Question { return with(func(q *Question) { q.Caller = &c }) }
	body := func(b string) Question { return with(func(q *Question) { q.Body = []byte(b) }) }
	seen := map[Key]string{key(t, base): "base"}
	for name, q := range map[string]Question{
		"key": caller(ledger.Caller{TeamID: "t", ProjectID: "p", KeyID: "k2"}), "team": caller(ledger.Caller{TeamID: "t2", ProjectID: "p", KeyID: "k"}),
		"project": caller(ledger.Caller{TeamID: "t", ProjectID: "p2", KeyID: "k"}), "user": caller(ledger.Caller{TeamID: "t", ProjectID: "p", KeyID: "k", User: "u"}),
		"where one ends": caller(ledger.Caller{TeamID: "tp", ProjectID: "", KeyID: "k"}),
		"surface":        with(func(q *Question) { q.Surface = "x" }), "version": with(func(q *Question) { q.Version = "3" }),
		"variant": with(func(q *Question) { q.Variant = "beta" }), "model": with(func(q *Question) { q.Model = "a/c" }),
		"stream": with(func(q *Question) { q.Stream = true }),
		"value":  body(`{"a":[2,"x"],"b":{"c":null,"d":true}}`), "number": body(`{"a":[1.0,"x"],"b":{"c":null,"d":true}}`),
		"type": body(`{"a":["1","x"],"b":{"c":null,"d":true}}`), "order of a list": body(`{"a":["x",1],"b":{"c":null,"d":true}}`),
		"missing": body(`{"a":[1,"x"],"b":{"d":true}}`), "nesting": body(`{"a":[1,"x"],"b":{"c":null},"d":true}`),
		"lists in lists": body(`[[1],2]`), "lists after lists": body(`[[1,2]]`), "empty": body(`{}`), "empty list": body(`[]`), "null": body(`null`),
		"surrogate": body("\"\xff\""[:2] + `b"`),
	} {
		k := key(t, q)
		if other := seen[k]; other != "" {
			t.Errorf("%s has the key of %s", name, other)
		}
		seen[k] = name
	}
	for _, bad := range []string{``, `{`, `{} {}`, `{"a":1,"a":1}`, `{"x":{"a":1,"\u0061":2}}`, strings.Repeat("[", 600) + strings.Repeat("]", 600)} {
		q := body(bad)
		q.Caller = &ledger.Caller{}
		if _, err := q.Key(); err == nil {
			t.Errorf("%.40q has a key", bad)
		}
	}
}

func FuzzQuestion_Key(f *testing.F) {
	f.Add([]byte(`{"b":1,"a":[null,{"x":"é"}]}`))
	f.Add([]byte(`{"a":1,"a":2}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		q := Question{Caller: &ledger.Caller{}, Body: body}
		k, err := q.Key()
		if err != nil {
			return
		}
		q.Body = append(append([]byte(" \n"), body...), ' ')
		if again, err := q.Key(); err != nil || again != k {
			t.Fatalf("%q with spaces around it: %v", body, err)
		}
	})
}

func entry(n int) *Entry { return &Entry{Body: bytes.Repeat([]byte("x"), n)} }

func TestCache_Bounds(t *testing.T) {
	t.Parallel()
	c := New(10*overhead, 4*overhead)
	k := func(i int) Key { return key(t, Question{Body: fmt.Append(nil, i)}) }
	for i := range 3 {
		if !c.Put(k(i), entry(2*overhead), time.Hour) { // 3 KiB each
			t.Fatalf("%d is not kept", i)
		}
	}
	if c.Get(k(0)) == nil { // now 1 was not used for longest
		t.Fatal("0 is gone")
	}
	if !c.Put(k(3), entry(2*overhead), time.Hour) || c.Get(k(1)) != nil || c.Get(k(0)) == nil || c.Get(k(2)) == nil || c.Get(k(3)) == nil {
		t.Error("not the one that was not used for longest went")
	}
	if c.Put(k(4), entry(4*overhead+1), time.Hour) || c.Get(k(4)) != nil {
		t.Error("an answer that is too large is kept")
	}
	if c.Put(k(4), entry(1), 0) {
		t.Error("an answer is kept for no time")
	}
	c.Put(k(0), entry(1), time.Hour) // smaller, in place of the old one
	if u := c.Usage(); u.Entries != 3 || u.Bytes != 7*overhead+1 {
		t.Errorf("%+v", u)
	}
}

func TestCache_Expires(t *testing.T) {
	t.Parallel()
	c := New(0, 0)
	now := time.Now()
	c.now = func() time.Time { return now }
	a, b := key(t, Question{Body: []byte("1")}), key(t, Question{Body: []byte("2")})
	c.Put(a, entry(1), time.Minute)
	c.Put(b, entry(1), 100*MaxTTL)
	now = now.Add(time.Minute - 1)
	if c.Get(a) == nil {
		t.Error("it is gone before its time")
	}
	now = now.Add(1)
	if c.Get(a) != nil {
		t.Error("it is there after its time")
	}
	now = now.Add(MaxTTL)
	if c.Get(b) != nil || c.Usage() != (Usage{}) {
		t.Errorf("more than the longest: %+v", c.Usage())
	}
}

func TestRecorder(t *testing.T) {
	t.Parallel()
	head := http.Header{"Content-Type": {"text/event-stream"}, "X-Cay-Cost": {"0.1"}, "Set-Cookie": {"a"}}
	ok := gateway.Request{Status: gateway.Succeeded, HTTPStatus: 200, Tokens: gateway.Tokens{Input: 5}}
	failed, cancelled, refused := ok, ok, ok
	failed.Status, cancelled.Status, refused.HTTPStatus = gateway.Failed, gateway.Cancelled, 429
	k := key(t, Question{Body: []byte("{}")})
	for name, record := range map[string]gateway.Request{"failed": failed, "cancelled": cancelled, "refused": refused} {
		c := New(0, 0)
		r := c.Record(k, time.Hour)
		r.Write([]byte("x"))
		if r.Keep(head, &record) || c.Get(k) != nil {
			t.Errorf("%s is kept", name)
		}
	}
	c := New(1<<20, 10)
	large := c.Record(k, time.Hour)
	for range 3 {
		if n, err := large.Write([]byte("12345")); n != 5 || err != nil {
			t.Error(n, err)
		}
	}
	if large.Keep(head, &ok) {
		t.Error("an answer that is too large is kept")
	}
	if c.Record(k, time.Hour).Keep(head, &ok) {
		t.Error("nothing is kept")
	}
	r := c.Record(k, time.Hour)
	r.Write([]byte("data: "))
	r.Write([]byte("x\n\n"))
	if !r.Keep(head, &ok) {
		t.Fatal("it is not kept")
	}
	if r.Keep(head, &ok) {
		t.Error("it is kept twice")
	}
	e := c.Get(k)
	w := httptest.NewRecorder()
	if err := e.Replay(w); err != nil || w.Code != 200 || w.Body.String() != "data: x\n\n" || e.Record.Tokens.Input != 5 {
		t.Errorf("%v %+v", err, e)
	}
	if fmt.Sprint(w.Header()) != "map[Content-Type:[text/event-stream] X-Cay-Cache:[hit]]" {
		t.Errorf("%v", w.Header())
	}
}

func TestCache_Concurrent(t *testing.T) {
	t.Parallel()
	c := New(20*overhead, 0)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 500 {
				k := key(t, Question{Body: fmt.Append(nil, (i*7+g)%40)})
				if e := c.Get(k); e != nil && len(e.Body) != 100 {
					t.Error("half an answer")
				}
				c.Put(k, entry(100), time.Hour)
			}
		})
	}
	all.Wait()
	if u := c.Usage(); u.Bytes > 20*overhead || u.Entries == 0 || u.Bytes != int64(u.Entries)*(overhead+100) {
		t.Errorf("%+v", u)
	}
}
