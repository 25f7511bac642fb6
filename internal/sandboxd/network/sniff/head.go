package sniff

import (
	"bytes"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// head has the parts of a request's head that decide about the request.
type head struct {
	begun   bool
	method  string
	target  string
	old     bool   // HTTP/1.0
	host    string // empty if the request has no host
	fields  int
	sized   bool // there is a Content-Length
	length  int64
	chunked bool
}

// add takes the next line, without its end. The empty line completes the head.
func (h *head) add(line []byte) (done bool, err *RequestError) {
	switch {
	case !h.begun:
		h.begun = true
		return false, h.addRequestLine(string(line))
	case len(line) == 0:
		return true, h.check()
	}
	return false, h.addField(line)
}

// addRequestLine requires a method, a target and a version, separated by single spaces.
func (h *head) addRequestLine(line string) *RequestError {
	parts := strings.Split(line, " ")
	if len(parts) != 3 {
		if len(parts) == 2 && parts[0] == "GET" {
			return bad("HTTP/0.9 is not supported")
		}
		return bad("its first line is not a method, a target and a version: %s", quote(line))
	}
	h.method, h.target = parts[0], parts[1]
	switch version := parts[2]; {
	case !isTokenText(h.method):
		return bad("method %s", quote(h.method))
	case h.method == "PRI" && version == "HTTP/2.0":
		return bad("HTTP/2 without TLS is not supported here")
	case version == "HTTP/1.0":
		h.old = true
	case version != "HTTP/1.1":
		return bad("version %s", quote(version))
	}
	return h.checkTarget()
}

// CheckTarget refuses characters that no version of HTTP allows in a request's target,
// and that servers treat differently: as part of the target, as its end, or as something
// else.
func CheckTarget(target string) *RequestError {
	for i := range len(target) {
		if c := target[i]; c <= ' ' || c >= 0x7f || c == '#' || c == '\\' {
			return bad("%+q in the target", c)
		}
	}
	return nil
}

// checkTarget refuses targets that some servers read as another URL.
func (h *head) checkTarget() *RequestError {
	if err := CheckTarget(h.target); err != nil {
		return err
	}
	switch {
	case h.method == "CONNECT":
		return bad("CONNECT is for proxies, and this is none")
	case h.target == "*" && h.method == "OPTIONS":
		return nil
	}
	if _, err := url.ParseRequestURI(h.target); err != nil || h.target == "*" {
		return bad("target %s", quote(h.target))
	}
	return nil
}

// authority returns the host in a target that is an absolute URL, and "" for a path.
func (h *head) authority() (string, *RequestError) {
	if h.target[0] == '/' || h.target == "*" {
		return "", nil
	}
	scheme, rest, ok := strings.Cut(h.target, "://")
	if !ok || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return "", bad("target %s", quote(h.target))
	}
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		rest = rest[:i]
	}
	return rest, checkHost("target", rest)
}

func (h *head) addField(line []byte) *RequestError {
	name, value, err := parseField(line)
	if err != nil {
		return err
	}
	if h.fields++; h.fields > maxFields {
		return bad("more than %d headers", maxFields)
	}
	switch {
	case is(name, "host"):
		if h.host != "" {
			return bad("two Host headers")
		}
		h.host = string(value)
		return checkHost("Host", h.host)
	case is(name, "content-length"):
		if h.sized {
			return bad("two Content-Length headers")
		}
		h.sized = true
		h.length, err = parseLength(string(value))
		return err
	case is(name, "transfer-encoding"):
		switch {
		case h.chunked:
			return bad("two Transfer-Encoding headers")
		case string(value) != "chunked":
			return bad("Transfer-Encoding %s, only chunked is supported", quote(string(value)))
		}
		h.chunked = true
	case is(name, "trailer"):
		for t := range bytes.SplitSeq(value, []byte(",")) {
			if t = bytes.Trim(t, " \t"); notInTrailers(t) {
				return bad("%s as a trailer", t)
			}
		}
	}
	return nil
}

// check judges the head as a whole.
func (h *head) check() *RequestError {
	authority, err := h.authority()
	switch {
	case err != nil:
		return err
	case h.host == "" && !h.old:
		return bad("no Host header")
	case authority != "" && h.host != "" && !strings.EqualFold(authority, h.host):
		return bad("it is for %+q by its target, and for %+q by its Host header", authority, h.host)
	case h.chunked && h.sized:
		return bad("both Transfer-Encoding and Content-Length")
	case h.chunked && h.old:
		return bad("Transfer-Encoding in HTTP/1.0")
	}
	return nil
}

