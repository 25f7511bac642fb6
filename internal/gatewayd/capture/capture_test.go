package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/gatewayd/guard"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/secret"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// open returns a store in a directory; unset rules get their defaults.
func open(t *testing.T, dir string, r *Rules, now time.Time) *Store {
	t.Helper()
	checktest.OK(t, r.Check())
	box, err := secret.Open(filepath.Join(dir, "secret.key"))
	checktest.OK(t, err)
	d := dbtest.OpenFile(t, filepath.Join(dir, "gateway.db"))
	s, err := Open(t.Context(), d, box, Options{Rules: func() *Rules { return r }, Now: func() time.Time { return now }})
	checktest.OK(t, err)
	t.Cleanup(s.Close)
	return s
}

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func request(n int) *gateway.Request {
	return &gateway.Request{ID: fmt.Sprintf("gen_%06d", n), TeamID: "team", ProjectID: "prj", CreatedAt: noon}
}

// offer queues a call whose answer is the text what.
func offer(s *Store, r *gateway.Request, rules *Rules, asked, what string) bool {
	tee := s.Tee(rules)
	for part := range bytes.SplitAfterSeq([]byte(what), []byte(" ")) { // written in parts, as an answer is sent
		tee.Write(part)
	}
	return s.Offer(r, rules, &Body{ContentType: "application/json", Bytes: []byte(asked), Size: int64(len(asked))}, tee, "text/plain; charset=utf-8")
}

// Bodies are redacted before they are cut, sealed, and visible only to their team and
// project. Bodies that were written survive a kill of the process.
func TestStore(t *testing.T) {
	t.Parallel()
	redact, err := guard.NewRedactor([]guard.Pattern{{Preset: "email"}})
	checktest.OK(t, err)
	rules := &Rules{Requests: true, Answers: true, Max: 1 << 10, Redact: redact}
	dir := t.TempDir()
	s := open(t, dir, rules, noon)
	// The address crosses the cut; neither part of it is stored.
	long := strings.Repeat("x", 1<<10-4) + " joe@example.com " + strings.Repeat("y", 1<<20)
	if !offer(s, request(1), rules, `{"a":"sesame, joe\u0040example.com"}`, long) {
		t.Fatal("it was not taken")
	}
	s.Close()
	if offer(s, request(2), rules, `{}`, "late") {
		t.Error("a store that is closed takes bodies")
	}
	if n := s.held.Load(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
	got, err := s.Get(t.Context(), "team", "prj", "gen_000001")
	checktest.OK(t, err)
	if got.Request.Text != `{"a":"sesame, [email]"}` || got.Request.Cut || got.Answer.Size != int64(len(long)) || !got.Answer.Cut ||
		len(got.Answer.Text) > 1<<10 || strings.Contains(got.Answer.Text, "joe") || !strings.HasSuffix(got.Answer.Text, "x [em") {
		t.Errorf("%+v\n%+v", got.Request, got.Answer)
	}
	for _, who := range [][2]string{{"other", ""}, {"team", "prj_other"}} {
		if _, err := s.Get(t.Context(), who[0], who[1], "gen_000001"); cay.CodeOf(err) != cay.NotFound {
			t.Errorf("%v gets %v", who, err)
		}
		if err := s.Delete(t.Context(), who[0], who[1], "gen_000001"); cay.CodeOf(err) != cay.NotFound {
			t.Errorf("%v may delete: %v", who, err)
		}
	}
	// This is the state that a kill leaves: the files of an open database.
	copied := t.TempDir()
	checktest.OK(t, os.CopyFS(copied, os.DirFS(dir)))
	entries, err := os.ReadDir(copied)
	checktest.OK(t, err)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(copied, e.Name()))
		checktest.OK(t, err)
		if bytes.Contains(b, []byte("sesame")) {
			t.Errorf("%s has a body one can read", e.Name())
		}
	}
	again := open(t, copied, rules, noon)
	if got, err := again.Get(t.Context(), "team", "", "gen_000001"); err != nil || !strings.Contains(got.Request.Text, "sesame") {
		t.Errorf("after a crash it is %+v, %v", got, err)
	}
	if b := again.Stats().Bytes; b == 0 || b != s.Stats().Bytes {
		t.Errorf("%d bytes are counted, and were %d", b, s.Stats().Bytes)
	}
	checktest.OK(t, again.Delete(t.Context(), "team", "", "gen_000001"))
	if b := again.Stats().Bytes; b != 0 {
		t.Errorf("%d bytes are left", b)
	}
}

