package settings

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/messages"
)

// Claude models of clouds are called in Anthropic's format.
func TestClouds(t *testing.T) {
	t.Parallel()
	s := mustLoad(t, `
providers:
  vertex: {project: p, location: europe-west1}
  bedrock: {region: eu-central-1, format: [messages, converse]}
  native: {kind: bedrock, format: messages}
  other: {kind: bedrock}
`)
	for _, test := range []struct {
		provider, model string
		formats         []string
		quirk, url      string
	}{
		{"vertex", "claude-sonnet-4-5@20250929", []string{"messages"}, messages.QuirkVertex, "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1/publishers/anthropic"},
		{"vertex", "gemini-2.5-pro", []string{"gemini"}, "", "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1/publishers/google"},
		{"bedrock", "eu.anthropic.claude-sonnet-4-5-20250929-v1:0", []string{"messages", "converse"}, messages.QuirkBedrock, "https://bedrock-runtime.eu-central-1.amazonaws.com"},
		{"bedrock", "amazon.nova-pro-v1:0", []string{"converse"}, "", "https://bedrock-runtime.eu-central-1.amazonaws.com"},
		{"native", "anthropic.claude-3-haiku", []string{"messages"}, messages.QuirkBedrock, "https://bedrock-runtime.us-east-1.amazonaws.com"},
		{"native", "amazon.nova-pro-v1:0", []string{"converse"}, "", "https://bedrock-runtime.us-east-1.amazonaws.com"},
		{"other", "anthropic.claude-3-haiku", []string{"converse"}, "", "https://bedrock-runtime.us-east-1.amazonaws.com"},
	} {
		before := s.Providers.Get(test.provider)
		p := before.For(test.model)
		quirk := p.Quirks[messages.QuirkVertex] || p.Quirks[messages.QuirkBedrock]
		if !slices.Equal(p.Formats, test.formats) || p.BaseURL != test.url || test.quirk != "" && !p.Quirks[test.quirk] || test.quirk == "" && quirk {
			t.Errorf("%s of %s: %v %s %v", test.model, test.provider, p.Formats, p.BaseURL, p.Quirks)
		}
		if before.Quirks[messages.QuirkVertex] || before.Quirks[messages.QuirkBedrock] {
			t.Errorf("%s has changed", test.provider)
		}
	}
}

// A provider can use the credentials that a cloud gives to the daemon; the credential
// survives a change of the settings. The test sets environment variables of the process,
// because the clouds' packages read them there.
func TestClouds_Ambient(t *testing.T) {
	var tokens atomic.Int64
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/token") {
			tokens.Add(1)
		}
		w.Header().Set("Metadata-Flavor", "Google")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"access_token":"ya29.machine","expires_in":3600,"token_type":"Bearer"}`))
	}))
	t.Cleanup(cloud.Close)
	t.Setenv("HOME", t.TempDir())
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(cloud.URL, "http://"))
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIADAEMON")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
	store, _ := newStore(t)
	file := t.TempDir() + "/gateway.yaml"
	const text = `
providers:
  vertex: {project: p, auth: google-default}
  bedrock: {region: eu-central-1, auth: aws-default, base_url: "http://127.0.0.1:1"}
  azure: {resource: mine, auth: azure-default}
`
	write(t, file, text)
	l, _ := open(t, Options{File: file, Store: store})
	for i, more := range []string{"", "defaults: {idle: 1m}\n"} {
		write(t, file, text+more)
		if err := l.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := l.Current()
		if got := configured(s); got != "azure bedrock cay vertex" {
			t.Errorf("configured: %s", got)
		}
		if r := sent(t, s.Providers.Get("vertex"), 0); r.Header.Get("Authorization") != "Bearer ya29.machine" || tokens.Load() != 1 {
			t.Errorf("%d: %v, asked %d times", i, r.Header, tokens.Load())
		}
		if r := sent(t, s.Providers.Get("bedrock"), 0); !strings.Contains(r.Header.Get("Authorization"), "Credential=AKIADAEMON/") || r.URL.Host != "127.0.0.1:1" {
			t.Errorf("%v %v", r.URL, r.Header)
		}
	}
}
