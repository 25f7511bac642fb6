package crosstest_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// upstreams and surfaces return the formats of formats_test.go by name.
func upstreams() map[string]hub.Upstream {
	all := map[string]hub.Upstream{}
	for _, f := range formats() {
		if u, ok := f.(hub.Upstream); ok {
			all[u.Name()] = u
		}
	}
	return all
}

func surfaces() []hub.Surface {
	var all []hub.Surface
	for _, f := range formats() {
		if s, ok := f.(hub.Surface); ok {
			all = append(all, s)
		}
	}
	return all
}

// said is a decoded recorded answer.
type said struct {
	fixture gatewaytest.Fixture
	stream  bool
	events  []hub.Event // of a stream
	result  *hub.Result
	err     *hub.Error
}

func (s *said) name() string {
	if s.stream {
		return s.fixture.Name + " streamed"
	}
	return s.fixture.Name
}

// recorded returns all recorded answers of language models, decoded by their formats.
func recorded(t *testing.T) []*said {
	t.Helper()
	by := upstreams()
	var all []*said
	for _, f := range gatewaytest.Language(t) {
		u := by[f.Format]
		if u == nil {
			t.Errorf("there is no package for %s", f.Format)
			continue
		}
		if f.Whole != nil {
			s := &said{fixture: f}
			r, err := u.ReadResult(target(&f), f.Whole)
			if err != nil {
				r = &hub.Result{}
				s.err = failure(t, err)
			}
			s.result = r
			all = append(all, s)
		}
		if f.Chunks != nil {
			s := &said{fixture: f, stream: true}
			s.events, s.result, s.err = drain(t, f.Name, u.NewReader(target(&f), bytes.NewReader(gatewaytest.Frames(f.Format, f.Chunks))))
			all = append(all, s)
		}
	}
	return all
}

func failure(t *testing.T, err error) *hub.Error {
	t.Helper()
	var e *hub.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is no *hub.Error", err)
	}
	return e
}

// drain reads a stream to its end, checks the order of its events, and returns them.
func drain(t *testing.T, name string, r hub.Reader) ([]hub.Event, *hub.Result, *hub.Error) {
	t.Helper()
	var (
		events    []hub.Event
		checker   hub.Checker
		collector hub.Collector
	)
	for {
		some, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i := range some {
			if err := checker.Add(&some[i]); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			collector.Add(&some[i])
			events = append(events, some[i])
		}
	}
	if err := checker.End(); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	result, failed := collector.Result()
	return events, result, failed
}

// Each recorded answer is decoded to its end, and is not empty.
func TestReplay_own(t *testing.T) {
	t.Parallel()
	n := 0
	for _, s := range recorded(t) {
		n++
		m := meant(s.result, s.err)
		if m.Failure != "" {
			if failing[s.name()] == "" {
				t.Errorf("%s fails: %v", s.name(), s.err)
			}
			continue
		}
		if why := failing[s.name()]; why != "" {
			t.Errorf("%s does not fail, and should: %s", s.name(), why)
		}
		if m.Finish == "" {
			t.Errorf("%s has no reason to end", s.name())
		}
		if m.Text == "" && m.Calls == nil && m.Hosted == nil && m.Other == nil && m.Files == nil && m.Finish != hub.ContentFilter && m.Finish != hub.Length && empty[s.name()] == "" {
			t.Errorf("%s says nothing: %+v", s.name(), m)
		}
	}
	if n < 150 {
		t.Errorf("%d answers only", n)
	}
}

// The sizes of the reads of a stream change nothing.
func TestReplay_cut(t *testing.T) {
	t.Parallel()
	by := upstreams()
	for _, s := range recorded(t) {
		if !s.stream || len(s.fixture.Chunks) > 200 {
			continue
		}
		body := iotest.OneByteReader(bytes.NewReader(gatewaytest.Frames(s.fixture.Format, s.fixture.Chunks)))
		_, r, err := drain(t, s.name(), by[s.fixture.Format].NewReader(target(&s.fixture), body))
		want, got := meant(s.result, s.err), meant(r, err)
		if s.fixture.Format == gatewaytest.Gemini { // Gemini's calls have invented ids
			want.Calls, got.Calls = unnamed(want.Calls), unnamed(got.Calls)
		}
		compare(t, s.name()+", byte by byte", want, got, nil)
	}
}

