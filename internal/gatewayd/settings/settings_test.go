package settings

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// load returns the settings of a file with the given text.
func load(t testing.TB, text string, pairs ...string) (*Snapshot, error) {
	t.Helper()
	src, err := parse("gateway.yaml", []byte(text))
	if err != nil {
		return nil, err
	}
	return build(inputs{src: src, env: env(pairs...), byok: provider.NewBYOK(nil)})
}

func mustLoad(t testing.TB, text string, pairs ...string) *Snapshot {
	t.Helper()
	s, err := load(t, text, pairs...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sent returns a request to a provider, authorized with credential i.
func sent(t *testing.T, p *provider.Provider, i int) *http.Request {
	t.Helper()
	u, err := url.Parse(p.URL("/x"))
	if err != nil {
		t.Fatal(err)
	}
	r := &http.Request{Method: http.MethodPost, URL: u, Header: http.Header{}}
	if err := p.Credentials[i].Authorize(context.Background(), r, []byte(`{"model":"m"}`)); err != nil {
		t.Fatal(err)
	}
	return r
}

func configured(s *Snapshot) string {
	var names []string
	for _, p := range s.Configured() {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

const example = `
providers:
  openai:
    key: {env: MY_OPENAI}
    no_training: true
  work:
    kind: openai
    base_url: https://eu.api.example/v1/
    keys:
      - {name: first, key: sk-first, zero_retention: true}
      - key: sk-second
    headers: {X-Org: acme}
    first_byte: 30s
  my-vllm:
    kind: vllm
    base_url: http://10.0.0.5:8000/v1
    price: {input: 0.1, output: "0.2"}
    models: {meta/llama-3.3-70b: llama-3.3, acme/tuned: tuned-1}
  plain:
    format: chatcompletions
    base_url: http://127.0.0.1:9999/v1
  azure:
    resource: Acme
    on_disconnect: cancel
    key: azkey
    models: {openai/gpt-5: prod-gpt5}
  bedrock:
    region: eu-central-1
    aws: {access_key_id: AKIDEXAMPLE, secret_access_key: s}
  groq: {disabled: true}
models:
  openai/gpt-5:
    aliases: [best]
    endpoints:
      openai: {price: {input: 1, output: 5}}
      work: {disabled: true}
  acme/new:
    name: New
    context: 1000
    endpoints: {plain: {model: new-v1}}
  openai/gpt-4.1: {disabled: true}
aliases:
  fast: openai/gpt-5-nano
  gpt-4o: openai/gpt-5
splits:
  trial: [{model: openai/gpt-5, weight: 90}, {model: fast, weight: 10}]
virtual:
  careful:
    model: anthropic/claude-sonnet-4.5
    models: [fast]
    only: [anthropic, bedrock, openai]
    sort: cost
    caching: auto
    service_tier: flex
    zero_retention: true
    has: [tool-use]
  openai/gpt-5-mini: {model: openai/gpt-5-mini, order: [azure]}
rules:
  - {id: no-xai, model: "xai/*", deny: not here}
  - {model: "*-preview", projects: [p1], rewrite: fast}
defaults: {idle: 45s, on_disconnect: finish}
guards:
  max_prompt: 1MiB
  requests: [{preset: email, action: redact}]
cache: {size: 8MiB}
`

func TestLoad(t *testing.T) {
	t.Parallel()
	s := mustLoad(t, example, "MY_OPENAI", "sk-env", "ANTHROPIC_API_KEY", "sk-ant", "GROQ_API_KEY", "gsk", "OLLAMA_HOST", "0.0.0.0")
	if got := configured(s); got != "anthropic azure bedrock cay my-vllm ollama openai plain work" {
		t.Errorf("configured: %s", got)
	}
	for name, want := range map[string]Origin{"openai": FromFile, "anthropic": FromEnvironment, "mistral": FromTable, "cay": FromTable, "nobody": ""} {
		if got := s.Origin(name); got != want {
			t.Errorf("%s is from %q, want %q", name, got, want)
		}
	}
	if s.Providers.Get("groq") != nil || s.Providers.Get("vllm") != nil {
		t.Error("what is disabled, or self-hosted and not configured, is there")
	}
	for _, c := range []struct {
		name, url, header, value string
		key                      int
	}{
		{"openai", "https://api.openai.com/v1/x", "Authorization", "Bearer sk-env", 0},
		{"work", "https://eu.api.example/v1/x", "Authorization", "Bearer sk-first", 0},
		{"work", "https://eu.api.example/v1/x", "Authorization", "Bearer sk-second", 1},
		{"anthropic", "https://api.anthropic.com/v1/x", "X-Api-Key", "sk-ant", 0},
		{"azure", "https://acme.openai.azure.com/openai/v1/x", "Api-Key", "azkey", 0},
	} {
		r := sent(t, s.Providers.Get(c.name), c.key)
		if r.URL.String() != c.url || r.Header.Get(c.header) != c.value {
			t.Errorf("%s: %v %v", c.name, r.URL, r.Header)
		}
	}
	if r := sent(t, s.Providers.Get("bedrock"), 0); r.URL.Host != "bedrock-runtime.eu-central-1.amazonaws.com" || !strings.Contains(r.Header.Get("Authorization"), "/eu-central-1/bedrock/") {
		t.Errorf("bedrock: %v %v", r.URL, r.Header)
	}
	work := s.Providers.Get("work")
	if work.FirstByte != 30*time.Second || work.Idle != 45*time.Second || work.Header.Get("X-Org") != "acme" || work.Credentials[0].ID() != "first" || work.Credentials[1].ID() != "key-2" || !work.Quirks["openai"] {
		t.Errorf("%+v", work)
	}
	if m := work.Credentials[0].(provider.Mapped); !m.ZeroRetention() || work.Credentials[1].(provider.Mapped).ZeroRetention() {
		t.Error("zero retention of keys")
	}
	if p := s.Providers.Get("openai"); p.FirstByte != provider.DefaultFirstByte || !p.NoTraining || p.ZeroRetention {
		t.Errorf("%+v", p)
	}
	if p := s.Providers.Get("ollama"); p.BaseURL != "http://127.0.0.1:11434/v1" || !p.SelfHosted || !p.ZeroRetention || len(p.Credentials) != 0 {
		t.Errorf("%+v", p)
	}
	for name, want := range map[string]bool{"work": true, "plain": true, "azure": false} {
		if s.Providers.Get(name).Finish != want {
			t.Errorf("%s finishes for clients that have left: %v", name, !want)
		}
	}
	if p := s.Providers.Get("plain"); p.NeedsCredential || p.Unlisted || p.SelfHosted || p.Models != "/models" {
		t.Errorf("%+v", p)
	}
	if s.Guards == nil || s.Cache.Size != 8<<20 || s.Cache.Entry != 4<<20 {
		t.Errorf("%+v", s.Cache)
	}
}

func endpoint(t *testing.T, s *Snapshot, model, name string) *gateway.Endpoint {
	t.Helper()
	m := s.Catalog.Lookup(model)
	if m == nil {
		t.Fatalf("no model %s", model)
	}
	if i := endpointOf(m, name); i >= 0 {
		return &m.Endpoints[i]
	}
	return nil
}

func TestLoad_Catalog(t *testing.T) {
	t.Parallel()
	s := mustLoad(t, example, "MY_OPENAI", "sk-env")
	if e := endpoint(t, s, "openai/gpt-5", "openai"); e.Price.Input.String() != "0.000001" || e.Price.Output.String() != "0.000005" || e.Price.Version != "settings" || e.Price.CacheRead != nil || !e.Configured || !e.NoTraining {
		t.Errorf("a price of the operator's: %+v", e)
	}
	if e := endpoint(t, s, "best", "azure"); e.Model != "prod-gpt5" || e.Price == nil || e.Price.Version == "settings" {
		t.Errorf("a deployment: %+v", e)
	}
	if endpoint(t, s, "openai/gpt-5", "work") != nil {
		t.Error("an endpoint that is disabled")
	}
	if e := endpoint(t, s, "openai/gpt-5-mini", "work"); e == nil || e.Model != "gpt-5-mini" || e.Price == nil {
		t.Errorf("what others of the kind offer: %+v", e)
	}
	if e := endpoint(t, s, "meta/llama-3.3-70b", "my-vllm"); e.Model != "llama-3.3" || e.Price.Input.String() != "0.0000001" || !e.ZeroRetention {
		t.Errorf("a model of a server: %+v", e)
	}
	if e := endpoint(t, s, "acme/tuned", "my-vllm"); e.Model != "tuned-1" {
		t.Errorf("a new model of a server: %+v", e)
	}
	if e := endpoint(t, s, "acme/new", "plain"); e.Model != "new-v1" || e.Price != nil || !e.Configured {
		t.Errorf("a new model: %+v", e)
	}
	if m := s.Catalog.Lookup("acme/new"); m.Name != "New" || m.Context != 1000 || m.Kind != "language" {
		t.Errorf("%+v", m)
	}
	if s.Catalog.Lookup("openai/gpt-4.1") != nil {
		t.Error("a model that is disabled")
	}
	if e := endpoint(t, s, "anthropic/claude-sonnet-4.5", "anthropic"); e.Configured {
		t.Error("a provider without a credential is configured")
	}
	// Changes in one configuration do not show in another.
	if e := endpoint(t, mustLoad(t, ""), "openai/gpt-5", "openai"); e.Price.Version == "settings" || e.Configured {
		t.Errorf("%+v", e)
	}
}

func TestSnapshot_Route(t *testing.T) {
	t.Parallel()
	s := mustLoad(t, example, "MY_OPENAI", "k")
	low, high := func(int) int { return 0 }, func(n int) int { return n - 1 }
	for _, c := range []struct {
		model string
		draw  func(int) int
		want  string
	}{
		{"openai/gpt-5", low, ""},
		{"fast", low, "openai/gpt-5-nano"},
		{"gpt-4o", low, "openai/gpt-5"},
		{"trial", low, "openai/gpt-5"},
		{"trial", func(n int) int { return 89 }, "openai/gpt-5"},
		{"trial", func(n int) int { return 90 }, "openai/gpt-5-nano"},
		{"trial", high, "openai/gpt-5-nano"},
		{"careful", low, "anthropic/claude-sonnet-4.5"},
		{"google/gemini-3-pro-preview", low, ""},
		{"unknown", low, ""},
	} {
		p, err := s.route(&ledger.Caller{ProjectID: "p2"}, c.model, c.draw)
		if err != nil || p.Model != c.want {
			t.Errorf("%s: %+v %v, want %s", c.model, p, err, c.want)
		}
	}
	p, err := s.Route(nil, "careful")
	if got, want := fmt.Sprintf("%+v %v", p, err), "{Model:anthropic/claude-sonnet-4.5 Models:[openai/gpt-5-nano] Order:[] Only:[anthropic bedrock openai] Sort:cost ZeroData:true NoTraining:false Has:[tool-use] AutoCache:true ServiceTier:flex} <nil>"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if p, err := s.Route(nil, "openai/gpt-5-mini"); err != nil || p.Model != "" || !slices.Equal(p.Order, []string{"azure"}) {
		t.Errorf("a model with more to it: %+v %v", p, err)
	}
	if p, err := s.Route(&ledger.Caller{ProjectID: "p1"}, "google/gemini-3-pro-preview"); err != nil || p.Model != "openai/gpt-5-nano" {
		t.Errorf("a rule of a project: %+v %v", p, err)
	}
	_, err = s.Route(nil, "xai/grok-4.3")
	e, ok := err.(*hub.Error)
	if !ok || e.Kind != hub.Forbidden || e.Message != "not here" || string(e.Details) != `{"ruleId":"no-xai"}` {
		t.Errorf("%+v", err)
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"*", "", true}, {"*", "a/b", true}, {"a", "a", true}, {"a", "ab", false}, {"a*", "ab/c", true}, {"*c", "ab/c", true}, {"a*c*e", "abcde", true},
		{"a*c*e", "abcd", false}, {"a*a", "a", false}, {"**", "x", true}, {"a*b*b", "ab", false}, {"", "", true},
	} {
		if got := matches(c.pattern, c.name); got != c.want {
			t.Errorf("%q and %q: %v", c.pattern, c.name, got)
		}
	}
}

func TestLoad_Wrong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"provider: {}", "gateway.yaml:1: unknown field \"provider\""},
		{"providers:\n  openai:\n    api_key: sk-secret\n", "gateway.yaml:3: unknown field \"api_key\""},
		{"providers:\n  openai:\n    key: {env: NOPE}\n", "gateway.yaml:3: providers.openai.key: the variable NOPE is not set"},
		{"providers:\n  openai:\n    key: {env: A, file: B}\n", "write the text itself"},
		{"providers:\n  openai:\n    key: {file: /nonexistent}\n", "gateway.yaml:3: providers.openai.key: cannot read the secret: open /nonexistent: no such file"},
		{"providers:\n  openai:\n    key: \"sk-secret\\nx\"\n", "gateway.yaml:3: providers.openai.key: the secret has a character"},
		{"providers:\n  openai:\n    keys:\n      - {key: a}\n      - {name: \"key-1\", key: sk-secret}\n", "gateway.yaml:5: providers.openai.keys[1]: there are two credentials"},
		{"providers:\n  mine: {}\n", "gateway.yaml:2: providers.mine: mine is no kind of provider that is known"},
		{"providers:\n  mine: {kind: opnai}\n", "providers.mine.kind: \"opnai\" is not known"},
		{"providers:\n  Mine: {kind: openai}\n", "is no name of a provider"},
		{"providers:\n  mine:\n    format: chat\n    base_url: http://x/v1\n", "gateway.yaml:3: providers.mine.format: \"chat\" is none of"},
		{"providers:\n  openai:\n    base_url: api.openai.com\n", "gateway.yaml:3: providers.openai.base_url: \"api.openai.com\" is not an address"},
		{"providers:\n  openai:\n    base_url: https://u:sk-secret@h/v1\n", "\"...@h/v1\" is not an address"},
		{"providers:\n  openai:\n    first_byte: 1ms\n", "gateway.yaml:3: providers.openai.first_byte: 1ms is not from"},
		{"providers:\n  openai:\n    on_disconnect: wait\n", "gateway.yaml:3: providers.openai.on_disconnect: \"wait\" is neither cancel nor finish"},
		{"defaults:\n  on_disconnect: wait\n", "gateway.yaml:2: defaults.on_disconnect: \"wait\" is neither cancel nor finish"},
		{"providers:\n  openai:\n    quirks: [openai, nope]\n", "providers.openai.quirks[1]: \"nope\" is no quirk"},
		{"providers:\n  openai:\n    headers: {Host: x}\n", "providers.openai.headers.Host"},
		{"providers:\n  openai:\n    paths: {models: models}\n", "providers.openai.paths.models"},
		{"providers:\n  openai:\n    country: usa\n", "is no code of a country"},
		{"providers:\n  openai:\n    price: {input: 1}\n", "providers.openai.price: output is missing"},
		{"providers:\n  azure: {key: k}\n", "Azure takes a resource"},
		{"providers:\n  azure: {key: k, resource: r, deployments: true}\n", "take an API version"},
		{"providers:\n  azure: {key: k, resource: \"x.evil/\"}\n", "cannot be a part of an address"},
		{"providers:\n  vertex: {key: k, project: p}\n", "takes a service_account"},
		{"providers:\n  vertex: {service_account: sk-secret, project: p}\n", "providers.vertex.service_account: it is not JSON"},
		{"providers:\n  bedrock:\n    aws:\n      access_key_id: AKIDEXAMPLE\n", "providers.bedrock.aws.secret_access_key"},
		{"providers:\n  bedrock: {auth: google-default}\n", "gateway.yaml:2: providers.bedrock.auth: \"google-default\" is not aws-default"},
		{"providers:\n  openai: {auth: aws-default}\n", "gateway.yaml:2: providers.openai.auth: openai takes none"},
		{"providers:\n  bedrock: {profile: work}\n", "gateway.yaml:2: providers.bedrock.profile: a profile is for auth: aws-default"},
		{"models:\n  gpt: {endpoints: {cay: {}}}\n", "gateway.yaml:2: models.gpt: id \"gpt\" is not creator/model"},
		{"models:\n  a/b: {name: x}\n", "nobody offers it"},
		{"models:\n  a/b:\n    endpoints: {nobody: {}}\n", "gateway.yaml:3: models.a/b.endpoints.nobody: there is no provider \"nobody\""},
		{"models:\n  a/b: {kind: brain, endpoints: {cay: {}}}\n", "kind \"brain\" is none of"},
		{"models:\n  openai/gpt-5:\n    endpoints:\n      openai:\n        price: {input: -1, output: 1}\n", "gateway.yaml:5: models.openai/gpt-5.endpoints.openai.price: input is -1"},
		{"models:\n  a/b: {disabled: true}\n", "no such model to disable"},
		{"aliases:\n  x: nobody/knows\n", "gateway.yaml:2: aliases.x: \"nobody/knows\" is no model that is known"},
		{"aliases: {a: b, b: c, c: a}\n", "stands for itself"},
		{"aliases: {a: a}\n", "stands for itself"},
		{"aliases: {a: s}\nsplits:\n  s: [{model: a, weight: 1}]\n", "stands for itself"},
		{"aliases: {a: cay/scripted}\nsplits: {a: [{model: cay/scripted, weight: 1}]}\n", "aliases has the same name"},
		{"splits:\n  s:\n    - {model: cay/scripted, weight: 0}\n", "gateway.yaml:3: splits.s[0]: the weight is 0"},
		{"splits: {s: []}\n", "no model to draw"},
		{"virtual:\n  v:\n    model: cay/scripted\n    only: [nobody]\n", "gateway.yaml:4: virtual.v.only[0]: there is no provider \"nobody\""},
		{"virtual:\n  v: {model: cay/scripted, sort: price}\n", "virtual.v.sort: \"price\" is none of cost"},
		{"virtual:\n  v: {model: w}\n  w: {model: cay/scripted}\n", "is a virtual model itself"},
		{"virtual:\n  v: {model: v}\n", "no model that is known"},
		{"rules:\n  - {model: \"*\"}\n", "gateway.yaml:2: rules[0]: a rule has either"},
		{"rules:\n  - {model: \"*\", deny: no}\n", "has an id"},
		{"rules:\n  - {model: \"*\", rewrite: nope}\n", "rules[0].rewrite"},
		{"guards:\n  answers: [{preset: key, action: block}]\n", "gateway.yaml:1: guards: answers are guarded, and streams would pass"},
		{"guards:\n  requests:\n    - {preset: email, action: block}\n    - {regex: \"(\", action: block}\n", "gateway.yaml:4: guards.requests[1]: regex"},
		{"guards:\n  requests:\n    - {preset: email}\n", "guards.requests[0].action: \"\" is neither"},
		{"guards:\n  webhook: {url: ftp://x}\n", "webhook.url is not an address"},
		{"guards: {streams: pass}\n", "guards.streams"},
		{"cache: {size: 1MiB, entry: 2MiB}\n", "cache.entry"},
		{"capture: {bodies: true}\n", "bodies"},
		{"capture: {max: 1MiB}\n", "capture: none of requests, answers and spans is true"},
		{"capture: {answers: true, max: 9MiB}\n", "capture: max is 9437184 bytes"},
		{"capture: {answers: true, quota: 300KiB}\n", "capture: quota is"},
		{"capture: {requests: true, retention: 1s}\n", "capture: retention is 1s"},
		{"capture: {requests: true, models: ['[']}\n", "models"},
		{"capture: {requests: true, redact: [{preset: names}]}\n", "capture.redact[0]"},
		{"capture: {requests: true, redact: [{preset: email, action: block}]}\n", "capture.redact[0].action"},
		{"defaults: {idle: 2h}\n", "defaults.idle"},
		{"aliases: {a: &x cay/scripted, b: *x}\n", "no anchors"},
		{"aliases: {}\n---\naliases: {}\n", "more than one document"},
		{"aliases: [", "gateway.yaml:"},
		{"aliases:\n  a: cay/scripted\n  a: cay/scripted\n", "gateway.yaml:3"},
		{strings.Repeat("[", 100), "nested too deeply"},
		{"\ncache: {size: lots}\n", "gateway.yaml:2: \"lots\" is not a size"},
		{"defaults:\n  idle: soon\n", "gateway.yaml:2: "},
		{"providers:\n  openai:\n    idle: soon\n", "gateway.yaml:3: "},
	} {
		_, err := load(t, c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q:\n  %v\n  want %s", c.text, err, c.want)
		}
		if err != nil && strings.Contains(fmt.Sprintf("%+v", err), "sk-secret") {
			t.Errorf("%q: the error has the secret in it: %v", c.text, err)
		}
	}
}

