package settings

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/secret"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// events records the logs and changes of a Live.
type events struct {
	logged  chan string
	changed chan *Snapshot
}

func (e *events) Write(p []byte) (int, error) {
	e.logged <- string(p)
	return len(p), nil
}

func (e *events) waitLog(t *testing.T, want string) string {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case line := <-e.logged:
			if strings.Contains(line, want) {
				return line
			}
		case <-timeout:
			t.Fatalf("%q was not logged", want)
		}
	}
}

func open(t *testing.T, o Options) (*Live, *events) {
	t.Helper()
	e := &events{make(chan string, 1000), make(chan *Snapshot, 1000)}
	o.Logger = slog.New(slog.NewTextHandler(e, nil))
	o.Changed = func(s *Snapshot) { e.changed <- s }
	l, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if s := <-e.changed; s != l.Current() {
		t.Error("not what was changed to is current")
	}
	return l, e
}

func write(t *testing.T, file, text string) {
	t.Helper()
	tmp := file + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, file); err != nil { // as editors do
		t.Fatal(err)
	}
}

func TestLive_FollowsTheFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	l, e := open(t, Options{File: file}) // the file does not exist yet
	if err := l.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer l.Stop()
	if got := configured(l.Current()); got != "cay" {
		t.Fatal(got)
	}
	write(t, file, "providers: {openai: {key: one}}\n")
	e.waitLog(t, "settings have changed")
	good := l.Current()
	if got := configured(good); got != "cay openai" {
		t.Fatal(got)
	}
	write(t, file, "providers:\n  openai: {key: sk-secret, colour: red}\n")
	line := e.waitLog(t, "settings are wrong")
	if !strings.Contains(line, file+":2: unknown field") || strings.Contains(line, "sk-secret") {
		t.Errorf("logged %s", line)
	}
	if l.Current() != good {
		t.Error("wrong settings are in place")
	}
	if err := os.WriteFile(file, []byte("providers: {groq: {key: two}}\n"), 0o600); err != nil { // in place
		t.Fatal(err)
	}
	e.waitLog(t, "settings have changed")
	if got := configured(l.Current()); got != "cay groq" {
		t.Error(got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	e.waitLog(t, "settings have changed")
	if got := configured(l.Current()); got != "cay" {
		t.Error(got)
	}
	l.Stop()
	l.Stop()
}

// Live follows a list of models beside the settings; the settings override the list. An
// invalid list leaves the settings unchanged.
func TestLive_FollowsTheList(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	write(t, file, "models: {openai/gpt-98: {endpoints: {openai: {price: {input: 7, output: 70}}}}}\n")
	l, e := open(t, Options{File: file})
	if err := l.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer l.Stop()
	priceOf := func(id string) string {
		m := l.Current().Catalog.Lookup(id)
		if m == nil || m.Endpoints[0].Price == nil {
			return "unknown"
		}
		return m.Endpoints[0].Price.Input.Times(1_000_000).String() + " of " + m.Endpoints[0].Price.Version
	}
	model := func(name, input string) string {
		return fmt.Sprintf(`{"id": "openai/%s", "kind": "language", "endpoints": [{"provider": "openai", "model": %[1]q, "price": {"input": %q, "output": "9"}}]}`, name, input)
	}
	write(t, catalog.ListFile(file), `{"date": "2026-11-26", "models": [`+model("gpt-5", "2")+`,`+model("gpt-98", "3")+`,`+model("gpt-99", "4")+`]}`)
	e.waitLog(t, "settings have changed")
	good := l.Current()
	for id, want := range map[string]string{"openai/gpt-5": "2 of 2026-11-26", "openai/gpt-98": "7 of settings", "openai/gpt-99": "4 of 2026-11-26"} {
		if got := priceOf(id); got != want {
			t.Errorf("%s costs %s, want %s", id, got, want)
		}
	}
	if m := good.Catalog.Lookup("openai/gpt-5"); m.Context != 400_000 || len(m.Endpoints) < 2 {
		t.Errorf("gpt-5 is %+v", m)
	}
	write(t, catalog.ListFile(file), `{"models": [{"id": "openai/gpt-99"}]}`)
	if line := e.waitLog(t, "settings are wrong"); !strings.Contains(line, "gateway-models.json") || l.Current() != good {
		t.Errorf("logged %s", line)
	}
	if err := os.Remove(catalog.ListFile(file)); err != nil {
		t.Fatal(err)
	}
	e.waitLog(t, "settings have changed")
	if got := priceOf("openai/gpt-99"); got != "unknown" {
		t.Errorf("after the list is gone, gpt-99 costs %s", got)
	}
}

func TestOpen_Required(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	if _, err := Open(t.Context(), Options{File: file, Required: true}); cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), file) {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(file, []byte("x: 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{File: file}); cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), file+":1: ") {
		t.Errorf("%v", err)
	}
	if s, err := Load("", nil); err != nil || configured(s.Snapshot) != "cay" {
		t.Errorf("%v", err)
	}
}

func TestLive_Secrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key, file := filepath.Join(dir, "key"), filepath.Join(dir, "gateway.yaml")
	write(t, key, " first\n")
	write(t, file, fmt.Sprintf("providers: {openai: {key: {file: %s}}}", key))
	l, _ := open(t, Options{File: file})
	if got := sent(t, l.Current().Providers.Get("openai"), 0).Header.Get("Authorization"); got != "Bearer first" {
		t.Error(got)
	}
	write(t, key, "second")
	if err := l.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := sent(t, l.Current().Providers.Get("openai"), 0).Header.Get("Authorization"); got != "Bearer second" {
		t.Error(got)
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%+v %#v %+v", l.Current(), l.Current(), l.src.file)
	json.NewEncoder(&out).Encode(l.src.file.Providers)
	json.NewEncoder(&out).Encode(map[string]*Ref{"x": Text("second")})
	if strings.Contains(out.String(), "second") {
		t.Errorf("the secret shows: %s", &out)
	}
}

func TestLive_Discover(t *testing.T) {
	t.Parallel()
	var list atomic.Value
	list.Store(`{"data":[{"id":"llama3.2"},{"id":"nomic-embed-text"}]}`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" || list.Load() == "" {
			w.WriteHeader(500)
			return
		}
		fmt.Fprint(w, list.Load())
	}))
	defer server.Close()
	l, e := open(t, Options{Env: env("OLLAMA_BASE_URL", server.URL), Client: server.Client()})
	if l.Current().Catalog.Lookup("ollama/llama3.2") != nil {
		t.Fatal("it is known before it was asked for")
	}
	l.Discover(t.Context())
	m := l.Current().Catalog.Lookup("ollama/llama3.2")
	if m == nil || !m.Endpoints[0].Configured || m.Endpoints[0].Price == nil || m.Endpoints[0].Price.Input != 0 {
		t.Fatalf("%+v", m)
	}
	if m := l.Current().Catalog.Lookup("nomic-embed-text"); m == nil || m.Kind != "embedding" {
		t.Errorf("%+v", m)
	}
	before := l.Current()
	l.Discover(t.Context())
	if l.Current() != before {
		t.Error("the same list is a change")
	}
	list.Store("")
	l.Discover(t.Context())
	l.Discover(t.Context())
	if l.Current().Catalog.Lookup("ollama/llama3.2") == nil {
		t.Error("a server that does not answer has no models")
	}
	list.Store(`{"data":[{"id":"qwen3"}]}`)
	l.Discover(t.Context())
	if c := l.Current().Catalog; c.Lookup("ollama/llama3.2") != nil || c.Lookup("ollama/qwen3") == nil {
		t.Error("the list did not change")
	}
	e.waitLog(t, "does not say which models")
	if line := <-e.logged; !strings.Contains(line, "says again") {
		t.Errorf("a failure is logged once: %s", line)
	}
	// A change of the settings keeps the discovered models.
	if err := l.Reload(t.Context()); err != nil || l.Current().Catalog.Lookup("ollama/qwen3") == nil {
		t.Errorf("%v", err)
	}
	checks, err := l.Check(t.Context(), "")
	if err != nil || len(checks) != 2 || !checks[0].OK || !checks[1].OK || checks[1].Models != 1 {
		t.Errorf("%+v %v", checks, err)
	}
	if checks, err := l.Check(t.Context(), "mistral"); err != nil || len(checks) != 1 || checks[0].OK || checks[0].Hint == "" {
		t.Errorf("%+v %v", checks, err)
	}
	if _, err := l.Check(t.Context(), "nobody"); cay.CodeOf(err) != cay.NotFound {
		t.Error(err)
	}
}