// unnamed returns calls without ids.
func unnamed(calls []string) []string {
	var all []string
	for _, c := range calls {
		_, rest, _ := strings.Cut(c, " ")
		all = append(all, rest)
	}
	return all
}

// A Tap and a Reader find the same in an answer.
func TestReplay_tap(t *testing.T) {
	t.Parallel()
	by := upstreams()
	for _, s := range recorded(t) {
		f := s.fixture
		body := f.Whole
		if s.stream {
			body = gatewaytest.Frames(f.Format, f.Chunks)
		}
		tap := by[f.Format].Tap(target(&f), s.stream)
		if tap == nil {
			continue
		}
		before := bytes.Clone(body)
		for rest := body; len(rest) > 0; {
			n := min(len(rest), 100)
			tap.Write(rest[:n])
			rest = rest[n:]
		}
		seen := tap.End()
		if !bytes.Equal(before, body) {
			t.Errorf("%s: the tap has changed what passes", s.name())
		}
		if seen.Complete != (s.err == nil) {
			t.Errorf("%s: complete is %t, and the reader says %v", s.name(), seen.Complete, s.err)
		}
		if s.err != nil {
			continue
		}
		got := meant(&hub.Result{Finish: seen.Finish, Usage: seen.Usage}, seen.Err)
		want := meant(&hub.Result{Finish: s.result.Finish, Usage: s.result.Usage}, nil)
		compare(t, s.name()+", by the tap", want, got, nil)
		// The recording of github-copilot has a different id in each event.
		if id := s.result.Response.ID; seen.Response.ID != id && id != "" && !strings.Contains(s.name(), "id-rotation") {
			t.Errorf("%s: the id is %q, and to the tap %q", s.name(), id, seen.Response.ID)
		}
	}
}

// A stream that breaks off anywhere is a failure.
func TestReplay_brokenOff(t *testing.T) {
	t.Parallel()
	by := upstreams()
	for _, s := range recorded(t) {
		f := s.fixture
		if !s.stream || s.err != nil {
			continue
		}
		u := by[f.Format]
		// The first two thirds only: the last third has the events with the finish
		// reason.
		for _, n := range []int{0, 1, len(f.Chunks) / 3, len(f.Chunks) / 2} {
			if n >= ends(&f) {
				continue
			}
			var part []byte
			for _, c := range f.Chunks[:n] {
				part = append(part, gatewaytest.Frame(f.Format, c)...)
			}
			_, _, err := drain(t, s.name(), u.NewReader(target(&f), bytes.NewReader(part)))
			if err == nil || err.Kind != hub.UpstreamFailed {
				t.Errorf("%s after %d of %d events: %v; it must not look complete", s.name(), n, len(f.Chunks), err)
			}
			if tap := u.Tap(target(&f), true); tap != nil {
				tap.Write(part)
				if tap.End().Complete {
					t.Errorf("%s after %d of %d events looks complete to the tap", s.name(), n, len(f.Chunks))
				}
			}
		}
	}
}

// ends returns the index of the first event with a finish reason.
func ends(f *gatewaytest.Fixture) int {
	marks := map[string][]string{
		gatewaytest.Chat:      {`"finish_reason":"`},
		gatewaytest.Messages:  {`"message_stop"`},
		gatewaytest.Responses: {`"type":"response.completed"`, `"type":"response.incomplete"`},
		gatewaytest.Gemini:    {`"finishReason":"`},
		gatewaytest.Converse:  {`"messageStop"`},
	}[f.Format]
	for i, c := range f.Chunks {
		for _, m := range marks {
			if bytes.Contains(c, []byte(m)) {
				return i
			}
		}
	}
	return len(f.Chunks)
}

