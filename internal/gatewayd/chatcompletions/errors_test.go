package chatcompletions

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func TestReadError(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		status int
		body   string
		want   hub.Error
	}{
		{"openai", 400, `{"error":{"message":"Unsupported parameter","type":"invalid_request_error","param":"max_tokens","code":"unsupported_parameter"}}`, hub.Error{Kind: hub.BadRequest, Message: "Unsupported parameter", Param: "max_tokens", Code: "unsupported_parameter"}},
		{"used up", 429, `{"error":{"message":"You exceeded your quota","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}`, hub.Error{Kind: hub.RateLimited, Message: "You exceeded your quota", Code: CodeQuota}},
		{"used up, by the type", 429, `{"error":{"message":"q","type":"insufficient_quota"}}`, hub.Error{Kind: hub.RateLimited, Message: "q", Code: CodeQuota}},
		{"too long", 400, `{"error":{"message":"l","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`, hub.Error{Kind: hub.BadRequest, Message: "l", Param: "messages", Code: "context_length_exceeded"}},
		{"no model", 404, `{"error":{"message":"m","code":"model_not_found"}}`, hub.Error{Kind: hub.ModelNotFound, Message: "m", Code: "model_not_found"}},
		{"a key", 401, `{"error":{"message":"Incorrect API key provided: sk-proj-abcdefgh12345678","code":"invalid_api_key"}}`, hub.Error{Kind: hub.UpstreamFailed, Message: "Incorrect API key provided: [redacted]", Code: "invalid_api_key"}},
		{"xai", 400, `{"code":"Client specified an invalid argument","error":"Incorrect API key provided: x"}`, hub.Error{Kind: hub.UpstreamFailed, Message: "Incorrect API key provided: x"}},
		{"mistral", 422, `{"object":"error","message":{"detail":[{"type":"missing","loc":["body","messages"],"msg":"Field required"}]},"type":"invalid_request_error","param":null,"code":null}`, hub.Error{Kind: hub.BadRequest, Message: "body.messages: Field required"}},
		{"vllm", 400, `{"object":"error","message":"bad","type":"BadRequestError","param":null,"code":400}`, hub.Error{Kind: hub.BadRequest, Message: "bad"}},
		{"fastapi", 422, `{"detail":[{"loc":["body",0],"msg":"a"},{"msg":"b"}]}`, hub.Error{Kind: hub.BadRequest, Message: "body.0: a; b"}},
		{"fastapi, a text", 404, `{"detail":"Not Found"}`, hub.Error{Kind: hub.ModelNotFound, Message: "Not Found"}},
		{"ollama", 404, `{"error":"model not found"}`, hub.Error{Kind: hub.ModelNotFound, Message: "model not found"}},
		{"llama.cpp", 503, `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`, hub.Error{Kind: hub.Overloaded, Message: "Loading model"}},
		{"openrouter", 502, `{"error":{"code":502,"message":"Provider returned error","metadata":{"raw":"overloaded","provider_name":"X"}}}`, hub.Error{Kind: hub.UpstreamFailed, Message: "Provider returned error: overloaded"}},
		{"google", 400, `[{"error":{"code":400,"message":"bad","status":"INVALID_ARGUMENT"}}]`, hub.Error{Kind: hub.BadRequest, Message: "bad"}},
		{"groq flex", 498, `{"error":{"message":"full","type":"capacity_exceeded"}}`, hub.Error{Kind: hub.Overloaded, Message: "full"}},
		{"plain text", 500, "  upstream connect error\n", hub.Error{Kind: hub.UpstreamFailed, Message: "upstream connect error"}},
		{"a page", 502, "<html><style>a{}</style><h1>Bad  Gateway</h1></html>", hub.Error{Kind: hub.UpstreamFailed, Message: "Bad Gateway"}},
		{"nothing", 503, "", hub.Error{Kind: hub.Overloaded, Message: "the provider p answered with status 503"}},
		{"empty JSON", 500, "{}", hub.Error{Kind: hub.UpstreamFailed, Message: "the provider p answered with status 500"}},
		{"a string", 500, `"no"`, hub.Error{Kind: hub.UpstreamFailed, Message: `"no"`}},
	} {
		got := New().ReadError(&hub.Target{Provider: "p"}, tt.status, http.Header{}, []byte(tt.body))
		tt.want.Status, tt.want.Provider = tt.status, "p"
		if show(got) != show(tt.want) {
			t.Errorf("%s: %s", tt.name, show(got))
		}
	}
}

