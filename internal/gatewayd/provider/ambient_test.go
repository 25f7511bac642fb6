package provider_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// The clouds are simulated by a handler at the addresses that their packages take from
// the environment, or, where the address is fixed, by a client that calls only the
// handler. The tests set environment variables of the process, so they are not parallel.

// inside answers requests with a handler, without a network.
type inside struct{ http.Handler }

func (h inside) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	resp := w.Result()
	resp.Request = r
	return resp, nil
}

// bare unsets all environment variables that clouds use, and sets the given ones.
func bare(t *testing.T, env ...string) {
	t.Helper()
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		for _, prefix := range []string{"AWS_", "AZURE_", "GOOGLE_", "GCE_", "CLOUDSDK_", "IDENTITY_", "MSI_", "IMDS_"} {
			if strings.HasPrefix(name, prefix) {
				t.Setenv(name, "") // has it restored
				os.Unsetenv(name)
			}
		}
	}
	t.Setenv("HOME", t.TempDir())
	for i := 0; i < len(env); i += 2 {
		t.Setenv(env[i], env[i+1])
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// keysOf returns the answer of AWS's endpoints with keys.
func keysOf(id string, life time.Duration) string {
	return fmt.Sprintf(`{"Code":"Success","Type":"AWS-HMAC","AccessKeyId":%q,"SecretAccessKey":"secret","Token":"session-%s","Expiration":%q}`,
		id, id, time.Now().Add(life).UTC().Format(time.RFC3339))
}

const bedrock = "https://bedrock-runtime.us-east-1.amazonaws.com/model/m/converse"

func TestAWSDefault(t *testing.T) {
	var asked atomic.Int64
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch {
		case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
			fmt.Fprint(w, "imds-token")
		case strings.HasPrefix(r.URL.Path, "/latest/"):
			switch path := strings.TrimSuffix(r.URL.Path, "/"); {
			case r.Header.Get("X-Aws-Ec2-Metadata-Token") != "imds-token": // version 1
				http.Error(w, "a token is required", http.StatusUnauthorized)
			case strings.HasSuffix(path, "/iam/security-credentials"):
				fmt.Fprint(w, "my-role")
			case strings.HasSuffix(path, "/iam/security-credentials/my-role"):
				fmt.Fprint(w, keysOf("ASIAROLE", time.Hour))
			default:
				http.NotFound(w, r)
			}
		case r.URL.Path == "/container":
			if r.Header.Get("Authorization") != "container-token" {
				http.Error(w, "{}", http.StatusForbidden)
				return
			}
			fmt.Fprint(w, keysOf("ASIACONTAINER", time.Hour))
		case r.FormValue("Action") == "AssumeRoleWithWebIdentity":
			if r.FormValue("WebIdentityToken") != "web-token" || r.FormValue("RoleArn") != "arn:aws:iam::1:role/r" {
				http.Error(w, "no", http.StatusForbidden)
				return
			}
			w.Header().Set("Content-Type", "text/xml")
			fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>
				<AccessKeyId>ASIAWEB</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>session-ASIAWEB</SessionToken><Expiration>%s</Expiration>
				</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(cloud.Close)
	const profiles = "[default]\naws_access_key_id = AKIADEFAULT\naws_secret_access_key = s\n[work]\naws_access_key_id = AKIAWORK\naws_secret_access_key = s\naws_session_token = session-AKIAWORK\n"
	off := []string{"AWS_EC2_METADATA_DISABLED", "true"}
	for _, test := range []struct {
		name, profile string
		env           []string
		id, session   string
	}{
		{name: "an instance's role", env: []string{"AWS_EC2_METADATA_SERVICE_ENDPOINT", cloud.URL}, id: "ASIAROLE", session: "session-ASIAROLE"},
		{
			name: "ECS", env: append(off, "AWS_CONTAINER_CREDENTIALS_FULL_URI", cloud.URL+"/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN", "container-token"),
			id: "ASIACONTAINER", session: "session-ASIACONTAINER",
		},
		{
			name: "EKS", env: append(off, "AWS_CONTAINER_CREDENTIALS_FULL_URI", cloud.URL+"/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", write(t, "container-token")),
			id: "ASIACONTAINER", session: "session-ASIACONTAINER",
		},
		{
			name: "a web identity", id: "ASIAWEB", session: "session-ASIAWEB",
			env: append(off, "AWS_ROLE_ARN", "arn:aws:iam::1:role/r", "AWS_WEB_IDENTITY_TOKEN_FILE", write(t, "web-token"), "AWS_ENDPOINT_URL_STS", cloud.URL),
		},
		{name: "the usual profile", env: append(off, "AWS_SHARED_CREDENTIALS_FILE", write(t, profiles)), id: "AKIADEFAULT"},
		{name: "a profile", profile: "work", env: append(off, "AWS_SHARED_CREDENTIALS_FILE", write(t, profiles)), id: "AKIAWORK", session: "session-AKIAWORK"},
		{name: "variables", env: append(off, "AWS_ACCESS_KEY_ID", "AKIAENV", "AWS_SECRET_ACCESS_KEY", "s"), id: "AKIAENV"},
	} {
		t.Run(test.name, func(t *testing.T) {
			bare(t, test.env...)
			c, err := provider.AWSDefault(provider.Owner{ID: "aws"}, "us-east-1", test.profile)
			if err != nil {
				t.Fatal(err)
			}
			before := asked.Load()
			for i := range 3 {
				r, err := authorize(t.Context(), c, bedrock)
				if err != nil {
					t.Fatal(err)
				}
				if got := r.Header.Get("Authorization"); !strings.Contains(got, "Credential="+test.id+"/") || r.Header.Get("X-Amz-Security-Token") != test.session {
					t.Errorf("%s, session %q", got, r.Header.Get("X-Amz-Security-Token"))
				}
				if n := asked.Load(); i == 0 {
					before = n
				} else if n != before {
					t.Error("what is kept was asked for again")
				}
			}
			if s := fmt.Sprintf("%v %+v", c, c); strings.Contains(s, test.id) || strings.Contains(s, "secret") {
				t.Errorf("it shows itself: %s", s)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		bare(t, off...)
		c, err := provider.AWSDefault(provider.Owner{}, "us-east-1", "")
		if err != nil {
			t.Fatal(err)
		}
		_, err = authorize(t.Context(), c, bedrock)
		var e *hub.Error
		if !asHub(err, &e) || e.Code != "credential_failed" || !strings.HasPrefix(e.Message, "the daemon has no credentials of AWS: ") {
			t.Errorf("%v", err)
		}
		if _, err := provider.AWSDefault(provider.Owner{}, "evil.example/", ""); err == nil {
			t.Error("a wrong region is taken")
		}
	})
}

func TestGoogleDefault(t *testing.T) {
	var metadata, users atomic.Int64
	cloud := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/computeMetadata/v1/instance/service-accounts/default/token":
			if r.Header.Get("Metadata-Flavor") != "Google" {
				http.Error(w, "no", http.StatusForbidden)
				return
			}
			w.Header().Set("Metadata-Flavor", "Google")
			fmt.Fprintf(w, `{"access_token":"ya29.machine-%d","expires_in":3600,"token_type":"Bearer"}`, metadata.Add(1))
		case r.Host == "oauth2.googleapis.com" && r.FormValue("refresh_token") == "1//refresh":
			fmt.Fprintf(w, `{"access_token":"ya29.user-%d","expires_in":3600,"token_type":"Bearer"}`, users.Add(1))
		case r.Host == "sts.googleapis.com" && r.FormValue("subject_token") == "subject":
			fmt.Fprint(w, `{"access_token":"ya29.workload","issued_token_type":"urn:ietf:params:oauth:token-type:access_token","expires_in":3600,"token_type":"Bearer"}`)
		default:
			http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
		}
	})
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	workload, err := json.Marshal(map[string]any{
		"type": "external_account", "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x",
		"subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "token_url": "https://sts.googleapis.com/v1/token",
		"credential_source": map[string]string{"file": write(t, "subject")},
	})
	if err != nil {
		t.Fatal(err)
	}
	const user = `{"type":"authorized_user","client_id":"c","client_secret":"s","refresh_token":"1//%s"}`
	for name, test := range map[string]struct {
		env  []string
		want string
	}{
		"metadata server":   {[]string{"GCE_METADATA_HOST", strings.TrimPrefix(server.URL, "http://")}, "Bearer ya29.machine-1"},
		"user":              {[]string{"GOOGLE_APPLICATION_CREDENTIALS", write(t, fmt.Sprintf(user, "refresh"))}, "Bearer ya29.user-1"},
		"workload identity": {[]string{"GOOGLE_APPLICATION_CREDENTIALS", write(t, string(workload))}, "Bearer ya29.workload"},
		"refused":           {[]string{"GOOGLE_APPLICATION_CREDENTIALS", write(t, fmt.Sprintf(user, "another"))}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bare(t, test.env...)
			c := provider.GoogleDefault(provider.Owner{ID: "google"}, &http.Client{Transport: inside{cloud}})
			for range 2 {
				r, err := authorize(t.Context(), c, vertex)
				if got := r.Header.Get("Authorization"); got != test.want || (err == nil) != (test.want != "") || r.URL.String() != vertex {
					t.Errorf("%q %v %v, want %q", got, r.URL, err, test.want)
				}
				if err != nil && !strings.HasPrefix(err.Error(), "the daemon has no credentials of Google: ") {
					t.Error(err)
				}
			}
		})
	}
}

