package settings

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// authorized returns a request authorized with the nth credential of a project.
func authorized(t *testing.T, s *Snapshot, project, name string, n int) *http.Request {
	t.Helper()
	list, _ := s.Own(project, name)
	if len(list) <= n {
		t.Fatalf("%s has %d credentials at %s", project, len(list), name)
	}
	if !list[n].BYOK() {
		t.Errorf("%s is not its own", list[n])
	}
	u, err := url.Parse(s.Providers.Get(name).URL("/chat/completions"))
	if err != nil {
		t.Fatal(err)
	}
	r := &http.Request{Method: http.MethodPost, URL: u, Header: http.Header{}}
	if err := list[n].Authorize(t.Context(), r, []byte(`{"model":"m"}`)); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestProjects(t *testing.T) {
	t.Parallel()
	s := mustLoad(t, `
byok: false
providers:
  bedrock: {region: eu-central-1, key: operators}
  azure: {resource: operators, key: operators, deployments: true, api_version: 2024-10-21}
projects:
  prj_1:
    providers:
      openai: {key: {env: THEIRS}, fallback: true, models: {openai/gpt-5: ours}, zero_retention: true}
      bedrock:
        - {region: us-west-2, aws: {access_key_id: AKIDEXAMPLE, secret_access_key: wJalr}}
        - {name: spare, key: theirs-too}
      azure: {key: theirs, resource: Theirs}
  prj_2:
`, "THEIRS", "their-key")
	r := authorized(t, s, "prj_1", "openai", 0)
	list, fallback := s.Own("prj_1", "openai")
	m, ok := list[0].(provider.Mapped)
	if r.Header.Get("Authorization") != "Bearer their-key" || !fallback || !ok || m.ModelFor("openai/gpt-5") != "ours" || !m.ZeroRetention() {
		t.Errorf("%v %v", r.Header, fallback)
	}
	if r := authorized(t, s, "prj_1", "bedrock", 0); r.URL.Host != "bedrock-runtime.us-west-2.amazonaws.com" || !strings.Contains(r.Header.Get("Authorization"), "/us-west-2/bedrock/") {
		t.Errorf("%s %v", r.URL, r.Header)
	}
	if r := authorized(t, s, "prj_1", "bedrock", 1); r.URL.Host != "bedrock-runtime.eu-central-1.amazonaws.com" || r.Header.Get("Authorization") != "Bearer theirs-too" {
		t.Errorf("%s %v", r.URL, r.Header)
	}
	if r := authorized(t, s, "prj_1", "azure", 0); r.URL.String() != "https://theirs.openai.azure.com/openai/deployments/m/chat/completions?api-version=2024-10-21" || r.Header.Get("Api-Key") != "theirs" {
		t.Errorf("%s %v", r.URL, r.Header)
	}
	if _, fallback := s.Own("prj_1", "bedrock"); fallback {
		t.Error("the operator's credentials come after those that do not say so")
	}
	if list, fallback := s.Own("prj_2", "openai"); list != nil || !fallback {
		t.Errorf("%v", list)
	}
	// Only the project has a key for openai, and requests cannot bring keys.
	if s.Origin("openai") != FromTable || s.Origin("groq") != "" {
		t.Errorf("%q %q", s.Origin("openai"), s.Origin("groq"))
	}
}

func TestProjects_Wrong(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"projects:\n  one: {}\n": "gateway.yaml:2: projects.one: \"one\" is no id of a project",
		"projects:\n  prj_1:\n    providers:\n      nobody: {key: k}\n":                                             "gateway.yaml:4: projects.prj_1.providers.nobody: there is no provider",
		"projects:\n  prj_1:\n    providers:\n      openai:\n        colour: canary\n":                              "gateway.yaml:5: unknown field \"colour\"",
		"projects:\n  prj_1:\n    providers:\n      openai: {}\n":                                                   "a credential is one of key, aws and service_account",
		"projects:\n  prj_1:\n    providers:\n      openai:\n        - {key: a}\n        -\n":                       "it is empty",
		"projects:\n  prj_1:\n    providers:\n      openai:\n        - {key: a}\n        - {key: {env: NOT_SET}}\n": "gateway.yaml:6: projects.prj_1.providers.openai[1].key: the variable NOT_SET is not set",
		"projects:\n  prj_1:\n    providers:\n      openai: [{name: a, key: canary}, {name: a, key: canary}]\n":     "there are two credentials with the name a",
		"projects:\n  prj_1:\n    providers:\n      openai: {key: canary, location: here}\n":                        "location: this provider has none",
		"projects:\n  prj_1:\n    providers:\n      vertex: {service_account: canary}\n":                            "service_account: it is not JSON",
	} {
		_, err := load(t, text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// A stored credential is sealed and survives a restart; if it becomes invalid later, the
// error is listed and the settings stay valid.
func TestLive_Credentials(t *testing.T) {
	t.Parallel()
	store, d := newStore(t)
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	write(t, file, "providers: {work: {kind: openai}}\n")
	o := Options{File: file, Store: store}
	l, _ := open(t, o)
	ctx := t.Context()
	id := gateway.CredentialID{ProjectID: "prj_1", Provider: "work", Name: "key"}
	if _, err := l.PutCredential(ctx, "team", id, []byte(`{"key":"canary-1","fallback":true}`), false); err != nil {
		t.Fatal(err)
	}
	if r := authorized(t, l.Current(), "prj_1", "work", 0); r.Header.Get("Authorization") != "Bearer canary-1" {
		t.Errorf("%v", r.Header)
	}
	var raw []byte
	if err := d.QueryRow(ctx, `SELECT sealed FROM gateway_credentials`).Scan(&raw); err != nil || bytes.Contains(raw, []byte("canary")) {
		t.Errorf("%v, sealed %q", err, raw)
	}
	again, _ := open(t, o)
	if r := authorized(t, again.Current(), "prj_1", "work", 0); r.Header.Get("Authorization") != "Bearer canary-1" {
		t.Errorf("%v", r.Header)
	}
	problem := func(want string) {
		t.Helper()
		all, err := l.Credentials(ctx, "team")
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(c gateway.Credential) bool { return c.Source == FromAPI })
		if i < 0 || want == "" && all[i].Problem != "" || !strings.Contains(all[i].Problem, want) {
			t.Errorf("%+v, want %q", all, want)
		}
	}
	for _, step := range [][2]string{
		{"providers: {other: {kind: openai}}\n", `there is no provider "work"`},
		// The provider's address changes: a credential set for the known address must not
		// be sent to the new one.
		{"providers: {work: {kind: openai, base_url: 'http://10.0.0.1/v1'}}\n", "server of the operator's own"},
		{"providers: {work: {kind: openai}}\nprojects: {prj_1: {providers: {work: {key: of-the-file}}}}\n", "the file of settings has"},
	} {
		text, want := step[0], step[1]
		write(t, file, text)
		if err := l.Reload(ctx); err != nil {
			t.Fatal(err)
		}
		problem(want)
		if list, _ := l.Current().Own("prj_1", "work"); strings.Contains(text, "projects") != (len(list) == 1) {
			t.Errorf("%s: %v", text, list)
		}
	}
	if _, err := l.PutCredential(ctx, "team", id, []byte(`{"key":"x"}`), true); cay.CodeOf(err) != cay.Conflict {
		t.Error(err)
	}
	write(t, file, "providers: {work: {kind: openai}}\n")
	if err := l.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	problem("")
	if err := l.DeleteCredential(ctx, "another", id); cay.CodeOf(err) != cay.NotFound {
		t.Error(err)
	}
	// A row moved to another project or provider, or marked as trusted, cannot be
	// unsealed.
	if _, err := d.Exec(ctx, `UPDATE gateway_credentials SET trusted = 1`); err != nil {
		t.Fatal(err)
	}
	if err := l.Reload(ctx); err == nil {
		t.Error("a credential that somebody has changed in the database is used")
	}
	none, _ := open(t, Options{})
	if _, err := none.PutCredential(ctx, "team", id, []byte(`{"key":"x"}`), true); cay.CodeOf(err) != cay.NotSupported {
		t.Error(err)
	}
}

// roundTrip is a transport that records requests and returns no answer.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A project's service account cannot choose the address for access tokens.
func TestLive_CredentialsOfGoogle(t *testing.T) {
	t.Parallel()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	account, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "a@b.example", "project_id": "theirs", "token_uri": "http://169.254.169.254/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]string{"service_account": string(account), "location": "europe-west4"})
	if err != nil {
		t.Fatal(err)
	}
	store, _ := newStore(t)
	var hosts []string
	l, _ := open(t, Options{Store: store, Client: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		hosts = append(hosts, r.URL.Host)
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{"access_token":"ya29.x","expires_in":3600,"token_type":"Bearer"}`))}, nil
	})}})
	for _, trusted := range []bool{false, true} {
		id := gateway.CredentialID{ProjectID: "prj_1", Provider: "vertex", Name: "key"}
		if _, err := l.PutCredential(t.Context(), "team", id, body, trusted); err != nil {
			t.Fatal(err)
		}
		r := authorized(t, l.Current(), "prj_1", "vertex", 0)
		if r.Header.Get("Authorization") != "Bearer ya29.x" || !strings.HasPrefix(r.URL.String(), "https://europe-west4-aiplatform.googleapis.com/v1/projects/theirs/locations/europe-west4/") {
			t.Errorf("%s %v", r.URL, r.Header)
		}
	}
	// New settings keep the access token.
	if err := l.PutProvider(t.Context(), "groq", []byte(`{"key":"k"}`)); err != nil {
		t.Fatal(err)
	}
	authorized(t, l.Current(), "prj_1", "vertex", 0)
	if !slices.Equal(hosts, []string{"oauth2.googleapis.com", "169.254.169.254"}) {
		t.Errorf("asked %v", hosts)
	}
}

func TestStore_CredentialsBound(t *testing.T) {
	t.Parallel()
	store, d := newStore(t)
	l, _ := open(t, Options{Store: store})
	put := func(name string) error {
		_, err := l.PutCredential(context.Background(), "team", gateway.CredentialID{ProjectID: "prj_1", Provider: "openai", Name: name}, []byte(`{"key":"k"}`), false)
		return err
	}
	if err := put("first"); err != nil {
		t.Fatal(err)
	}
	_, err := d.Exec(t.Context(), `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 99)
		INSERT INTO gateway_credentials SELECT team_id, project_id, 'p' || i, name, trusted, sealed, updated_at FROM gateway_credentials, n`)
	if err != nil {
		t.Fatal(err)
	}
	o := storedOwn{team: "team", id: gateway.CredentialID{ProjectID: "prj_1", Provider: "openai", Name: "more"}}
	if err := store.putCredential(t.Context(), &o, []byte("{}")); cay.CodeOf(err) != cay.QuotaExceeded {
		t.Error(err)
	}
	o.id.Name = "first" // changing an existing credential is allowed
	if err := store.putCredential(t.Context(), &o, []byte("{}")); err != nil {
		t.Error(err)
	}
}

// members returns the JSON names of a type's members, including nested ones.
func members(t reflect.Type, at string) (all []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[Ref]() {
		return nil
	}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "-" || name == "" {
			continue
		}
		all = append(append(all, at+name), members(t.Field(i).Type, at+name+".")...)
	}
	slices.Sort(all)
	return all
}

// The SDK's parameters and the settings have the same members.
func TestParams(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]reflect.Type{
		{reflect.TypeFor[Provider](), reflect.TypeFor[gateway.ProviderParams]()},
		{reflect.TypeFor[Own](), reflect.TypeFor[gateway.CredentialParams]()},
	} {
		if ours, theirs := members(pair[0], ""), members(pair[1], ""); !slices.Equal(ours, theirs) || len(ours) < 10 {
			t.Errorf("%v has\n%v, %v has\n%v", pair[0], ours, pair[1], theirs)
		}
	}
}

// A malformed credential in JSON neither panics nor shows a secret in its error.
func FuzzDecodeOwn(f *testing.F) {
	f.Add([]byte(`{"key":"canary"}`), "openai")
	f.Add([]byte(`{"aws":{"access_key_id":"AKIDEXAMPLE","secret_access_key":"canary"},"region":"us-east-1"}`), "bedrock")
	f.Add([]byte(`{"service_account":"{}","project":"canary"}`), "vertex")
	f.Add([]byte(`{"key":"canary","resource":"r","models":{"a/b":"c"}}`), "azure")
	f.Fuzz(func(t *testing.T, raw []byte, name string) {
		o := storedOwn{id: gateway.CredentialID{ProjectID: "prj_1", Provider: name, Name: "key"}}
		if err := decode(raw, &o.own, "the settings of a credential"); err != nil {
			if cay.CodeOf(err) != cay.Invalid {
				t.Errorf("%v", err)
			}
			return
		}
		s, err := build(inputs{stored: stored{own: []storedOwn{o}}, byok: provider.NewBYOK(nil)})
		if err != nil {
			t.Fatal(err)
		}
		list, _ := s.Own("prj_1", name)
		if problem := s.problems[o.id]; (problem == nil) != (len(list) == 1) {
			t.Errorf("%v, and %d credentials", problem, len(list))
		} else if problem != nil && cay.CodeOf(problem) == cay.Internal {
			t.Errorf("%v does not say whose fault it is", problem)
		}
	})
}
