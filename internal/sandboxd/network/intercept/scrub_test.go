package intercept

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// scrubNaively marks every byte of every occurrence, and replaces stretches.
func scrubNaively(secrets [][]byte, text []byte) string {
	marked := make([]bool, len(text))
	starts := make([]bool, len(text)+1)
	for _, secret := range secrets {
		for i := range text {
			if bytes.HasPrefix(text[i:], secret) {
				starts[i] = true
				for j := range secret {
					marked[i+j] = true
				}
			}
		}
	}
	// Stretches that touch without a common byte are two.
	reach := 0
	var out strings.Builder
	for i := range text {
		if !marked[i] {
			out.WriteByte(text[i])
			continue
		}
		if i >= reach {
			out.WriteString(sandbox.Redacted)
		}
		if starts[i] {
			for _, secret := range secrets {
				if bytes.HasPrefix(text[i:], secret) {
					reach = max(reach, i+len(secret))
				}
			}
		}
	}
	return out.String()
}

// The scrubbed stream does not depend on how the stream is cut into reads.
func TestScrubber_AnyCut(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(t *rapid.T) {
		letters := rapid.SliceOfN(rapid.SampledFrom([]byte("ab")), 1, 6)
		s := &scrubber{secrets: rapid.SliceOfN(letters, 1, 4).Draw(t, "secrets")}
		for i := range s.secrets { // as newScrubber orders them
			for j := range i {
				if len(s.secrets[i]) > len(s.secrets[j]) {
					s.secrets[i], s.secrets[j] = s.secrets[j], s.secrets[i]
				}
			}
		}
		text := rapid.SliceOfN(rapid.SampledFrom([]byte("aabbc")), 0, 60).Draw(t, "text")
		want := scrubNaively(s.secrets, text)
		var out []byte
		for rest := text; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			out = s.write(out, rest[:n], false)
			rest = rest[n:]
			if len(s.held) >= len(s.secrets[0]) {
				t.Fatalf("%d bytes are held back for secrets of %d", len(s.held), len(s.secrets[0]))
			}
		}
		out = s.write(out, nil, true)
		if string(out) != want {
			t.Fatalf("scrubbing %s from %s gives %s, want %s", bytes.Join(s.secrets, []byte(" ")), text, out, want)
		}
	})
}

// A secret is found in its usual encodings, and only the secret is removed.
func TestScrubber_Forms(t *testing.T) {
	t.Parallel()
	const secret = "sk-Secret/Value+42"
	in := func(alphabet *base64.Encoding, text string) string { return alphabet.EncodeToString([]byte(text)) }
	for _, text := range []string{
		secret, strings.ToUpper(secret), strings.ToLower(secret), "sk-Secret%2FValue%2B42", `sk-Secret\/Value+42`,
		hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"s\x00k\x00-\x00S\x00e\x00c\x00r\x00e\x00t\x00/\x00V\x00a\x00l\x00u\x00e\x00+\x004\x002\x00", "\x00s\x00k\x00-\x00S\x00e\x00c\x00r\x00e\x00t\x00/\x00V\x00a\x00l\x00u\x00e\x00+\x004\x002",
		in(base64.StdEncoding, secret), in(base64.StdEncoding, "x"+secret), in(base64.StdEncoding, "user:"+secret), in(base64.StdEncoding, secret+"and more"), in(base64.RawURLEncoding, "a: "+secret+"~"),
	} {
		s := newScrubber([][]byte{[]byte(secret)})
		got := string(s.write(nil, []byte("before "+text+" after"), true))
		if !strings.Contains(got, sandbox.Redacted) || !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") || len(got) > len("before  after")+len(sandbox.Redacted)+20 {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}

func TestScrubbed_Read(t *testing.T) {
	t.Parallel()
	const text = "a secret-value, a secret-valu, secret-valuesecret-value"
	want := "a " + sandbox.Redacted + ", a secret-valu, " + sandbox.Redacted + sandbox.Redacted
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader, "early end": iotest.DataErrReader,
	} {
		res := &http.Response{Trailer: http.Header{"X": {"secret-value"}}}
		b := &scrubbed{body: io.NopCloser(wrap(strings.NewReader(text))), scrubber: newScrubber([][]byte{[]byte("secret-value")}), res: res}
		got, err := io.ReadAll(iotest.OneByteReader(b))
		if err != nil || string(got) != want || res.Trailer.Get("X") != sandbox.Redacted {
			t.Errorf("%s: %q, %v, %v", name, got, err, res.Trailer)
		}
	}
	b := &scrubbed{body: io.NopCloser(iotest.TimeoutReader(iotest.HalfReader(strings.NewReader(text)))), scrubber: newScrubber([][]byte{[]byte("secret-value")})}
	if _, err := io.ReadAll(b); err != iotest.ErrTimeout {
		t.Errorf("a body that breaks off: %v", err)
	}
}
