package gatewayd_test

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/admin"
	"github.com/cayhq/cay/internal/gatewayd/capture"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/guard"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	secrets "github.com/cayhq/cay/internal/secret"
)

// capturing returns a world that captures bodies.
func capturing(t *testing.T, rules *capture.Rules) (*world, *capture.Store) {
	t.Helper()
	checktest.OK(t, rules.Check())
	dir := t.TempDir()
	box, err := secrets.Open(filepath.Join(dir, "secret.key"))
	checktest.OK(t, err)
	d := dbtest.OpenFile(t, filepath.Join(dir, "gateway.db"))
	store, err := capture.Open(t.Context(), d, box, capture.Options{Rules: func() *capture.Rules { return rules }})
	checktest.OK(t, err)
	t.Cleanup(store.Close)
	w := newWorld(t, func(_ *world, c *gatewayd.Config) { c.Captured = store })
	w.settings.Capture = rules
	w.model("lab/m", gatewaytest.Chat)
	return w, store
}

// Captured bodies equal the bodies that the client sent and received, in each format,
// apart from redactions; they contain no credentials, and the log contains none of their
// content.
func TestCapture(t *testing.T) {
	t.Parallel()
	redact, err := guard.NewRedactor([]guard.Pattern{{Name: "word", Words: []string{"sesame"}}})
	checktest.OK(t, err)
	w, store := capturing(t, &capture.Rules{Requests: true, Answers: true, Redact: redact})
	type asked struct {
		name, answer string
		stream       bool
	}
	var all []asked
	for _, d := range dialects {
		for _, stream := range []bool{false, true} {
			status, body, _ := w.ask(d, "lab/m", stream)
			if status != http.StatusOK {
				t.Fatalf("%s: %d %s", d.name, status, body)
			}
			all = append(all, asked{d.name, body, stream})
		}
	}
	const own = `"providerOptions":{"gateway":{"byok":{"openai":[{"apiKey":"tr0ub4dor-own"}]}}}`
	for _, body := range []string{
		`{"model":"lab/m","messages":[{"role":"user","content":"x"}],` + own + `}`,
		`{"model":"lab/m","messages":[{"role":"user","content":"x"}],"providerOptions":{"gateway":{"byok":"tr0ub4dor-own"}}}`,
		`{"model":"lab/m","providerOptions":{"gateway":{"byok":"tr0ub4dor-own"`,
	} {
		_, answer, _ := w.post("/v1/chat/completions", body)
		all = append(all, asked{"own", answer, false})
	}
	var records []gateway.Request
	for i := range all {
		records = append(records, w.record(i+1))
	}
	store.Close() // writes them
	for i, r := range records {
		if r.Capture != gateway.CaptureKept {
			t.Errorf("%s: its bodies are %q", all[i].name, r.Capture)
			continue
		}
		b, err := store.Get(t.Context(), r.TeamID, r.ProjectID, r.ID)
		checktest.OK(t, err)
		for _, part := range []*gateway.Body{b.Request, b.Answer} {
			for _, never := range []string{secret, gatewaytest.Key, "tr0ub4dor-own", "sesame"} {
				if strings.Contains(part.Text, never) {
					t.Errorf("%s: %q is in %s", all[i].name, never, part.Text)
				}
			}
		}
		if b.Request.Size != r.BytesIn || b.Answer.Size != r.BytesOut || b.Answer.Cut {
			t.Errorf("%s: %d and %d bytes, the record has %d and %d", all[i].name, b.Request.Size, b.Answer.Size, r.BytesIn, r.BytesOut)
		}
		if all[i].name == "own" {
			continue
		}
		if !strings.Contains(b.Request.Text, "Say hello, [word]") {
			t.Errorf("%s: the request is %q", all[i].name, b.Request.Text)
		}
		if want := strings.ReplaceAll(all[i].answer, "sesame", "[word]"); b.Answer.Text != want && !b.Answer.Assembled {
			t.Errorf("%s: the answer is %q\nwant %q", all[i].name, b.Answer.Text, want)
		}
	}
	if l := w.log.String(); strings.Contains(l, "sesame") || strings.Contains(l, "tr0ub4dor") || strings.Contains(l, "hello") {
		t.Errorf("the log has it:\n%s", l)
	}
}

