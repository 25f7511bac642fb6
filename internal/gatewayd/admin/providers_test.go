package admin_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/gatewayd/admin"
	"github.com/cayhq/cay/internal/gatewayd/settings"
	secrets "github.com/cayhq/cay/internal/secret"
)

// configured is a manager with real settings, for one test.
type configured struct {
	live *settings.Live
	as   func(secret string) (admin.Service, context.Context)
}

// overEachConfigured runs a test on a manager, and on the client over HTTP. file is the
// content of the settings file.
func overEachConfigured(t *testing.T, file string, test func(t *testing.T, c configured)) {
	build := func(t *testing.T) (configured, *admin.Manager) {
		dir := t.TempDir()
		name := filepath.Join(dir, "gateway.yaml")
		checktest.OK(t, os.WriteFile(name, []byte(file), 0o600))
		d := dbtest.OpenFile(t, filepath.Join(dir, "gateway.db"))
		box, err := secrets.Open(filepath.Join(dir, "secret.key"))
		checktest.OK(t, err)
		store, err := settings.NewStore(t.Context(), d, box)
		checktest.OK(t, err)
		live, err := settings.Open(t.Context(), settings.Options{File: name, Required: true, Store: store, Env: func(v string) string {
			return map[string]string{"MISTRAL_API_KEY": "of-the-environment"}[v]
		}})
		checktest.OK(t, err)
		return configured{live: live}, &admin.Manager{Models: unwell{}, Providers: live, Projects: holding{}}
	}
	t.Run("Manager", func(t *testing.T) {
		t.Parallel()
		c, manager := build(t)
		c.as = func(secret string) (admin.Service, context.Context) {
			return manager, api.WithPrincipal(t.Context(), holders[secret])
		}
		test(t, c)
	})
	t.Run("Client", func(t *testing.T) {
		t.Parallel()
		c, manager := build(t)
		mux := api.NewMux(holding{})
		admin.Routes(mux, manager)
		srv := httptest.NewUnstartedServer(nil)
		srv.Config = api.NewServer(described(t, mux), nil, slog.New(slog.DiscardHandler))
		srv.Start()
		t.Cleanup(srv.Close)
		c.as = func(secret string) (admin.Service, context.Context) {
			return &gateway.Client{URL: srv.URL, Token: secret, HTTPClient: srv.Client()}, t.Context()
		}
		test(t, c)
	})
}

// unwell has a model whose one endpoint is not used at present.
type unwell struct{}

func (unwell) Models() []gateway.Model {
	return []gateway.Model{{ID: "a/b", Endpoints: []gateway.Endpoint{
		{Provider: "mistral", Health: gateway.Health{State: "ok"}}, {Provider: "mistral", Health: gateway.Health{State: "open"}}, {Provider: "mistral", Health: gateway.Health{State: "degraded"}},
	}}}
}

func want(t *testing.T, err error, code cay.Code, text string) {
	t.Helper()
	if cay.CodeOf(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("%v (%s), want %s with %q", err, cay.CodeOf(err), code, text)
	}
}