func TestReadError_RetryAfter(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		head http.Header
		code string
		want time.Duration
	}{
		{http.Header{"Retry-After": {"7"}}, "", 7 * time.Second},
		{http.Header{"Retry-After-Ms": {"1500"}, "Retry-After": {"7"}}, "", 1500 * time.Millisecond},
		{http.Header{"X-Ratelimit-Remaining-Tokens": {"0"}, "X-Ratelimit-Reset-Tokens": {"6m0s"}, "X-Ratelimit-Reset-Requests": {"8h"}, "X-Ratelimit-Remaining-Requests": {"3"}}, "", 6 * time.Minute},
		{http.Header{"X-Ratelimit-Remaining-Tokens": {"0"}, "X-Ratelimit-Reset-Tokens": {"6m0s"}}, CodeQuota, 0},
		{http.Header{"X-Ratelimit-Remaining-Requests": {"0"}, "X-Ratelimit-Reset-Requests": {"soon"}}, "", 0},
	} {
		body := `{"error":{"message":"m","code":"` + tt.code + `"}}`
		if got := New().ReadError(&hub.Target{}, 429, tt.head, []byte(body)); got.RetryAfter != tt.want {
			t.Errorf("%v: %v, want %v", tt.head, got.RetryAfter, tt.want)
		}
	}
}

func TestWriteError(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err    hub.Error
		status int
		body   string
		head   string
	}{
		{hub.Error{Kind: hub.BadRequest, Message: "m", Param: "n"}, 400, `{"message":"m","type":"invalid_request_error","param":"n","code":null}`, ""},
		{hub.Error{Kind: hub.Unauthenticated, Message: "m"}, 401, `{"message":"m","type":"authentication_error","param":null,"code":"invalid_api_key"}`, ""},
		{hub.Error{Kind: hub.BudgetExceeded, Message: "m"}, 402, `{"message":"m","type":"insufficient_quota","param":null,"code":"budget_exceeded"}`, ""},
		{hub.Error{Kind: hub.Forbidden, Message: "m", Details: raw(`{"ruleId":"r"}`)}, 403, `{"message":"m","type":"permission_error","param":null,"code":"forbidden","details":{"ruleId":"r"}}`, ""},
		{hub.Error{Kind: hub.ModelNotFound, Message: "m"}, 404, `{"message":"m","type":"invalid_request_error","param":"model","code":"model_not_found"}`, ""},
		{hub.Error{Kind: hub.RateLimited, Message: "m", RetryAfter: 1500 * time.Millisecond}, 429, `{"message":"m","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}`, "Retry-After:2 Retry-After-Ms:1500"},
		{hub.Error{Kind: hub.RateLimited, Message: "m", Code: CodeQuota}, 429, `{"message":"m","type":"rate_limit_error","param":null,"code":"insufficient_quota"}`, "X-Should-Retry:false"},
		{hub.Error{Kind: hub.UpstreamFailed, Message: "m"}, 502, `{"message":"m","type":"upstream_error","param":null,"code":"upstream_failed"}`, ""},
		{hub.Error{Kind: "strange", Message: "m"}, 500, `{"message":"m","type":"server_error","param":null,"code":"internal_error"}`, ""},
	} {
		head := http.Header{}
		status, body := New().WriteError(hub.Answer{ID: "gen_1"}, &tt.err, head)
		var names []string
		for _, name := range []string{"Retry-After", "Retry-After-Ms", "X-Should-Retry"} {
			if v := head.Get(name); v != "" {
				names = append(names, name+":"+v)
			}
		}
		if want := `{"error":` + tt.body + `,"generationId":"gen_1"}`; status != tt.status || string(body) != want || strings.Join(names, " ") != tt.head {
			t.Errorf("%s: %d %s %v", tt.err.Kind, status, body, names)
		}
	}
}

// Every kind has a status, and a written error is read as the same kind, if an upstream's
// error can be of that kind.
func TestErrors_RoundTrip(t *testing.T) {
	t.Parallel()
	for kind, as := range answers {
		status, body := New().WriteError(hub.Answer{}, &hub.Error{Kind: kind, Message: "m"}, http.Header{})
		got := New().ReadError(&hub.Target{Provider: "p"}, status, nil, body)
		if got.Message != "m" || got.Status != as.status || got.Kind != hub.KindOf(status) {
			t.Errorf("%s is read as %s", kind, show(got))
		}
	}
}

func FuzzReadError(f *testing.F) {
	f.Add(429, []byte(`{"error":{"message":"m","code":"c","metadata":{"raw":"r"}}}`))
	f.Add(422, []byte(`{"detail":[{"loc":["a"],"msg":"b"}]}`))
	f.Add(500, []byte("<html>no"))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		e := New().ReadError(&hub.Target{Provider: "p"}, status, http.Header{}, body)
		if e.Kind == "" || e.Message == "" || e.Provider != "p" {
			t.Fatalf("%+v", e)
		}
		if _, body := New().WriteError(hub.Answer{}, e, http.Header{}); !json.Valid(body) {
			t.Fatalf("written as %s", body)
		}
	})
}