// Calls that the rules do not select are not captured, and cost no memory.
func TestCapture_Filter(t *testing.T) {
	t.Parallel()
	w, store := capturing(t, &capture.Rules{Answers: true, Models: []string{"lab/other"}})
	w.model("lab/other", gatewaytest.Chat)
	w.chat("lab/m", "")
	w.chat("lab/other", "")
	first, second := w.record(1), w.record(2)
	store.Close()
	if first.Capture != "" || second.Capture != gateway.CaptureKept || store.Stats().Kept != 1 {
		t.Errorf("%q, %q, %+v", first.Capture, second.Capture, store.Stats())
	}
	b, err := store.Get(t.Context(), "team", "project", second.ID)
	if err != nil || b.Request != nil || b.Answer == nil {
		t.Errorf("%+v, %v", b, err)
	}
	// A Store that is closed or full omits bodies, and the record says so.
	w.chat("lab/other", "")
	if r := w.record(3); r.Capture != gateway.CaptureDropped || r.Status != gateway.Succeeded {
		t.Errorf("%+v", r)
	}
}

// The Store alone decides whether bodies are stored: the state in a record agrees with
// the Store in lists, for single requests and in followed requests.
func TestCapture_OneTruth(t *testing.T) {
	t.Parallel()
	rules := &capture.Rules{Requests: true, Answers: true}
	checktest.OK(t, rules.Check())
	dir := t.TempDir()
	box, err := secrets.Open(filepath.Join(dir, "secret.key"))
	checktest.OK(t, err)
	d := dbtest.OpenFile(t, filepath.Join(dir, "gateway.db"))
	book, err := ledger.Open(t.Context(), d, ledger.Options{Accounts: holding{}})
	checktest.OK(t, err)
	store, err := capture.Open(t.Context(), d, box, capture.Options{Rules: func() *capture.Rules { return rules }})
	checktest.OK(t, err)
	t.Cleanup(func() {
		store.Close()
		checktest.OK(t, book.Close())
	})
	w := newWorld(t, func(_ *world, c *gatewayd.Config) { c.Captured, c.Ledger = store, book })
	w.settings.Capture = rules
	w.model("lab/m", gatewaytest.Chat)
	key, err := book.CreateKey(t.Context(), account.DefaultTeam, gateway.CreateKeyParams{ProjectID: account.DefaultProject})
	checktest.OK(t, err)
	m := &admin.Manager{Book: book, Bodies: store}
	ctx := api.WithPrincipal(t.Context(), api.Principal{TeamID: account.DefaultTeam})
	ask := func() string {
		r := w.request(t.Context(), dialects[0], "lab/m", false)
		r.Header.Set("Authorization", "Bearer "+key.Secret)
		resp, err := w.client.Do(r)
		checktest.OK(t, err)
		checktest.OK(t, resp.Body.Close())
		return resp.Header.Get("X-Cay-Generation-Id")
	}
	first, second := ask(), ask()
	says := func(id, want string) {
		t.Helper()
		alone, err := m.GetRequest(ctx, id)
		checktest.OK(t, err)
		page, err := m.ListRequests(ctx, gateway.RequestFilter{})
		checktest.OK(t, err)
		all := map[string]string{"alone": alone.Capture}
		for _, r := range page.Items {
			if r.ID == id {
				all["in a list"] = r.Capture
			}
		}
		if id == second {
			follows, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			for r, err := range m.FollowRequests(follows, gateway.RequestFilter{}, first) {
				checktest.OK(t, err)
				all["followed"] = r.Capture
				break
			}
		}
		for where, got := range all {
			if got != want {
				t.Errorf("%s it says %q, want %q", where, got, want)
			}
		}
	}
	says(first, gateway.CaptureKept)
	if _, err := m.GetRequestBody(ctx, first); err != nil { // at once, though others write it
		t.Error(err)
	}
	checktest.OK(t, m.DeleteRequestBody(ctx, first))
	says(first, gateway.CaptureGone)
	says(second, gateway.CaptureKept)
	if _, err := m.GetRequestBody(ctx, first); cay.CodeOf(err) != cay.NotFound {
		t.Error(err)
	}
	m.Bodies = nil
	says(second, gateway.CaptureGone)
}
