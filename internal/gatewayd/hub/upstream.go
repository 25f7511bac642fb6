package hub

import (
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// KindOf returns the kind of error an upstream's status stands for. Credentials
// that a provider refuses (401, 402, 403) are the gateway's, not the client's, so
// they are UpstreamFailed: the Status tells them apart.
func KindOf(status int) ErrorKind {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusUnsupportedMediaType:
		return BadRequest
	case http.StatusNotFound, http.StatusGone:
		return ModelNotFound
	case http.StatusRequestEntityTooLarge:
		return TooLarge
	case http.StatusFailedDependency:
		return FailedDependency
	case http.StatusTooManyRequests:
		return RateLimited
	case http.StatusServiceUnavailable, 529: // 529 is Anthropic's overloaded_error
		return Overloaded
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return Timeout
	}
	return UpstreamFailed
}

// maxRetryAfter is the longest wait that is believed.
const maxRetryAfter = 30 * 24 * time.Hour

// RetryAfter returns how long an upstream's answer asks to wait: its
// retry-after-ms, else its Retry-After in seconds or as a date. 0 if it does not
// say, or makes no sense.
func RetryAfter(head http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(head.Get("Retry-After-Ms"), 64); err == nil {
		return wait(ms / 1000)
	}
	after := strings.TrimSpace(head.Get("Retry-After"))
	if s, err := strconv.ParseFloat(after, 64); err == nil {
		return wait(s)
	}
	if at, err := http.ParseTime(after); err == nil {
		return wait(at.Sub(now).Seconds())
	}
	return 0
}

func wait(seconds float64) time.Duration {
	if math.IsNaN(seconds) || seconds <= 0 || seconds > maxRetryAfter.Seconds() {
		return 0
	}
	return time.Duration(seconds * float64(time.Second))
}

// secret matches what looks like a key in a message of a provider: the prefixes
// providers use, JSON Web Tokens, and what follows "Bearer" or "key=".
var secret = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:(?:sk|pk|rk|xai|gsk|vck|csk|fw|r8|hf|key)[-_]|AKIA|ASIA|AIza|ya29\.|ABSK)[-_A-Za-z0-9.*]{8,}|\beyJ[-_A-Za-z0-9.]{16,}|\b(?:bearer\s|api[-_ ]?key\s?[=:]|key=)\s*['"]?[-_A-Za-z0-9.*+/=]{8,}`)
})

// maxMessage is the longest message of an upstream that is kept, in bytes.
const maxMessage = 4 << 10

// Redact returns an upstream's message as it may be shown: without what looks
// like a key, and cut if it is longer than 4 KiB.
func Redact(message string) string {
	message = strings.ToValidUTF8(strings.TrimSpace(message), "\uFFFD")
	if len(message) > maxMessage {
		end := maxMessage
		for !utf8.RuneStart(message[end]) {
			end--
		}
		message = message[:end] + "…"
	}
	return secret().ReplaceAllString(message, "[redacted]")
}