func TestLoad_Environment(t *testing.T) {
	t.Parallel()
	google := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(google, []byte(`{"type":"authorized_user"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		text string
		env  []string
		want string // configured, or a part of the error
		err  bool
	}{
		{name: "nothing", want: "cay"},
		{name: "usual keys", env: []string{"OPENAI_API_KEY", "k", "GEMINI_API_KEY", "k", "DEEPINFRA_TOKEN", "k"}, want: "cay deepinfra google openai"},
		{name: "not wanted", text: "environment: false", env: []string{"OPENAI_API_KEY", "k"}, want: "cay"},
		{name: "keys of AWS are for many things", env: []string{"AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY", "s"}, want: "cay"},
		{name: "unless it is said so", text: "providers: {bedrock: {}}", env: []string{"AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY", "s", "AWS_SESSION_TOKEN", "t", "AWS_REGION", "us-west-2"}, want: "bedrock cay"},
		{name: "half of them", text: "providers: {bedrock: {}}", env: []string{"AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"}, want: "AWS_SECRET_ACCESS_KEY is not set", err: true},
		{name: "a key of Bedrock's", env: []string{"AWS_BEARER_TOKEN_BEDROCK", "k"}, want: "bedrock cay"},
		{name: "a wrong region", env: []string{"AWS_BEARER_TOKEN_BEDROCK", "k", "AWS_REGION", "evil.example/"}, want: "set by the environment: region: \"evil.example/\"", err: true},
		{name: "Azure without its resource", env: []string{"AZURE_API_KEY", "k"}, want: "cay"},
		{name: "Azure", env: []string{"AZURE_API_KEY", "k", "AZURE_RESOURCE_NAME", "res"}, want: "azure cay"},
		{name: "Azure by its address", env: []string{"AZURE_OPENAI_API_KEY", "k", "AZURE_OPENAI_ENDPOINT", "https://res.openai.azure.com/"}, want: "azure cay"},
		{name: "Vertex with another kind of key", env: []string{"GOOGLE_VERTEX_PROJECT", "p", "GOOGLE_APPLICATION_CREDENTIALS", google}, want: "GOOGLE_APPLICATION_CREDENTIALS: it is of the type \"authorized_user\"", err: true},
		{name: "servers", env: []string{"OLLAMA_BASE_URL", "http://gpu:11434", "VLLM_BASE_URL", "http://gpu:8000/v1"}, want: "cay ollama vllm"},
		{name: "a broken key", env: []string{"OPENAI_API_KEY", "two\nlines"}, want: "OPENAI_API_KEY: the secret has a character", err: true},
		{name: "the file wins", text: "providers: {openai: {disabled: true}}", env: []string{"OPENAI_API_KEY", "k"}, want: "cay"},
		{name: "another name has no key of the environment's", text: "providers: {second: {kind: openai}}", env: []string{"OPENAI_API_KEY", "k"}, want: "cay openai"},
		{name: "cay can be turned off", text: "providers: {cay: {disabled: true}}", want: ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, err := load(t, c.text, c.env...)
			if c.err {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %s", err, c.want)
				}
				return
			}
			if err != nil || configured(s) != c.want {
				t.Errorf("%s %v, want %s", configured(s), err, c.want)
			}
		})
	}
	s := mustLoad(t, "", "AZURE_API_KEY", "k", "AZURE_OPENAI_ENDPOINT", "https://res.openai.azure.com/", "OLLAMA_HOST", "gpu")
	if got := s.Providers.Get("azure").BaseURL; got != "https://res.openai.azure.com/openai/v1" {
		t.Error(got)
	}
	if got := s.Providers.Get("ollama").BaseURL; got != "http://gpu:11434/v1" {
		t.Error(got)
	}
	s = mustLoad(t, "providers: {azure: {resource: r, key: k, deployments: true, api_version: 2024-10-21}}")
	if got := s.Providers.Get("azure").BaseURL; got != "https://r.openai.azure.com/openai" {
		t.Error(got)
	}
}

func TestSnapshot_Custom(t *testing.T) {
	t.Parallel()
	s := mustLoad(t, "")
	p := s.Providers.Get("mistral")
	if p == nil || len(p.Credentials) != 0 || !p.NeedsCredential {
		t.Fatalf("%+v", p)
	}
	if c, err := s.Custom(p, []byte(`{"apiKey":"k"}`)); err != nil || !c.BYOK() {
		t.Errorf("%v %v", c, err)
	}
	s = mustLoad(t, "byok: false\nproviders: {openai: {key: k}}")
	if s.Providers.Get("mistral") != nil {
		t.Error("a provider nobody can use")
	}
	if _, err := s.Custom(s.Providers.Get("openai"), []byte(`{"apiKey":"k"}`)); err == nil || err.(*hub.Error).Kind != hub.Forbidden {
		t.Errorf("%v", err)
	}
}

// Every quirk of a known provider is a quirk of its format.
func TestQuirks(t *testing.T) {
	t.Parallel()
	s := mustLoad(t, "")
	n := 0
	for _, name := range s.Providers.Names() {
		for q := range s.Providers.Get(name).Quirks {
			n++
			if !quirks[q] {
				t.Errorf("%s has the quirk %q, which no format knows", name, q)
			}
		}
	}
	if n < 20 {
		t.Errorf("%d quirks", n)
	}
	for _, k := range provider.KnownKinds() {
		for _, f := range k.Formats {
			if !slices.Contains(formats, f) {
				t.Errorf("%s speaks %s", k.Kind, f)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("providers:\n  openai:\n    key: {env: X}\n"))
	f.Add([]byte("guards: {requests: [{regex: '(', action: block}]}"))
	f.Add([]byte("aliases: {a: &x b, c: *x}"))
	f.Add([]byte("rules: [{model: '*', deny: x, id: y}]\n---\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		src, err := parse("f", b)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f") {
				t.Fatalf("%v", err)
			}
			return
		}
		for name, p := range src.file.Providers { // files of the machine stay unread
			if p == nil {
				continue
			}
			for _, r := range append([]*Ref{p.Key, p.ServiceAccount}, values(p.Headers)...) {
				if r != nil && r.File != "" {
					t.Skip(name)
				}
			}
		}
		s, err := build(inputs{src: src, env: env("X", "k"), byok: provider.NewBYOK(nil)})
		if err != nil {
			return
		}
		for _, name := range []string{"a", "gpt-5", "openai/gpt-5", "fast", "trial", ""} {
			if _, err := s.Route(nil, name); err != nil && err.(*hub.Error).Kind != hub.Forbidden {
				t.Fatal(err)
			}
		}
	})
}

func values(m map[string]*Ref) (all []*Ref) {
	for _, r := range m {
		all = append(all, r)
	}
	return all
}

// A server at the operator's address may accept any key: a caller who brings a key would
// pay nothing there.
func TestProviders_OperatorOnly(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"providers: {openai: {key: k}}":                                                   false,
		"providers: {openai: {key: k, base_url: 'https://proxy.example/v1'}}":             true,
		"byok: true\nproviders: {openai: {key: k, base_url: 'https://proxy.example/v1'}}": false,
		"providers: {openai: {headers: {x-team: a}}}":                                     true,
	} {
		if got := mustLoad(t, text).Providers.Get("openai").OperatorOnly; got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// Texts go into spans if the file or OpenTelemetry's own variable asks for it.
func TestLoad_Spans(t *testing.T) {
	t.Parallel()
	const name = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
	for _, c := range []struct {
		text  string
		env   []string
		spans bool
	}{
		{"capture: {spans: true}", nil, true},
		{"", []string{name, "true"}, true},
		{"", []string{name, "span_and_event"}, true},
		{"", []string{name, "EVENT_ONLY"}, false},
		{"environment: false", []string{name, "true"}, false},
		{"capture: {requests: true}", nil, false},
	} {
		s := mustLoad(t, c.text, c.env...)
		if got := s.Capture != nil && s.Capture.Spans; got != c.spans || got && s.Capture.Redact.Empty() {
			t.Errorf("%q with %v: %+v", c.text, c.env, s.Capture)
		}
	}
}
