package hub

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestRedact(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"Incorrect API key provided: sk-proj-abc***************xyz1.", "Incorrect API key provided: [redacted]"},
		{"API key not valid: AIzaSyA1234567890abcdef", "API key not valid: [redacted]"},
		{"Authorization: Bearer abcdef0123456789", "Authorization: [redacted]"},
		{"token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x", "token [redacted]"},
		{"the key of the object is missing", "the key of the object is missing"},
		{"Unsupported parameter: 'temperature' is not supported with this model.", "Unsupported parameter: 'temperature' is not supported with this model."},
		{"the keyboard, a skeleton and a risk-averse model", "the keyboard, a skeleton and a risk-averse model"},
	} {
		if got := Redact(c.in); got != c.want {
			t.Errorf("Redact(%q) = %q, want %q", c.in, got, c.want)
		}
	}
	if got := Redact(strings.Repeat("ü", maxMessage)); len(got) > maxMessage+3 || strings.ContainsRune(got, '\uFFFD') {
		t.Errorf("a long message was cut to %d bytes", len(got))
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, value string
		want        time.Duration
	}{
		{"Retry-After", "3", 3 * time.Second},
		{"Retry-After", "1.5", 1500 * time.Millisecond},
		{"Retry-After-Ms", "250", 250 * time.Millisecond},
		{"Retry-After", "Fri, 20 Nov 2026 12:01:00 GMT", time.Minute},
		{"Retry-After", "-1", 0},
		{"Retry-After", "1e300", 0},
		{"Retry-After", "NaN", 0},
		{"Retry-After", "soon", 0},
	} {
		head := http.Header{}
		head.Set(c.name, c.value)
		if got := RetryAfter(head, now); got != c.want {
			t.Errorf("RetryAfter(%s: %s) = %v, want %v", c.name, c.value, got, c.want)
		}
	}
}