// Every recorded answer keeps its meaning in every surface's format.
func TestReplay_cross(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	for _, s := range surfaces() {
		for _, version := range versions(s) {
			t.Run(s.Name()+version, func(t *testing.T) {
				t.Parallel()
				n := 0
				for _, said := range all {
					n++
					cross(t, s, version, said)
				}
				t.Logf("%d answers", n)
			})
		}
	}
}

func versions(s hub.Surface) []string {
	if s.Name() == "aisdk" {
		return []string{"2", "3", "4"}
	}
	return []string{""}
}

// cross encodes an answer with a surface, whole and streamed, and decodes it again.
func cross(t *testing.T, s hub.Surface, version string, of *said) {
	t.Helper()
	call := &hub.Call{Stream: of.stream}
	call.Options.Set("chatcompletions", "includeUsage", true) // its clients must ask for it
	for _, p := range of.result.Content {                     // ai 5 accepts only provider-run tools of its request
		if p.Kind == hub.ToolCallPart && p.Call.ProviderExecuted {
			call.Tools = append(call.Tools, hub.Tool{Name: p.Call.Name, ProviderID: of.fixture.Provider + "." + p.Call.Name})
		}
	}
	answer := hub.Answer{
		ID: "gen_01JABCDEFGHJKMNPQRSTVWXYZ0", Model: "creator/model", Version: version, Call: call,
		Metadata: func() []byte { return []byte(`{"generationId":"gen_01JABCDEFGHJKMNPQRSTVWXYZ0","cost":"0.001"}`) },
	}
	want := meant(of.result, of.err)
	name := fmt.Sprintf("%s in %s%s", of.name(), s.Name(), version)
	lost := lost(s.Name(), version)
	if of.err == nil {
		body, err := s.WriteResult(answer, of.result)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		r, e := readWhole(t, name, s, version, body)
		compare(t, name+", whole", want, meant(r, e), lost)
	}
	events := of.events
	if !of.stream {
		if of.err != nil {
			return
		}
		events = of.result.Events()
	}
	w := s.NewWriter(answer)
	var body []byte
	for i := range events {
		body = w.Append(body, &events[i])
		if i%7 == 3 && i < len(events)-1 {
			body = w.KeepAlive(body)
		}
	}
	r, e := readStream(t, name, s, version, body)
	compare(t, name+", streamed", want, meant(r, e), lost)
}

// compare reports the fields that differ, except for known losses.
func compare(t *testing.T, name string, want, got *meaning, lost []loss) {
	t.Helper()
	lost = slices.DeleteFunc(slices.Clone(lost), func(l loss) bool { return !l.of(name) })
	want = want.without(lost)
	got = got.without(slices.DeleteFunc(slices.Clone(lost), func(l loss) bool { return !l.moves })) // a lost value must be missing
	for _, f := range fields() {
		w, g := want.field(f), got.field(f)
		switch f {
		case "Input", "CacheRead", "CacheWrite", "Output", "Thought":
			if want.Failure != "" || sameCount(trim(w), trim(g)) || slices.ContainsFunc(lost, func(l loss) bool { return l.field == f }) {
				continue
			}
		case "Signatures", "TextSignatures":
			wanted := want.Signatures
			if f == "TextSignatures" {
				wanted = want.TextSignatures
			}
			there := slices.Concat(got.Signatures, got.TextSignatures)
			if !slices.ContainsFunc(wanted, func(s string) bool { return !slices.Contains(there, s) }) {
				continue
			}
		case "Finish":
			// Only some formats can express that a model stopped although it made calls.
			if want.Calls != nil && want.Finish == hub.Stop && got.Finish == hub.ToolCalls {
				continue
			}
		case "Failure":
			if (want.Failure == "") == (got.Failure == "") { // kinds are the dialect's
				continue
			}
		}
		if w != g {
			t.Errorf("%s: %s\n   is %.600s\nwant %.600s", name, f, g, w)
		}
	}
}

func trim(quoted string) string { return quoted[1 : len(quoted)-1] }