func newStore(t *testing.T) (*Store, *db.DB) {
	t.Helper()
	dir := t.TempDir()
	box, err := secret.Open(filepath.Join(dir, "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	d := dbtest.OpenFile(t, filepath.Join(dir, "gateway.db"))
	s, err := NewStore(t.Context(), d, box)
	if err != nil {
		t.Fatal(err)
	}
	return s, d
}

func TestLive_API(t *testing.T) {
	t.Parallel()
	store, d := newStore(t)
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	write(t, file, "providers: {openai: {key: in-the-file}}\n")
	o := Options{File: file, Store: store, Env: env("MISTRAL_API_KEY", "in-the-environment")}
	l, _ := open(t, o)
	ctx := t.Context()
	if err := l.PutProvider(ctx, "mine", []byte(`{"kind":"openai","base_url":"https://x.example/v1","keys":[{"name":"a","key":"canary-77"}],"headers":{"X-Org":"canary-78"},"first_byte":"30s","zero_retention":true}`)); err != nil {
		t.Fatal(err)
	}
	p := l.Current().Providers.Get("mine")
	if got := sent(t, p, 0).Header.Get("Authorization"); got != "Bearer canary-77" || p.FirstByte != 30*time.Second || !p.ZeroRetention {
		t.Errorf("%s %+v", got, p)
	}
	// Providers set by the API override the environment.
	if err := l.PutProvider(ctx, "mistral", []byte(`{"key":"canary-79"}`)); err != nil {
		t.Fatal(err)
	}
	if got := sent(t, l.Current().Providers.Get("mistral"), 0).Header.Get("Authorization"); got != "Bearer canary-79" {
		t.Error(got)
	}
	infos, err := l.Providers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(infos)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "canary") || !strings.Contains(string(text), `"key":{"set":true}`) || !strings.Contains(string(text), `"first_byte":"30s"`) ||
		!strings.Contains(string(text), `{"name":"openai","kind":"openai","source":"file","formats":["chatcompletions","responses"],"configured":true,"health":"unknown","base_url":"https://api.openai.com/v1","credentials":["key"]}`) {
		t.Errorf("%s", text)
	}
	// The database holds no part of the settings in readable form.
	var raw []byte
	if err := d.QueryRow(ctx, `SELECT sealed FROM gateway_providers WHERE name = 'mine'`).Scan(&raw); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(raw, []byte("canary")) || bytes.Contains(raw, []byte("x.example")) {
		t.Error("secrets are readable in the database")
	}
	for want, put := range map[string][2]string{
		"conflict: provider openai is in the file":                {"openai", `{"key":"x"}`},
		"is no name of a provider":                                {"../x", `{}`},
		"unknown field \"colour\"":                                {"x", `{"colour":1}`},
		"auth: aws-default goes to the provider's own address":    {"bedrock", `{"auth":"aws-default","base_url":"http://127.0.0.1:1"}`},
		"auth: google-default goes to the provider's own address": {"vertex", `{"auth":"google-default","project":"p","paths":{"images":"http://127.0.0.1:1/x"}}`},
		"a secret is a text":                                      {"x", `{"kind":"openai","key":{"file":"/etc/shadow"}}`},
		"keys is not of the right type":                           {"x", `{"keys":"canary"}`},
		"provider x, which is set by the api: x is no kind":       {"x", `{}`},
		"after the settings":                                      {"x", `{} {}`},
	} {
		err := l.PutProvider(ctx, put[0], []byte(put[1]))
		if err == nil || !strings.Contains(string(cay.CodeOf(err))+": "+err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%v: %v, want %s", put, err, want)
		}
	}
	if len(l.Current().Configured()) != 4 { // cay, mine, mistral, openai
		t.Errorf("%s", configured(l.Current()))
	}
	again, _ := open(t, o) // another process
	if got := sent(t, again.Current().Providers.Get("mine"), 0).Header.Get("Authorization"); got != "Bearer canary-77" {
		t.Error(got)
	}
	if err := l.DeleteProvider(ctx, "mistral"); err != nil {
		t.Fatal(err)
	}
	if got := sent(t, l.Current().Providers.Get("mistral"), 0).Header.Get("Authorization"); got != "Bearer in-the-environment" {
		t.Error(got)
	}
	if err := l.DeleteProvider(ctx, "mistral"); cay.CodeOf(err) != cay.NotFound {
		t.Error(err)
	}
	if err := l.DeleteProvider(ctx, "openai"); cay.CodeOf(err) != cay.Conflict {
		t.Error(err)
	}
	// The API cannot delete a provider that the file refers to.
	write(t, file, "models: {a/b: {endpoints: {mine: {}}}}\n")
	if err := l.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	if err := l.DeleteProvider(ctx, "mine"); cay.CodeOf(err) != cay.Invalid || l.Current().Providers.Get("mine") == nil {
		t.Error(err)
	}
	none, _ := open(t, Options{})
	if err := none.PutProvider(ctx, "x", []byte(`{"kind":"openai"}`)); cay.CodeOf(err) != cay.NotSupported {
		t.Error(err)
	}
}

func TestLive_Start_Failure(t *testing.T) {
	t.Parallel()
	l, _ := open(t, Options{File: filepath.Join(t.TempDir(), "missing", "gateway.yaml")})
	if err := l.Start(context.Background()); cay.CodeOf(err) != cay.Unavailable {
		t.Error(err)
	}
	l.Stop()
}

func FuzzDecodeProvider(f *testing.F) {
	f.Add([]byte(`{"kind":"openai","key":"k"}`))
	f.Add([]byte(`{"format":["messages"],"base_url":"http://x/","aws":{"access_key_id":"A"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := decodeProvider(raw)
		if err != nil {
			return
		}
		s, err := build(inputs{stored: stored{providers: map[string]*Provider{"x": p}}})
		if err == nil && !p.Disabled && s.Providers.Get("x") == nil {
			t.Fatalf("%s is no provider", raw)
		}
	})
}