func TestManager_Providers(t *testing.T) {
	t.Parallel()
	overEachConfigured(t, "providers: {openai: {key: in-the-file}}\n", func(t *testing.T, c configured) {
		operator, actx := c.as("admin")
		team, ctx := c.as("team")
		yes := true
		params := gateway.ProviderParams{
			Format: []string{"chatcompletions"}, BaseURL: "http://10.0.0.5:8000/v1", Keys: []gateway.ProviderKey{{Name: "a", Key: "canary-1"}},
			Headers: map[string]string{"X-Org": "canary-2"}, SelfHosted: &yes, Price: &gateway.ListPrice{Input: "0.05", Output: "0.10"},
			Models: map[string]string{"meta/llama": "llama"}, Paths: gateway.ProviderPaths{Rerank: "none"}, FirstByte: gateway.Duration(30e9),
		}
		for range 2 { // setting it twice is allowed
			p, err := operator.SetProvider(actx, "house", params)
			checktest.OK(t, err)
			if p.Name != "house" || p.Source != gateway.FromAPI || p.BaseURL != params.BaseURL || !p.Configured || !slices.Equal(p.Credentials, []string{"a"}) || p.Health != "unknown" {
				t.Errorf("%+v", p)
			}
			for _, text := range []string{`"key":{"set":true}`, `"first_byte":"30s"`, `"rerank":"none"`} {
				if !strings.Contains(strings.ReplaceAll(string(p.Settings), " ", ""), text) {
					t.Errorf("%s is without %s", p.Settings, text)
				}
			}
			if strings.Contains(string(p.Settings), "canary") {
				t.Error("a secret is shown")
			}
		}
		if p := c.live.Current().Providers.Get("house"); p == nil || p.BaseURL != params.BaseURL || p.Header.Get("X-Org") != "canary-2" {
			t.Errorf("calls that begin now have %+v", p)
		}
		all, err := operator.ListProviders(actx)
		checktest.OK(t, err)
		find := func(all []gateway.Provider, name string) gateway.Provider {
			i := slices.IndexFunc(all, func(p gateway.Provider) bool { return p.Name == name })
			if i < 0 {
				t.Fatalf("there is no %s", name)
			}
			return all[i]
		}
		if p := find(all, "openai"); p.Source != gateway.FromFile || p.Settings != nil || !slices.Equal(p.Credentials, []string{"key"}) {
			t.Errorf("%+v", p)
		}
		if p := find(all, "mistral"); p.Source != gateway.FromEnvironment || p.Health != "open" || p.Kind != "mistral" {
			t.Errorf("%+v", p)
		}
		if p := find(all, "groq"); p.Source != gateway.FromTable || p.Configured || p.Credentials != nil {
			t.Errorf("%+v", p)
		}
		// Other tokens see only names and states.
		all, err = team.ListProviders(ctx)
		checktest.OK(t, err)
		if p := find(all, "house"); !reflect.DeepEqual(p, gateway.Provider{Name: "house", Source: gateway.FromAPI, Formats: []string{"chatcompletions"}, Configured: true, Health: "unknown"}) {
			t.Errorf("%+v", p)
		}
		_, err = team.GetProvider(ctx, "nobody")
		want(t, err, cay.NotFound, "nobody")

		// Only admins may change providers, because the address can be anything.
		for _, secret := range []string{"team", "project", "other"} {
			svc, ctx := c.as(secret)
			_, err := svc.SetProvider(ctx, "mine", gateway.ProviderParams{Format: []string{"chatcompletions"}, BaseURL: "http://169.254.169.254/v1"})
			want(t, err, cay.PermissionDenied, "admin token")
			want(t, svc.DeleteProvider(ctx, "house"), cay.PermissionDenied, "admin token")
		}
		if c.live.Current().Providers.Get("mine") != nil {
			t.Error("a provider is there that was refused")
		}

		_, err = operator.SetProvider(actx, "openai", gateway.ProviderParams{Key: "canary-3"})
		want(t, err, cay.Conflict, "in the file of settings")
		want(t, operator.DeleteProvider(actx, "openai"), cay.Conflict, "in the file of settings")
		_, err = operator.SetProvider(actx, "x", gateway.ProviderParams{})
		want(t, err, cay.Invalid, "no kind of provider")
		_, err = operator.SetProvider(actx, "X!", gateway.ProviderParams{Kind: "openai"})
		want(t, err, cay.Invalid, "no name of a provider")
		p, err := operator.SetProvider(actx, "mistral", gateway.ProviderParams{Disabled: true})
		checktest.OK(t, err)
		if p.Configured || !p.Disabled || c.live.Current().Providers.Get("mistral") != nil {
			t.Errorf("%+v is disabled", p)
		}
		all, err = team.ListProviders(ctx)
		checktest.OK(t, err)
		if p := find(all, "mistral"); !p.Disabled || p.Source != gateway.FromAPI || p.Settings != nil {
			t.Errorf("%+v", p)
		}
		if !slices.IsSortedFunc(all, func(a, b gateway.Provider) int { return strings.Compare(a.Name, b.Name) }) {
			t.Errorf("%+v", all)
		}
		checktest.OK(t, operator.DeleteProvider(actx, "mistral")) // the environment configures it again
		if got, err := operator.GetProvider(actx, "mistral"); err != nil || got.Source != gateway.FromEnvironment {
			t.Errorf("%+v, %v", got, err)
		}
		want(t, operator.DeleteProvider(actx, "mistral"), cay.NotFound, "not set by the API")
	})
}

