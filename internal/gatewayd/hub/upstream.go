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

// KindOf returns the kind of error for an upstream's status. A refused credential (401,
// 402, 403) is the gateway's, not the client's, so its kind is UpstreamFailed; Status
// tells the cases apart.
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

// maxRetryAfter is the longest plausible Retry-After; longer ones are ignored.
const maxRetryAfter = 30 * 24 * time.Hour

// RetryAfter returns the pause that an upstream's answer asks for, from retry-after-ms,
// else from Retry-After in seconds or as a date. 0 means missing or implausible.
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

// secret matches texts in a provider's message that look like a key: the providers'
// prefixes, JSON Web Tokens, and the text after "Bearer" or "key=".
var secret = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:(?:sk|pk|rk|xai|gsk|vck|csk|fw|r8|hf|key)[-_]|AKIA|ASIA|AIza|ya29\.|ABSK)[-_A-Za-z0-9.*]{8,}|\beyJ[-_A-Za-z0-9.]{16,}|\b(?:bearer\s|api[-_ ]?key\s?[=:]|key=)\s*['"]?[-_A-Za-z0-9.*+/=]{8,}`)
})

// maxMessage is the maximum length in bytes of an upstream's message that is kept.
const maxMessage = 4 << 10

// Redact returns an upstream's message in a form that may be shown: possible keys are
// removed, and the message is truncated to 4 KiB.
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