func TestAzureDefault(t *testing.T) {
	cloud := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		const tenant = "https://login.microsoftonline.com/11111111-1111-1111-1111-111111111111"
		token := func(text string) {
			fmt.Fprintf(w, `{"access_token":%q,"expires_in":3600,"expires_on":"%d","resource":"https://cognitiveservices.azure.com","token_type":"Bearer"}`, text, time.Now().Add(time.Hour).Unix())
		}
		switch {
		case r.Host == "169.254.169.254" && r.Header.Get("Metadata") == "true" && r.URL.Query().Get("resource") == "https://cognitiveservices.azure.com":
			token("machine-" + r.URL.Query().Get("client_id"))
		case strings.HasSuffix(r.URL.Path, "/discovery/instance"):
			fmt.Fprintf(w, `{"tenant_discovery_endpoint":"%s/v2.0/.well-known/openid-configuration","metadata":[{"preferred_network":"login.microsoftonline.com","preferred_cache":"login.windows.net","aliases":["login.microsoftonline.com"]}]}`, tenant)
		case strings.HasSuffix(r.URL.Path, "/openid-configuration"):
			fmt.Fprintf(w, `{"token_endpoint":"%s/oauth2/v2.0/token","authorization_endpoint":"%s/oauth2/v2.0/authorize","issuer":"%s/v2.0"}`, tenant, tenant, tenant)
		case r.FormValue("scope") != "" && !strings.Contains(r.FormValue("scope"), "cognitiveservices.azure.com/.default"):
			http.Error(w, `{"error":"invalid_scope"}`, http.StatusBadRequest)
		case r.FormValue("client_assertion") == "federated":
			token("workload")
		case r.FormValue("client_secret") == "app-secret":
			token("app")
		default:
			http.Error(w, `{"error":"invalid_client","error_description":"no"}`, http.StatusUnauthorized)
		}
	})
	const tenant = "11111111-1111-1111-1111-111111111111"
	for name, test := range map[string]struct {
		env  []string
		want string
	}{
		"application":       {[]string{"AZURE_TENANT_ID", tenant, "AZURE_CLIENT_ID", "app", "AZURE_CLIENT_SECRET", "app-secret"}, "Bearer app"},
		"workload identity": {[]string{"AZURE_TENANT_ID", tenant, "AZURE_CLIENT_ID", "app2", "AZURE_FEDERATED_TOKEN_FILE", write(t, "federated")}, "Bearer workload"},
		"managed identity":  {nil, "Bearer machine-"},
		"one of several":    {[]string{"AZURE_CLIENT_ID", "mine"}, "Bearer machine-mine"},
		"refused":           {[]string{"AZURE_TENANT_ID", tenant, "AZURE_CLIENT_ID", "app3", "AZURE_CLIENT_SECRET", "wrong"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bare(t, test.env...)
			c, err := provider.AzureDefault(provider.Owner{ID: "azure"}, provider.Azure{}, &http.Client{Transport: inside{cloud}})
			if err != nil {
				t.Fatal(err)
			}
			r, err := authorize(t.Context(), c, "https://mine.openai.azure.com/openai/v1/chat/completions")
			if got := r.Header.Get("Authorization"); got != test.want || (err == nil) != (test.want != "") || r.Header.Get("Api-Key") != "" {
				t.Errorf("%q %v, want %q", got, err, test.want)
			}
			if err != nil && !strings.HasPrefix(err.Error(), "the daemon has no credentials of Microsoft Entra: ") {
				t.Error(err)
			}
		})
	}
}
