package preview

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
)

// bearerProtocol is the prefix of the subprotocol by which a WebSocket client that cannot
// set headers sends its token to the API.
const bearerProtocol = "cay.bearer."

// cleanRequest removes headers that a guest must not see: the token or cookie that
// admitted the visitor, credentials of the API, and headers in which other proxies or the
// visitor state the visitor's address.
func (h *Handler) cleanRequest(header http.Header) {
	for name := range header {
		// Servers that hand headers on as variables take _ for -.
		like := http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
		if like == TokenHeader || like == "X-Real-Ip" || like == "Forwarded" || strings.HasPrefix(like, "X-Forwarded-") || h.cfg.HasSecret(name) {
			delete(header, name)
		}
	}
	cleanValues(header, "Cookie", func(v string) string {
		if v = cleanCookies(v); !h.hasSecret(v) {
			return v
		}
		return keep(v, ";", "; ", func(pair string) bool { return !h.hasSecret(pair) })
	})
	cleanValues(header, "Sec-Websocket-Protocol", func(v string) string {
		return keep(v, ",", ", ", func(p string) bool { return !strings.HasPrefix(p, bearerProtocol) })
	})
	cleanValues(header, "Referer", func(v string) string {
		if strings.Contains(v, TokenParameter+"=") {
			return ""
		}
		return v
	})
	for name := range header {
		cleanValues(header, name, func(v string) string {
			if h.hasSecret(v) {
				return ""
			}
			return v
		})
	}
}

// hasSecret reports whether a visitor's text contains a secret of the API: plain, escaped
// as in a URL, or as a password.
func (h *Handler) hasSecret(text string) bool {
	if h.cfg.HasSecret(text) {
		return true
	}
	if strings.Contains(text, "%") {
		if plain, err := url.QueryUnescape(text); err == nil && h.cfg.HasSecret(plain) {
			return true
		}
	}
	scheme, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	if !strings.EqualFold(scheme, "Basic") {
		return false
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest))
	return err == nil && h.cfg.HasSecret(string(b))
}

// cleanValues replaces each value of a header by the result of clean, and drops empty
// results.
func cleanValues(header http.Header, name string, clean func(string) string) {
	values := header[name]
	if len(values) == 0 {
		return
	}
	left := make([]string, 0, len(values)) // the slice may be shared with the request that came in
	for _, v := range values {
		if v = clean(v); v != "" {
			left = append(left, v)
		}
	}
	if len(left) == 0 {
		delete(header, name)
		return
	}
	header[name] = left
}

// keep returns the elements of a list for which ok returns true.
func keep(list, separator, join string, ok func(string) bool) string {
	var left []string
	for item := range strings.SplitSeq(list, separator) {
		if item = strings.TrimSpace(item); item != "" && ok(item) {
			left = append(left, item)
		}
	}
	return strings.Join(left, join)
}

func cleanCookies(list string) string {
	if !strings.Contains(list, cookiePrefix) { // nearly all
		return list
	}
	return keep(list, ";", "; ", func(pair string) bool { return !isOurCookie(pair) })
}

// isOurCookie reports whether a cookie, given as name=value, has one of cay's names.
// Browsers send a cookie without a name as its value only, so that value is checked too.
func isOurCookie(pair string) bool {
	name, value, ok := strings.Cut(pair, "=")
	if name = strings.TrimSpace(name); ok && name == "" {
		name = strings.TrimSpace(value)
	}
	for _, prefix := range []string{hostPrefix, "__Secure-"} {
		if len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) {
			name = name[len(prefix):]
			break
		}
	}
	return strings.HasPrefix(name, cookiePrefix)
}

// cleanResponse restricts a guest's cookies to its own host, and away from cay's names.
// It removes Domain attributes, so that a cookie belongs to this host alone. It also
// keeps the guest from clearing cookies: browsers would clear the cookies of all hosts of
// the site, which include other previews, and end their visitors' access.
func cleanResponse(header http.Header) {
	cleanValues(header, "Clear-Site-Data", func(v string) string {
		return keep(v, ",", ", ", func(what string) bool { return what != `"cookies"` && what != `"*"` })
	})
	cleanValues(header, "Set-Cookie", func(v string) string {
		if isOurCookie(v) {
			return ""
		}
		pair, attributes, _ := strings.Cut(v, ";")
		if !strings.Contains(strings.ToLower(attributes), "domain") {
			return v
		}
		attributes = keep(attributes, ";", "; ", func(a string) bool {
			name, _, _ := strings.Cut(a, "=")
			return !strings.EqualFold(strings.TrimSpace(name), "domain")
		})
		if attributes == "" {
			return pair
		}
		return pair + "; " + attributes
	})
}

// tokens returns the values of TokenParameter in a query, at most two.
func tokens(query string) (found []string) {
	for pair := range strings.SplitSeq(query, "&") {
		if len(found) == 2 || !isToken(pair) {
			continue
		}
		_, value, _ := strings.Cut(pair, "=")
		value, err := url.QueryUnescape(value)
		if err != nil {
			value = "" // opens nothing, but is there to be taken out
		}
		found = append(found, value)
	}
	return found
}

// cleanQuery removes cay's tokens and secrets from a query, and leaves the rest
// unchanged, parsable or not.
func (h *Handler) cleanQuery(query string) string {
	return without(query, func(pair string) bool { return isToken(pair) || h.hasSecret(pair) })
}

// withoutToken returns a query without TokenParameter and otherwise as it is.
func withoutToken(query string) string { return without(query, isToken) }

func without(query string, drop func(pair string) bool) string {
	var left []string
	dropped := false
	for pair := range strings.SplitSeq(query, "&") {
		if drop(pair) {
			dropped = true
			continue
		}
		left = append(left, pair)
	}
	if !dropped {
		return query
	}
	return strings.Join(left, "&")
}

func isToken(pair string) bool {
	name, _, _ := strings.Cut(pair, "=")
	if name == TokenParameter {
		return true
	}
	if !strings.Contains(name, "%") {
		return false
	}
	name, err := url.QueryUnescape(name)
	return err == nil && name == TokenParameter
}
