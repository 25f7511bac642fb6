package intercept

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"html"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/cayhq/cay/sandbox"
)

// scrubber replaces secrets in a stream by sandbox.Redacted, also a secret that is split
// over several reads. Overlapping secrets are replaced as one. scrubber holds back only
// bytes that may begin a secret, so that events arrive when they are sent.
type scrubber struct {
	secrets [][]byte // longest first
	held    []byte   // may begin a secret
	covered int      // bytes of held that are known to belong to a secret
}

// minFragment is the least length of a part of a base64 text that stands for a secret:
// shorter parts are found by chance.
const minFragment = 8

// newScrubber also looks for the secrets as they are written in URLs, JSON, HTML,
// hexadecimal digits and base64, there also as a part of something longer, in upper and in
// lower case, and in UTF-16.
func newScrubber(secrets [][]byte) *scrubber {
	s := &scrubber{}
	add := func(form string) {
		if form != "" && !slices.ContainsFunc(s.secrets, func(have []byte) bool { return string(have) == form }) {
			s.secrets = append(s.secrets, []byte(form))
		}
	}
	for _, secret := range secrets {
		plain := string(secret)
		add(plain)
		add(url.QueryEscape(plain))
		add(url.PathEscape(plain))
		add(html.EscapeString(plain))
		if quoted, err := json.Marshal(plain); err == nil {
			text := strings.Trim(string(quoted), `"`)
			add(text)
			add(strings.ReplaceAll(text, "/", `\/`)) // PHP
		}
		add(strings.ToUpper(plain))
		add(strings.ToLower(plain))
		add(hex.EncodeToString(secret))
		add(strings.ToUpper(hex.EncodeToString(secret)))
		var little, big []byte
		for _, unit := range utf16.Encode([]rune(plain)) {
			little, big = binary.LittleEndian.AppendUint16(little, unit), binary.BigEndian.AppendUint16(big, unit)
		}
		add(string(little))
		add(string(big))
		add(base64.StdEncoding.EncodeToString(secret))
		add(base64.RawURLEncoding.EncodeToString(secret))
		for before := range 3 { // bytes before it in its group of encoded bytes
			text := append(make([]byte, before), secret...)
			first, last := (before*8+5)/6, len(text)*8/6 // digits that depend on the secret alone
			for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
				if last-first >= minFragment {
					add(encoding.EncodeToString(text)[first:last])
				}
			}
		}
	}
	slices.SortStableFunc(s.secrets, func(a, b []byte) int { return len(b) - len(a) })
	return s
}

// write adds p and appends to out the bytes that are known to be free of secrets. At the
// end of the stream it holds nothing back.
func (s *scrubber) write(out, p []byte, end bool) []byte {
	s.held = append(s.held, p...)
	text := s.held
	keep := len(text) // from here on, a secret may have begun
	if !end {
		keep = s.beginning(text)
	}
	at, covered := 0, s.covered
	if covered > 0 {
		covered = s.extend(text, 0, covered)
	}
	for at < keep {
		if covered > at { // it was announced before
			at = min(covered, keep)
			continue
		}
		start, stop := s.next(text, at)
		if start < 0 || start >= keep {
			out = append(out, text[at:keep]...)
			at = keep
			break
		}
		out = append(out, text[at:start]...)
		out = append(out, sandbox.Redacted...)
		covered = s.extend(text, start, stop)
		at = start
	}
	s.covered = max(0, covered-keep)
	s.held = append(s.held[:0], text[keep:]...)
	return out
}

// next finds the first secret from at on.
func (s *scrubber) next(text []byte, at int) (start, stop int) {
	start = -1
	for _, secret := range s.secrets {
		in := text[at:]
		if start >= 0 {
			in = text[at:min(len(text), start+len(secret)-1)] // only a secret that begins before
		}
		if i := bytes.Index(in, secret); i >= 0 {
			start, stop = at+i, at+i+len(secret)
		}
	}
	return start, stop
}

// extend returns where the secrets end that cover start to stop, or begin there.
func (s *scrubber) extend(text []byte, start, stop int) int {
	for at := start; at < stop; {
		i, j := s.next(text[:min(len(text), stop+len(s.secrets[0]))], at)
		if i < 0 || i >= stop {
			break
		}
		stop = max(stop, j)
		at = i + 1
	}
	return stop
}

// beginning returns the start of the longest suffix of text that may be the beginning of
// a secret, len(text) if there is none.
func (s *scrubber) beginning(text []byte) int {
	if len(s.secrets) == 0 {
		return len(text)
	}
	for i := max(0, len(text)-len(s.secrets[0])+1); i < len(text); i++ {
		for _, secret := range s.secrets {
			if len(secret) > len(text)-i && bytes.HasPrefix(secret, text[i:]) {
				return i
			}
		}
	}
	return len(text)
}

// text scrubs a whole text.
func (s *scrubber) text(text string) string {
	c := scrubber{secrets: s.secrets}
	return string(c.write(nil, []byte(text), true))
}

// header scrubs all values; headers whose name is a secret are dropped.
func (s *scrubber) header(h http.Header) {
	for name, values := range h {
		if folded := strings.ToLower(name); slices.ContainsFunc(s.secrets, func(secret []byte) bool {
			return strings.Contains(folded, strings.ToLower(string(secret)))
		}) {
			delete(h, name)
			continue
		}
		for i, v := range values {
			values[i] = s.text(v)
		}
	}
}

// scrubbed is the body of a response, with the secrets removed.
type scrubbed struct {
	body     io.ReadCloser
	scrubber *scrubber
	res      *http.Response
	ready    []byte // scrubbed, not read yet
	store    []byte // that ready is in
	err      error  // after ready
}

func (b *scrubbed) Read(p []byte) (int, error) {
	for len(b.ready) == 0 && b.err == nil && len(p) > 0 {
		var n int
		n, b.err = b.body.Read(p)
		b.store = b.scrubber.write(b.store[:0], p[:n], b.err == io.EOF)
		b.ready = b.store
		if b.err == io.EOF {
			b.scrubber.header(b.res.Trailer)
		}
	}
	n := copy(p, b.ready)
	b.ready = b.ready[n:]
	if len(b.ready) > 0 {
		return n, nil
	}
	return n, b.err
}

func (b *scrubbed) Close() error { return b.body.Close() }
