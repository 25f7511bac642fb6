package gateway

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
)

// TestClouds calls models at Bedrock, Azure and Vertex with clients of OpenAI's
// format, and checks what the clouds require of a request beside its body.
func TestClouds(t *testing.T) {
	need(t, ".") // a daemon is built for it
	s := &site{providers: play(t)}
	s.settings = settings{Providers: map[string]map[string]any{}, Models: map[string]*model{}}
	const (
		region, access, secret, session = "eu-central-1", "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "session/token=="
		arn                             = "arn:aws:bedrock:eu-central-1:1:inference-profile/eu.text"
	)
	s.played["converse"].As(arn, "text")
	s.settings.Providers["bedrock"] = map[string]any{
		"region": region, "base_url": s.played["converse"].Behind(t, gatewaytest.SigV4(access, secret, session, region)),
		"aws": map[string]string{"access_key_id": access, "secret_access_key": secret, "session_token": session},
	}
	s.model("bedrock/profile", "language", "bedrock", arn)

	s.settings.Providers["azure"] = map[string]any{
		"base_url": s.played["chat"].Behind(t, func(r *http.Request, _ []byte) error {
			switch {
			case r.Header.Get("Api-Key") != gatewaytest.Key || r.Header.Get("Authorization") != "":
				return fmt.Errorf("the credential is not in api-key, or not only there")
			case r.URL.Path != "/openai/deployments/text/chat/completions" || r.URL.RawQuery != "api-version=2024-10-21":
				return fmt.Errorf("there is nothing at %s", r.URL)
			}
			return nil
		}) + "/openai",
		"key": gatewaytest.Key, "deployments": true, "api_version": "2024-10-21",
	}
	s.model("azure/deployed", "language", "azure", "text")

	file, exchanged := gatewaytest.GoogleAccount(t)
	path := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	s.settings.Providers["vertex"] = map[string]any{
		"base_url": s.played["gemini"].Behind(t, func(r *http.Request, _ []byte) error {
			verb := "generateContent"
			if r.URL.RawQuery == "alt=sse" {
				verb = "streamGenerateContent"
			}
			if r.URL.Path != "/v1/projects/project/locations/europe-west4/publishers/google/models/text:"+verb || r.Header.Get("X-Goog-Api-Key") != "" {
				return fmt.Errorf("there is nothing at %s", r.URL)
			}
			return nil
		}) + "/v1/projects/project/locations/europe-west4/publishers/google",
		"project": "project", "location": "europe-west4", "service_account": map[string]string{"file": path},
	}
	s.model("vertex/gemini", "language", "vertex", "text")

	s.start(t)
	passed := 0
	for _, id := range []string{"bedrock/profile", "azure/deployed", "vertex/gemini"} {
		for extra, want := range map[string]string{"": "choices.0.message.content", `,"stream":true`: ""} {
			body, head := s.ask(t, "/v1/chat/completions", id, extra)
			text := gjson.GetBytes(body, want).String()
			if want == "" {
				for line := range strings.Lines(string(body)) {
					text += gjson.Get(strings.TrimPrefix(line, "data: "), "choices.0.delta.content").String()
				}
			}
			if provider, _, _ := strings.Cut(id, "/"); text != "Hello from the provider." || head.Get("X-Cay-Provider") != provider {
				t.Errorf("%s%s: %q by %s: %.500s", id, extra, text, head.Get("X-Cay-Provider"), body)
				continue
			}
			passed++
		}
	}
	if n := exchanged(); n != 1 {
		t.Errorf("%d access tokens were fetched", n)
	}
	counted(t.Name(), passed, 6-passed)
}