func (h *head) addTrailer(line []byte) *RequestError {
	name, _, err := parseField(line)
	if err != nil {
		return err
	}
	if h.fields++; h.fields > maxFields {
		return bad("more than %d trailers", maxFields)
	}
	if notInTrailers(name) {
		return bad("%s as a trailer", name)
	}
	return nil
}

// notInTrailers reports whether a field must not come after the body, because it says
// where a request goes, where it ends, or how to treat it.
func notInTrailers(name []byte) bool {
	return slices.ContainsFunc([]string{"host", "content-length", "transfer-encoding", "trailer", "te", "connection",
		"keep-alive", "upgrade", "expect", "authorization", "proxy-authorization", "cookie"}, func(not string) bool { return is(name, not) })
}

// parseField requires a name, directly followed by a colon, and a value without control
// characters. Lines that begin with a space (obsolete folding) are refused.
func parseField(line []byte) (name, value []byte, err *RequestError) {
	if line[0] == ' ' || line[0] == '\t' {
		return nil, nil, bad("a header is folded, or begins with a space")
	}
	name, value, ok := bytes.Cut(line, []byte(":"))
	switch {
	case !ok:
		return nil, nil, bad("a header without a colon: %s", quote(string(line)))
	case bytes.HasSuffix(name, []byte(" ")) || bytes.HasSuffix(name, []byte("\t")):
		return nil, nil, bad("a space before the colon of a header")
	case !isTokenText(name):
		return nil, nil, bad("header name %s", quote(string(name)))
	}
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return nil, nil, bad("%+q in header %s", c, quote(string(name)))
		}
	}
	return name, bytes.Trim(value, " \t"), nil
}

// checkHost wants a name or an address, and perhaps a port.
func checkHost(where, host string) *RequestError {
	name, port, hasPort := strings.Cut(host, ":")
	valid := name != ""
	for i := range len(name) {
		valid = valid && isNameByte(name[i])
	}
	if strings.HasPrefix(host, "[") {
		inner, rest, closed := strings.Cut(host[1:], "]")
		addr, err := netip.ParseAddr(inner)
		port, hasPort = strings.CutPrefix(rest, ":")
		valid = closed && err == nil && addr.Is6() && addr.Zone() == "" && (hasPort || rest == "")
	}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		valid = valid && err == nil && n > 0 && len(port) <= 5
	}
	if !valid {
		return bad("%s %s is not a host name", where, quote(host))
	}
	return nil
}

// parseLength requires digits only: no sign, no list, and not too many digits.
func parseLength(value string) (int64, *RequestError) {
	n, err := strconv.ParseUint(value, 10, 63)
	if err != nil || len(value) > 19 {
		return 0, bad("Content-Length %s", quote(value))
	}
	return int64(n), nil
}

// parseChunkSize reads the line before a chunk. Extensions have no meaning, but are
// passed on.
func parseChunkSize(line []byte) (size int64, ext int, err *RequestError) {
	digits := line
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		digits, ext = line[:i], len(line)-i
	}
	if len(digits) == 0 || len(digits) > 15 {
		return 0, 0, bad("chunk size %s", quote(string(digits)))
	}
	for _, c := range digits {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, 0, bad("chunk size %s", quote(string(digits)))
		}
		size = size<<4 | int64(c)
	}
	for _, c := range line {
		if c < ' ' && c != '\t' || c >= 0x7f {
			return 0, 0, bad("%+q in a chunk's extension", c)
		}
	}
	return size, ext, nil
}

// is reports whether a field's name equals lower, ignoring case.
func is(name []byte, lower string) bool {
	return len(name) == len(lower) && strings.EqualFold(string(name), lower)
}

// quote makes text of the guest safe to show.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "..."
	}
	return strconv.QuoteToASCII(s)
}

// isToken are the characters of a token, RFC 9110, 5.6.2.
var isToken = func() (set [256]bool) {
	for c := range set {
		set[c] = '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || strings.IndexByte("!#$%&'*+-.^_`|~", byte(c)) >= 0
	}
	return set
}()

func isTokenText[T string | []byte](s T) bool {
	for i := range len(s) {
		if !isToken[s[i]] {
			return false
		}
	}
	return len(s) > 0
}