// The oldest bodies are deleted first if the quota is exceeded, and expired bodies are
// deleted.
func TestStore_Bounds(t *testing.T) {
	t.Parallel()
	rules := &Rules{Answers: true, Max: 4 << 10, Quota: 64 << 10, Retention: time.Hour}
	dir := t.TempDir()
	s := open(t, dir, rules, noon)
	const all = 600
	for i := range all {
		for !offer(s, request(i), rules, `{}`, strings.Repeat("x", 4000)) { // the queue is full for a moment
			checktest.OK(t, t.Context().Err())
		}
	}
	s.Close()
	if b := s.Stats().Bytes; b > rules.Quota || b < rules.Quota/2 {
		t.Errorf("%d bytes are kept", b)
	}
	if _, err := s.Get(t.Context(), "team", "", request(all-1).ID); err != nil {
		t.Error(err)
	}
	if _, err := s.Get(t.Context(), "team", "", request(0).ID); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("the oldest: %v", err)
	}
	s.opts.Now = func() time.Time { return noon.Add(2 * time.Hour) }
	s.prune(t.Context())
	if b := s.Stats().Bytes; b != 0 {
		t.Errorf("after their time %d bytes are kept", b)
	}
}

// If there is no room, bodies are omitted, and no caller waits.
func TestStore_Full(t *testing.T) {
	t.Parallel()
	rules := &Rules{Answers: true, Requests: true, Max: 8 << 20, Quota: 1 << 30}
	s := open(t, t.TempDir(), rules, noon)
	var tees []*Tee
	large := bytes.Repeat([]byte("x"), 8<<20)
	for range 8 {
		tee := s.Tee(rules)
		tee.Write(large)
		tees = append(tees, tee)
	}
	if offer(s, request(1), rules, `{}`, "x") || offer(s, request(2), rules, `{}`, "") {
		t.Error("there was room for more")
	}
	late := s.Tee(rules)
	late.Write([]byte("a"))
	for _, tee := range tees {
		tee.Discard()
	}
	late.Write([]byte("b")) // it does not go on in the middle
	if s.Offer(request(3), rules, nil, late, "text/plain") {
		t.Error("a body without its beginning was taken")
	}
	if !offer(s, request(4), rules, `{}`, "x") {
		t.Error("there is room again, and it was not taken")
	}
	s.Close()
	if st := s.Stats(); st.Dropped != 3 || st.Kept != 1 || s.held.Load() != 0 {
		t.Errorf("%+v, %d bytes held", st, s.held.Load())
	}
}

func TestRules_Wants(t *testing.T) {
	t.Parallel()
	r := Rules{Keys: []string{"k1"}, Models: []string{"openai/*", "a/b"}}
	for _, tt := range []struct {
		key, asked, served string
		want               bool
	}{{"k1", "openai/gpt/x", "", true}, {"k1", "fast", "a/b", true}, {"k2", "a/b", "a/b", false}, {"k1", "a/c", "", false}, {"k1", "", "", false}} {
		if got := r.Wants(tt.key, tt.asked, tt.served); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
	if !(&Rules{}).Wants("", "") {
		t.Error("without a filter something is left out")
	}
}

// Queued bodies count as stored, and a caller that asks for them waits; bodies not
// written before a kill are missing, and Has does not list them.
func TestStore_Has(t *testing.T) {
	t.Parallel()
	rules := &Rules{Requests: true, Answers: true}
	dir := t.TempDir()
	s := open(t, dir, rules, noon)
	ids := []string{"gen_000001", "gen_000002", "gen_000003"}
	has := func(s *Store) string {
		t.Helper()
		has, err := s.Has(t.Context(), ids)
		checktest.OK(t, err)
		return fmt.Sprint(has["gen_000001"], has["gen_000002"], has["gen_000003"])
	}
	if !offer(s, request(1), rules, `{}`, "first") {
		t.Fatal("it was not taken")
	}
	if _, err := s.Get(t.Context(), "team", "prj", "gen_000001"); err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	got := make(chan error, 1)
	checktest.OK(t, s.rows.db.Write(t.Context(), func(*db.Tx) error { // blocks the writer of the store
		if !offer(s, request(2), rules, `{}`, "second") {
			t.Error("it was not taken")
		}
		if all := has(s); all != "true true false" {
			t.Errorf("before it is written: %s", all)
		}
		go func() {
			b, err := s.Get(t.Context(), "team", "prj", "gen_000002")
			if err == nil && b.Answer.Text != "second" {
				err = fmt.Errorf("the answer is %q", b.Answer.Text)
			}
			got <- err
		}()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Get(ctx, "team", "prj", "gen_000002"); !errors.Is(err, context.Canceled) {
			t.Errorf("who does not wait for it gets %v", err)
		}
		return os.CopyFS(copied, os.DirFS(dir))
	}))
	if err := <-got; err != nil {
		t.Error(err)
	}
	if all := has(s); all != "true true false" {
		t.Errorf("when it is written: %s", all)
	}
	checktest.OK(t, s.Delete(t.Context(), "team", "prj", "gen_000001"))
	if all := has(s); all != "false true false" {
		t.Errorf("when the first is deleted: %s", all)
	}
	if all := has(open(t, copied, rules, noon)); all != "true false false" {
		t.Errorf("after a crash before the second is written: %s", all)
	}
	if len(s.pending) != 0 {
		t.Errorf("%d are still awaited", len(s.pending))
	}
}