func TestManager_Credentials(t *testing.T) {
	t.Parallel()
	file := `
providers:
  house: {format: chatcompletions, base_url: http://10.0.0.5/v1, key: x}
projects:
  prj_two: {providers: {anthropic: [{name: first, key: canary-1, fallback: true}, {key: canary-2}]}}
`
	overEachConfigured(t, file, func(t *testing.T, c configured) {
		operator, actx := c.as("admin")
		team, ctx := c.as("team")
		project, pctx := c.as("project")
		other, octx := c.as("other")
		own := func(project, provider string) (ids []string, fallback bool) {
			list, fallback := c.live.Current().Own(project, provider)
			for _, cred := range list {
				if !cred.BYOK() {
					t.Errorf("%s is not its own", cred)
				}
				ids = append(ids, cred.ID())
			}
			return ids, fallback
		}
		if ids, fallback := own("prj_two", "anthropic"); !slices.Equal(ids, []string{"prj_two/first", "prj_two/key-2"}) || fallback {
			t.Errorf("%v %v", ids, fallback)
		}
		if ids, fallback := own(account.DefaultProject, "anthropic"); ids != nil || !fallback {
			t.Errorf("%v %v", ids, fallback)
		}

		// A project's token manages the project's own credentials.
		id := gateway.CredentialID{Provider: "openai", Name: "main"}
		for range 2 {
			got, err := project.SetCredential(pctx, id, gateway.CredentialParams{Key: "canary-3", Fallback: true, Models: map[string]string{"openai/gpt-5": "ours"}})
			checktest.OK(t, err)
			if got.ProjectID != "prj_two" || got.Source != gateway.FromAPI || !got.Fallback || got.Problem != "" || got.UpdatedAt == nil {
				t.Errorf("%+v", got)
			}
		}
		if ids, fallback := own("prj_two", "openai"); !slices.Equal(ids, []string{"prj_two/main"}) || !fallback {
			t.Errorf("%v %v", ids, fallback)
		}
		_, err := project.SetCredential(pctx, gateway.CredentialID{ProjectID: account.DefaultProject, Provider: "openai", Name: "main"}, gateway.CredentialParams{Key: "k"})
		want(t, err, cay.NotFound, account.DefaultProject)
		_, err = team.SetCredential(ctx, gateway.CredentialID{ProjectID: "prj_none", Provider: "openai", Name: "main"}, gateway.CredentialParams{Key: "k"})
		want(t, err, cay.NotFound, "prj_none")
		_, err = team.SetCredential(ctx, gateway.CredentialID{ProjectID: "prj_two", Provider: "openai", Name: "spare"}, gateway.CredentialParams{Key: "k"})
		checktest.OK(t, err)
		if ids, fallback := own("prj_two", "openai"); !slices.Equal(ids, []string{"prj_two/main", "prj_two/spare"}) || fallback { // one credential has Fallback false
			t.Errorf("%v %v", ids, fallback)
		}

		// A server at the operator's address may accept any credential: a project's
		// credential there would make its calls free.
		house := gateway.CredentialID{ProjectID: "prj_two", Provider: "house", Name: "main"}
		_, err = team.SetCredential(ctx, house, gateway.CredentialParams{Key: "k"})
		want(t, err, cay.PermissionDenied, "operator")
		_, err = team.SetCredential(ctx, gateway.CredentialID{ProjectID: "prj_two", Provider: "ollama", Name: "main"}, gateway.CredentialParams{Key: "k"})
		want(t, err, cay.NotFound, "ollama")
		_, err = operator.SetCredential(actx, house, gateway.CredentialParams{Key: "k"})
		checktest.OK(t, err)
		if ids, _ := own("prj_two", "house"); len(ids) != 1 {
			t.Errorf("%v", ids)
		}

		for text, params := range map[string]gateway.CredentialParams{
			"one of key, aws":         {},
			"aws and service_account": {Key: "canary-4", AWS: &gateway.AWSKeys{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "canary-5"}},
			"Vertex takes":            {ServiceAccount: "canary-6"},
			"only Bedrock":            {AWS: &gateway.AWSKeys{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "canary-5"}},
			"region: this provider":   {Key: "canary-4", Region: "us-east-1"},
			"key: the secret has a":   {Key: "canary\n7"},
			"a model is creator":      {Key: "canary-4", Models: map[string]string{"gpt-5": "x"}},
		} {
			_, err := team.SetCredential(ctx, gateway.CredentialID{ProjectID: "prj_two", Provider: "groq", Name: "x"}, params)
			want(t, err, cay.Invalid, text)
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("%v shows a secret", err)
			}
		}
		_, err = team.SetCredential(ctx, gateway.CredentialID{ProjectID: "prj_two", Provider: "azure", Name: "x"}, gateway.CredentialParams{Key: "k"})
		want(t, err, cay.Invalid, "resource")
		_, err = team.SetCredential(ctx, gateway.CredentialID{ProjectID: "prj_two", Provider: "azure", Name: "x"}, gateway.CredentialParams{Key: "k", Resource: "evil.example/x"})
		want(t, err, cay.Invalid, "address")
		_, err = team.SetCredential(ctx, gateway.CredentialID{ProjectID: "prj_two", Provider: "groq", Name: "X!"}, gateway.CredentialParams{Key: "k"})
		want(t, err, cay.Invalid, "no name of a credential")
		_, err = project.SetCredential(pctx, gateway.CredentialID{Provider: "anthropic", Name: "more"}, gateway.CredentialParams{Key: "k"})
		want(t, err, cay.Conflict, "in the file of settings")

		list := func(svc admin.Service, ctx context.Context, f gateway.CredentialFilter) (names []string) {
			t.Helper()
			all, err := svc.ListCredentials(ctx, f)
			checktest.OK(t, err)
			text, err := json.Marshal(all)
			checktest.OK(t, err)
			if strings.Contains(string(text), "canary") {
				t.Errorf("%s shows a secret", text)
			}
			for _, c := range all {
				names = append(names, c.Provider+"/"+c.Name+" "+string(c.Source))
			}
			return names
		}
		everything := []string{"anthropic/first file", "anthropic/key-2 file", "house/main api", "openai/main api", "openai/spare api"}
		if got := list(project, pctx, gateway.CredentialFilter{}); !slices.Equal(got, everything) {
			t.Error(got)
		}
		if got := list(team, ctx, gateway.CredentialFilter{ProjectID: "prj_two", Provider: "openai"}); !slices.Equal(got, everything[3:]) {
			t.Error(got)
		}
		if got := list(other, octx, gateway.CredentialFilter{}); got != nil {
			t.Errorf("another team sees %v", got)
		}
		want(t, other.DeleteCredential(octx, gateway.CredentialID{ProjectID: "prj_two", Provider: "openai", Name: "main"}), cay.NotFound, "prj_two")
		want(t, project.DeleteCredential(pctx, gateway.CredentialID{ProjectID: account.DefaultProject, Provider: "openai", Name: "main"}), cay.NotFound, account.DefaultProject)
		want(t, project.DeleteCredential(pctx, gateway.CredentialID{Provider: "anthropic", Name: "first"}), cay.Conflict, "file")
		checktest.OK(t, project.DeleteCredential(pctx, id))
		want(t, project.DeleteCredential(pctx, id), cay.NotFound, "main")
		if ids, _ := own("prj_two", "openai"); !slices.Equal(ids, []string{"prj_two/spare"}) {
			t.Errorf("%v", ids)
		}
	})
}
