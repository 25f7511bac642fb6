package sniff_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/sandboxd/network/sniff"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// slicings returns readers that deliver the same bytes in different pieces.
func slicings(sent []byte) map[string]io.Reader {
	return map[string]io.Reader{
		"whole":     bytes.NewReader(sent),
		"bytewise":  iotest.OneByteReader(bytes.NewReader(sent)),
		"half-wise": iotest.HalfReader(bytes.NewReader(sent)),
		"with EOF":  iotest.DataErrReader(bytes.NewReader(sent)),
	}
}

func filter(r io.Reader) *sniff.Conn { return sniff.FilterRequests(replay{Reader: r}) }

const get = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"

func chunked(body string) string {
	return "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n" + body
}

func TestFilterRequests_Passed(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{
		"nothing":               "",
		"GET":                   get,
		"pipelined":             get + get + get,
		"curl":                  "GET /a?b=c HTTP/1.1\r\nHost: a.example:8080\r\nUser-Agent: curl/8.14.1\r\nAccept: */*\r\n\r\n",
		"old":                   "GET / HTTP/1.0\r\n\r\n",
		"old with a host":       "GET / HTTP/1.0\r\nHost: a.example\r\nConnection: keep-alive\r\n\r\n" + get,
		"IPv4":                  "GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n",
		"IPv6":                  "GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n",
		"IPv6 without a port":   "GET / HTTP/1.1\r\nHost: [2001:db8::1]\r\n\r\n",
		"spaces around a value": "GET / HTTP/1.1\r\nHost: \t a.example \t \r\nX:\r\nY:z\r\n\r\n",
		"whole URL":             "GET http://A.example:80/x?y HTTP/1.1\r\nHost: a.Example:80\r\n\r\n",
		"whole URL, no path":    "GET http://a.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"whole URL, old":        "GET http://a.example/ HTTP/1.0\r\n\r\n",
		"OPTIONS":               "OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"OPTIONS of a path":     "OPTIONS /x HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"odd method":            "M-SEARCH!x /x HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"double slash":          "GET //b.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"not ASCII in a value":  "GET / HTTP/1.1\r\nHost: a.example\r\nX: \xc3\xa4\xff\r\n\r\n",
		"length":                "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhello" + get,
		"length 0":              "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n" + get,
		"body like a request":   fmt.Sprintf("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n%s%s", len("GET b\n"), "GET b\n", get),
		"chunked":               chunked("5\r\nhello\r\n1\r\n\n\r\n0\r\n\r\n") + get,
		"chunked, hex":          chunked("0aA\r\n" + strings.Repeat("x", 0xaa) + "\r\n000\r\n\r\n"),
		"chunk extension":       chunked("5;a=\"b c\";d\r\nhello\r\n0;e\r\n\r\n"),
		"trailers":              chunked("1\r\nx\r\n0\r\nChecksum: abc\r\nOther: \r\n\r\n") + get,
		"announced trailers":    "POST / HTTP/1.1\r\nHost: a.example\r\nTrailer: Checksum, Other\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nChecksum: abc\r\n\r\n",
		"trailers of 4 KiB":     chunked("0\r\nX: " + strings.Repeat("x", 4096-7) + "\r\n\r\n"),
		"upgrade offered":       "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n" + get,
		"100 headers":           "GET / HTTP/1.1\r\nHost: a.example\r\n" + strings.Repeat("X: y\r\n", 99) + "\r\n",
		"head of 64 KiB":        headOf(64<<10) + headOf(64<<10) + get,
		"large and small":       headOf(40<<10) + get + headOf(50<<10) + chunked("5\r\nhello\r\n0\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for how, r := range slicings([]byte(sent)) {
				conn := filter(r)
				got, err := io.ReadAll(conn)
				if err != nil {
					t.Errorf("%s: %v", how, err)
				}
				if string(got) != sent {
					t.Errorf("%s: got %q, want %q", how, got, sent)
				}
			}
		})
	}
}

// headOf is a whole request of n bytes.
func headOf(n int) string {
	const before, after = "GET / HTTP/1.1\r\nHost: a.example\r\nX: ", "\r\n\r\n"
	return before + strings.Repeat("x", n-len(before)-len(after)) + after
}

func TestFilterRequests_Refused(t *testing.T) {
	t.Parallel()
	line := func(l string) string { return l + "\r\nHost: a.example\r\n\r\n" }
	with := func(headers ...string) string {
		return "POST / HTTP/1.1\r\nHost: a.example\r\n" + strings.Join(headers, "\r\n") + "\r\n\r\n"
	}
	hosted := func(host string) string { return "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }
	url := func(u string) string { return "GET " + u + " HTTP/1.1\r\nHost: a.example\r\n\r\n" }
	const te = "Transfer-Encoding: chunked"
	for name, c := range map[string]struct {
		sent   string
		reason string // a part of the error's reason
		passed int    // bytes before it that are good
	}{
		"HTTP/0.9":              {"GET /\r\n", "HTTP/0.9", 0},
		"HTTP/2":                {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2 without TLS", 0},
		"HTTP/1.2":              {line("GET / HTTP/1.2"), "version", 0},
		"HTTP/3.0":              {line("GET / HTTP/3.0"), "version", 0},
		"http/1.1":              {line("GET / http/1.1"), "version", 0},
		"HTTP/01.1":             {line("GET / HTTP/01.1"), "version", 0},
		"no version":            {line("POST /"), "not a method", 0},
		"one word":              {line("hello"), "not a method", 0},
		"two spaces":            {line("GET  / HTTP/1.1"), "not a method", 0},
		"space at the end":      {line("GET / HTTP/1.1 "), "not a method", 0},
		"space in the target":   {line("GET /a b HTTP/1.1"), "not a method", 0},
		"tab":                   {line("GET\t/ HTTP/1.1"), "not a method", 0},
		"tab in the target":     {line("GET /\ta HTTP/1.1"), "'\\t' in the target", 0},
		"no target":             {line("GET  HTTP/1.1"), "target", 0},
		"method":                {line("GE(T / HTTP/1.1"), "method", 0},
		"method with NUL":       {line("GE\x00T / HTTP/1.1"), "method", 0},
		"empty line first":      {"\r\n" + get, "begins with", 0},
		"space first":           {" " + get, "begins with", 0},
		"TLS":                   {"\x16\x03\x01", "begins with", 0},
		"WebSocket frame":       {"\x81\x05hello", "begins with", 0},
		"CONNECT":               {line("CONNECT a.example:443 HTTP/1.1"), "CONNECT", 0},
		"CONNECT of a path":     {line("CONNECT /x HTTP/1.1"), "CONNECT", 0},
		"authority":             {line("GET a.example:80 HTTP/1.1"), "target", 0},
		"asterisk":              {line("GET * HTTP/1.1"), "target", 0},
		"relative":              {line("GET a HTTP/1.1"), "target", 0},
		"query alone":           {line("GET ?a HTTP/1.1"), "target", 0},
		"fragment":              {line("GET /#a HTTP/1.1"), "'#'", 0},
		"backslash":             {line("GET /\\b.example HTTP/1.1"), "'\\\\'", 0},
		"NUL in the target":     {line("GET /\x00 HTTP/1.1"), "'\\x00'", 0},
		"not ASCII":             {line("GET /\xc3\xa4 HTTP/1.1"), "in the target", 0},
		"bad escape":            {line("GET /%zz HTTP/1.1"), "target", 0},
		"other host":            {url("http://b.example/"), "by its target", 0},
		"other port":            {url("http://a.example:81/"), "by its target", 0},
		"other scheme":          {url("ftp://a.example/"), "target", 0},
		"no slashes":            {url("http:a.example/"), "target", 0},
		"no host in the URL":    {url("http:///x"), "host name", 0},
		"user in the URL":       {url("http://a.example@b.example/"), "host name", 0},
		"escape in the host":    {url("http://a%2eexample/"), "target", 0},
		"no host":               {"GET / HTTP/1.1\r\n\r\n", "no Host", 0},
		"no host in 2nd":        {get + "GET / HTTP/1.1\r\n\r\n", "no Host", len(get)},
		"empty host":            {hosted(""), "host name", 0},
		"empty host, old":       {"GET / HTTP/1.0\r\nHost:\r\n\r\n", "host name", 0},
		"two hosts":             {hosted("a.example\r\nHost: b.example"), "two Host", 0},
		"two equal hosts":       {hosted("a.example\r\nhost: a.example"), "two Host", 0},
		"two hosts, old":        {"GET / HTTP/1.0\r\nHost: a.example\r\nHost: a.example\r\n\r\n", "two Host", 0},
		"host list":             {hosted("a.example, b.example"), "host name", 0},
		"host with user":        {hosted("u@a.example"), "host name", 0},
		"host with a path":      {hosted("a.example/x"), "host name", 0},
		"host with a space":     {hosted("a.example b.example"), "host name", 0},
		"host with NUL":         {hosted("a.example\x00"), "'\\x00'", 0},
		"host with CR":          {hosted("a.example\rX"), "carriage return", 0},
		"host with LF":          {hosted("a.example\nX: y"), "carriage return", 0},
		"host not ASCII":        {hosted("\u0430.example"), "host name", 0},
		"host escaped":          {hosted("a%2eexample"), "host name", 0},
		"host, port 0":          {hosted("a.example:0"), "host name", 0},
		"host, port empty":      {hosted("a.example:"), "host name", 0},
		"host, port too large":  {hosted("a.example:65536"), "host name", 0},
		"host, port signed":     {hosted("a.example:+80"), "host name", 0},
		"host, two ports":       {hosted("a.example:80:80"), "host name", 0},
		"host, port alone":      {hosted(":80"), "host name", 0},
		"host, IPv6 bare":       {hosted("2001:db8::1"), "host name", 0},
		"host, IPv6 open":       {hosted("[2001:db8::1"), "host name", 0},
		"host, IPv6 and more":   {hosted("[2001:db8::1]x"), "host name", 0},
		"host, IPv6 in two":     {hosted("[[2001:db8::1]"), "host name", 0},
		"host, IPv6 zone":       {hosted("[fe80::1%25eth0]"), "host name", 0},
		"host, IPv4 in []":      {hosted("[192.0.2.1]"), "host name", 0},
		"obs-fold":              {with("X: a", " b"), "folded", 0},
		"obs-fold by a tab":     {with("X: a", "\tb"), "folded", 0},
		"fold of the host":      {hosted("a.example\r\n .b.example"), "folded", 0},
		"fold at once":          {"GET / HTTP/1.1\r\n Host: a.example\r\n\r\n", "folded", 0},
		"space before a colon":  {"GET / HTTP/1.1\r\nHost : a.example\r\n\r\n", "before the colon", 0},
		"tab before a colon":    {with("Content-Length\t: 5"), "before the colon", 0},
		"no colon":              {with("hello"), "without a colon", 0},
		"no name":               {with(": x"), "header name", 0},
		"bad name":              {with("a(b: x"), "header name", 0},
		"NUL in a name":         {with("a\x00: x"), "header name", 0},
		"NUL in a value":        {with("a: \x00"), "'\\x00'", 0},
		"DEL in a value":        {with("a: \x7f"), "'\\x7f'", 0},
		"escape in a value":     {with("a: \x1b[0m"), "'\\x1b'", 0},
		"vertical tab":          {with("Transfer-Encoding: \vchunked"), "'\\v'", 0},
		"bare LF":               {"GET / HTTP/1.1\nHost: a.example\n\n", "carriage return", 0},
		"bare LF in headers":    {"GET / HTTP/1.1\r\nHost: a.example\nX: y\r\n\r\n", "carriage return", 0},
		"bare LF at the end":    {"GET / HTTP/1.1\r\nHost: a.example\r\n\n", "carriage return", 0},
		"bare CR":               {with("a: b\rContent-Length: 5"), "carriage return", 0},
		"two CR":                {"GET / HTTP/1.1\r\nHost: a.example\r\n\r\r\n", "carriage return", 0},
		"101 headers":           {with(slices.Repeat([]string{"X: y"}, 100)...), "100 headers", 0},
		"large head":            {headOf(64<<10 + 1), "64 KiB", 0},
		"large line":            {"GET /" + strings.Repeat("x", 64<<10), "64 KiB", 0},
		"large head, 2nd":       {get + headOf(64<<10+1), "64 KiB", len(get)},
		"length and chunked":    {with("Content-Length: 5", te), "both", 0},
		"chunked and length":    {with(te, "content-length: 5"), "both", 0},
		"chunked and length 0":  {with(te, "Content-Length: 0"), "both", 0},
		"two lengths":           {with("Content-Length: 5", "Content-Length: 6"), "two Content-Length", 0},
		"two equal lengths":     {with("Content-Length: 5", "Content-Length: 5"), "two Content-Length", 0},
		"length list":           {with("Content-Length: 5, 5"), "Content-Length", 0},
		"length empty":          {with("Content-Length:"), "Content-Length", 0},
		"length negative":       {with("Content-Length: -1"), "Content-Length", 0},
		"length signed":         {with("Content-Length: +5"), "Content-Length", 0},
		"length hex":            {with("Content-Length: 0x5"), "Content-Length", 0},
		"length underscore":     {with("Content-Length: 1_0"), "Content-Length", 0},
		"length with a space":   {with("Content-Length: 1 0"), "Content-Length", 0},
		"length too large":      {with("Content-Length: 9223372036854775808"), "Content-Length", 0},
		"length with zeros":     {with("Content-Length: " + strings.Repeat("0", 20) + "5"), "Content-Length", 0},
		"TE other":              {with("Transfer-Encoding: gzip"), "Transfer-Encoding", 0},
		"TE list":               {with("Transfer-Encoding: gzip, chunked"), "Transfer-Encoding", 0},
		"TE twice in a list":    {with("Transfer-Encoding: chunked, chunked"), "Transfer-Encoding", 0},
		"TE twice":              {with(te, te), "two Transfer-Encoding", 0},
		"TE identity":           {with("Transfer-Encoding: identity"), "Transfer-Encoding", 0},
		"TE xchunked":           {with("Transfer-Encoding: xchunked"), "Transfer-Encoding", 0},
		"TE in capitals":        {with("Transfer-Encoding: Chunked"), "Transfer-Encoding", 0},
		"TE with parameter":     {with("Transfer-Encoding: chunked;q=1"), "Transfer-Encoding", 0},
		"TE empty":              {with("Transfer-Encoding:"), "Transfer-Encoding", 0},
		"TE quoted":             {with(`Transfer-Encoding: "chunked"`), "Transfer-Encoding", 0},
		"TE old":                {"POST / HTTP/1.0\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.0", 0},
		"chunk size empty":      {chunked("\r\n"), "chunk size", len(chunked(""))},
		"chunk size sign":       {chunked("+5\r\nhello\r\n"), "chunk size", len(chunked(""))},
		"chunk size minus":      {chunked("-1\r\n"), "chunk size", len(chunked(""))},
		"chunk size 0x":         {chunked("0x5\r\nhello\r\n"), "chunk size", len(chunked(""))},
		"chunk size spaces":     {chunked("5 \r\nhello\r\n"), "chunk size", len(chunked(""))},
		"chunk size space":      {chunked(" 5\r\nhello\r\n"), "chunk size", len(chunked(""))},
		"chunk size space, ext": {chunked("5 ;a\r\nhello\r\n"), "chunk size", len(chunked(""))},
		"chunk size underscore": {chunked("1_0\r\n"), "chunk size", len(chunked(""))},
		"chunk size too large":  {chunked("1000000000000000\r\n"), "chunk size", len(chunked(""))},
		"chunk line LF":         {chunked("5\nhello\r\n"), "carriage return", len(chunked(""))},
		"chunk ext CR":          {chunked("5;a\rb\r\nhello\r\n"), "carriage return", len(chunked(""))},
		"chunk ext LF":          {chunked("5;a\nhello\r\n"), "carriage return", len(chunked(""))},
		"chunk ext NUL":         {chunked("5;\x00\r\nhello\r\n"), "extension", len(chunked(""))},
		"chunk ext quoted CRLF": {chunked("5;a=\"\r\n0\r\n\r\nGET \""), "longer than it says", len(chunked("5;a=\"\r\n0\r\n\r\n"))},
		"chunk line long":       {chunked("5;" + strings.Repeat("x", 300) + "\r\nhello\r\n"), "256 bytes", len(chunked(""))},
		"chunk line endless":    {chunked(strings.Repeat("0", 300)), "256 bytes", len(chunked(""))},
		"chunk exts":            {chunked(strings.Repeat("1;"+strings.Repeat("x", 99)+"\r\nx\r\n", 50)), "extensions", len(chunked(strings.Repeat("1;"+strings.Repeat("x", 99)+"\r\nx\r\n", 40)))},
		"chunk longer":          {chunked("5\r\nhello!\r\n0\r\n\r\n"), "longer than it says", len(chunked("5\r\nhello"))},
		"chunk end LF":          {chunked("5\r\nhello\n0\r\n\r\n"), "longer than it says", len(chunked("5\r\nhello"))},
		"chunk end CR":          {chunked("5\r\nhello\r0\r\n\r\n"), "longer than it says", len(chunked("5\r\nhello"))},
		"trailer length":        {chunked("0\r\nContent-Length: 5\r\n\r\n"), "as a trailer", len(chunked("0\r\n"))},
		"trailer host":          {chunked("0\r\nhost: b.example\r\n\r\n"), "as a trailer", len(chunked("0\r\n"))},
		"trailer TE":            {chunked("0\r\nTransfer-Encoding: chunked\r\n\r\n"), "as a trailer", len(chunked("0\r\n"))},
		"trailer secret":        {chunked("0\r\nAuthorization: x\r\n\r\n"), "as a trailer", len(chunked("0\r\n"))},
		"trailer folded":        {chunked("0\r\nX: a\r\n b\r\n\r\n"), "folded", len(chunked("0\r\n"))},
		"trailer bad":           {chunked("0\r\nhello\r\n\r\n"), "without a colon", len(chunked("0\r\n"))},
		"trailer bare LF":       {chunked("0\r\nX: a\n\r\n"), "carriage return", len(chunked("0\r\n"))},
		"trailer request":       {chunked("0\r\n" + get), "without a colon", len(chunked("0\r\n"))},
		"trailers large":        {chunked("0\r\nX: " + strings.Repeat("x", 4096-6) + "\r\n\r\n"), "4 KiB", len(chunked("0\r\n"))},
		"trailers many":         {chunked("0\r\n" + strings.Repeat("X: y\r\n", 101) + "\r\n"), "100 trailers", len(chunked("0\r\n"))},
		"trailers announced":    {with(te, "Trailer: X, content-length"), "as a trailer", 0},
		"after a body":          {with("Content-Length: 5") + "hello\r\n" + get, "begins with", len(with("Content-Length: 5") + "hello")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for how, r := range slicings([]byte(c.sent)) {
				conn := filter(r)
				got, err := io.ReadAll(conn)
				bad, ok := errors.AsType[*sniff.RequestError](err)
				if !ok {
					t.Fatalf("%s: error %v, want a RequestError", how, err)
				}
				if !strings.Contains(bad.Reason, c.reason) {
					t.Errorf("%s: reason %q, want one with %q", how, bad.Reason, c.reason)
				}
				if string(got) != c.sent[:c.passed] {
					t.Errorf("%s: let %q through, want %q", how, got, c.sent[:c.passed])
				}
				if n, err := conn.Read(make([]byte, 10)); n != 0 || !errors.Is(err, bad) {
					t.Errorf("%s: then it reads %d bytes, %v", how, n, err)
				}
				for _, b := range []byte(bad.Reason) {
					if b < ' ' || b > '~' {
						t.Errorf("%s: %q in the reason", how, b)
					}
				}
			}
		})
	}
}

// An incomplete request is never returned as a request.
func TestFilterRequests_CutOff(t *testing.T) {
	t.Parallel()
	for _, sent := range []string{get, chunked("5;a\r\nhello\r\n0\r\nX: y\r\n\r\n"), "PUT / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhello"} {
		for n := range sent {
			want := io.ErrUnexpectedEOF
			if n == 0 {
				want = nil
			}
			conn := filter(strings.NewReader(sent[:n]))
			if _, err := io.ReadAll(conn); !errors.Is(err, want) {
				t.Errorf("after %d bytes of %q: %v", n, sent, err)
			}
		}
	}
}

// An expired deadline loses no bytes, as net/http requires.
func TestFilterRequests_Deadline(t *testing.T) {
	t.Parallel()
	sent := chunked("5\r\nhello\r\n0\r\nX: y\r\n\r\n") + get
	conn := filter(&hesitant{r: strings.NewReader(sent)})
	var got []byte
	for buf := make([]byte, 3); ; {
		n, err := conn.Read(buf)
		got = append(got, buf[:n]...)
		if err == io.EOF {
			break
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
	if string(got) != sent {
		t.Errorf("got %q, want %q", got, sent)
	}
}

// hesitant fails every other read.
type hesitant struct {
	r    io.Reader
	fail bool
}

func (h *hesitant) Read(p []byte) (int, error) {
	if h.fail = !h.fail; h.fail {
		return 0, os.ErrDeadlineExceeded
	}
	return h.r.Read(p[:1])
}

// No Read spans two requests, even if the client sends several at once.
func TestFilterRequests_OneAtATime(t *testing.T) {
	t.Parallel()
	requests := []string{get, chunked("5\r\nhello\r\n0\r\n\r\n"), "PUT / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhello", get}
	conn := filter(strings.NewReader(strings.Join(requests, "")))
	buf := make([]byte, 1<<16)
	for _, want := range requests {
		for want != "" {
			n, err := conn.Read(buf)
			rest, ok := strings.CutPrefix(want, string(buf[:n]))
			if err != nil || !ok {
				t.Fatalf("read %q, %v; want %q", buf[:n], err, want)
			}
			want = rest
		}
	}
}

func TestConn_Upgraded(t *testing.T) {
	t.Parallel()
	const offer = "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
	read := func(t *testing.T, conn net.Conn, want string) {
		t.Helper()
		buf := make([]byte, len(want))
		if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != want {
			t.Fatalf("read %q, %v; want %q", buf, err, want)
		}
	}
	t.Run("Taken", func(t *testing.T) {
		conn := filter(io.MultiReader(strings.NewReader(offer), strings.NewReader("\x81\x05hello"), strings.NewReader("\x00\r\n")))
		read(t, conn, offer)
		conn.Upgraded()
		read(t, conn, "\x81\x05hello\x00\r\n")
		if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Error(err)
		}
	})
	t.Run("TakenWithBytesRead", func(t *testing.T) {
		conn := filter(io.MultiReader(strings.NewReader(offer+"GET"), iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(" /\x00")))))
		read(t, conn, offer)
		for {
			n, err := conn.Read(make([]byte, 1))
			if n != 0 || err == nil {
				t.Fatalf("read %d bytes of half a head, %v", n, err)
			}
			if errors.Is(err, iotest.ErrTimeout) {
				break
			}
		}
		conn.Upgraded()
		read(t, conn, "GET /\x00")
	})
	t.Run("NotTaken", func(t *testing.T) {
		conn := filter(io.MultiReader(strings.NewReader(offer), strings.NewReader(get)))
		read(t, conn, offer+get)
	})
	t.Run("TooEarly", func(t *testing.T) {
		conn := filter(strings.NewReader(offer + "\x81\x05hello"))
		read(t, conn, offer)
		_, err := conn.Read(make([]byte, 1))
		if _, ok := errors.AsType[*sniff.RequestError](err); !ok {
			t.Fatalf("error %v, want a RequestError", err)
		}
		conn.Upgraded()
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("read %d bytes after a refusal, %v", n, err)
		}
	})
}

func TestConn_CloseWrite(t *testing.T) {
	t.Parallel()
	if err := filter(strings.NewReader("")).CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("error %v, want ErrUnsupported", err)
	}
	client, server := tcpPair(t)
	if err := sniff.FilterRequests(server).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("read %d, %v, want the end", n, err)
	}
}

func tcpPair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err = net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	server, err = listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return client, server
}

// filtered is a listener whose connections are filtered.
type filtered struct{ net.Listener }

func (f filtered) Accept() (net.Conn, error) {
	conn, err := f.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return sniff.FilterRequests(conn), nil
}

type connKey struct{}

// startProxy serves a reverse proxy to a backend on filtered connections, and
// returns its address.
func startProxy(t *testing.T, backend http.Handler) string {
	t.Helper()
	origin := httptest.NewServer(backend)
	t.Cleanup(origin.Close)
	target, err := url.Parse(origin.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode == http.StatusSwitchingProtocols {
				r.Request.Context().Value(connKey{}).(*sniff.Conn).Upgraded()
			}
			return nil
		},
	}
	front := httptest.NewUnstartedServer(proxy)
	front.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
	front.Listener = filtered{front.Listener}
	front.Start()
	t.Cleanup(front.Close)
	return front.Listener.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// Under net/http's server and reverse proxy, which read ahead, an upgraded connection
// carries all bytes of both ends, also after earlier requests.
func TestFilterRequests_ReverseProxy(t *testing.T) {
	t.Parallel()
	address := startProxy(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" || r.URL.Path == "/no" {
			fmt.Fprint(w, "plain")
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(buffered, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		if err := buffered.Flush(); err != nil {
			t.Error(err)
			return
		}
		io.CopyN(conn, buffered, 300) // ends by the client's error otherwise
	}))
	conn := dial(t, address)
	offer := func(path string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
	}
	answers := bufio.NewReader(conn)
	answer := func(status int) {
		t.Helper()
		response, err := http.ReadResponse(answers, nil)
		if err != nil || response.StatusCode != status {
			t.Fatalf("response %v, %v; want status %d", response, err, status)
		}
		if status == 200 {
			if _, err := io.Copy(io.Discard, response.Body); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := io.WriteString(conn, get+get+offer("/no")+get+offer("/yes")); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		answer(200)
	}
	answer(101)
	frames := bytes.Repeat([]byte{0x81, 0, '\n'}, 100)
	if _, err := conn.Write(frames); err != nil {
		t.Fatal(err)
	}
	echo := make([]byte, len(frames))
	if _, err := io.ReadFull(answers, echo); err != nil || !bytes.Equal(echo, frames) {
		t.Errorf("echo %q, %v", echo, err)
	}
}

// FuzzFilterRequests compares with net/http: from each request that passes the filter,
// net/http reads the same host and the same end, and no further bytes.
func FuzzFilterRequests(f *testing.F) {
	for _, s := range []string{
		get, get + get, chunked("5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n") + get,
		"PUT http://a.example/x?y HTTP/1.1\r\nHost: A.example\r\nContent-Length: 5\r\n\r\nhello" + get,
		"OPTIONS * HTTP/1.0\r\n\r\n", "GET / HTTP/1.0\r\nHost: [::1]:80\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.example\r\nTrailer: X\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
		"GET //b.example/ HTTP/1.0\r\n\r\n",
		chunked("0\r" + strings.Repeat("x", 300) + "\r\n\r\n"), chunked("0;" + strings.Repeat("x", 254) + "\r\n\r\n"),
		chunked("0\r\nA: " + strings.Repeat("x", 4<<10) + "\rx\r\n\r\n"), "GET / HTTP/1.1\r\nA: " + strings.Repeat("x", 64<<10) + "\rx\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		passed, err := io.ReadAll(filter(bytes.NewReader(sent)))
		if !bytes.HasPrefix(sent, passed) {
			t.Fatalf("passed %q, which was not sent", passed)
		}
		sliced, errSliced := io.ReadAll(filter(iotest.OneByteReader(bytes.NewReader(sent))))
		if fmt.Sprint(err) != fmt.Sprint(errSliced) {
			t.Fatalf("whole: %v, byte by byte: %v", err, errSliced)
		}
		if !bytes.Equal(passed, sliced) {
			t.Fatalf("whole: %q, byte by byte: %q", passed, sliced)
		}
		// net/http parses each request of the passed bytes, and must find the same ends
		// as the filter.
		theirs := bufio.NewReader(bytes.NewReader(passed))
		consumed := func() int { return len(passed) - theirs.Buffered() }
		for _, ours := range split(passed) {
			if !ours.whole {
				break
			}
			request, err := http.ReadRequest(theirs)
			if err != nil {
				t.Fatalf("net/http refuses %q: %v", ours.text, err)
			}
			if !strings.EqualFold(request.Host, ours.host) {
				t.Fatalf("net/http reads host %q of %q, want %q", request.Host, ours.text, ours.host)
			}
			if _, err := io.Copy(io.Discard, request.Body); err != nil {
				t.Fatalf("net/http refuses the body of %q: %v", ours.text, err)
			}
			if len(passed) < 4096 && consumed() != ours.end {
				t.Fatalf("net/http ends a request after %d bytes, we after %d: %q", consumed(), ours.end, passed)
			}
		}
	})
}

// request is the result of one Read per request.
type request struct {
	text  string
	host  string
	end   int // offset behind it
	whole bool
}

// split finds the ends of requests by the filter alone: the offsets at which the stream
// may end without an error.
func split(passed []byte) (all []request) {
	start := 0
	for start < len(passed) {
		end, whole := len(passed), false
		// The shortest prefix that is good by itself.
		for n := start + 1; n <= len(passed) && len(passed) < 4096; n++ {
			if _, err := io.ReadAll(filter(bytes.NewReader(passed[start:n]))); err == nil {
				end, whole = n, true
				break
			}
		}
		r := request{text: string(passed[start:end]), end: end, whole: whole}
		for line := range strings.SplitSeq(r.text, "\r\n") {
			if line == "" {
				break
			}
			if name, value, ok := strings.Cut(line, ":"); ok && strings.EqualFold(name, "host") {
				r.host = strings.Trim(value, " \t")
			}
		}
		if target := strings.Split(r.text, " "); r.host == "" && len(target) > 1 {
			// url.Parse would take "//b" for a host; for servers it is a path.
			if u, err := url.ParseRequestURI(target[1]); err == nil {
				r.host = u.Host
			}
		}
		all = append(all, r)
		start = end
	}
	return all
}

// endless is a body without end.
type endless struct {
	head  *bytes.Reader
	again []byte
	at    int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.head.Len() > 0 {
		return e.head.Read(p)
	}
	n := copy(p, e.again[e.at:])
	e.at = (e.at + n) % len(e.again)
	return n, nil
}

func benchmarkBody(b *testing.B, head string, again []byte) {
	conn := filter(&endless{head: bytes.NewReader([]byte(head)), again: again})
	buf := make([]byte, 32<<10)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		for n := 0; n < len(buf); {
			got, err := conn.Read(buf[n:])
			if err != nil {
				b.Fatal(err)
			}
			n += got
		}
	}
}

func BenchmarkFilterRequests_Length(b *testing.B) {
	benchmarkBody(b, "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 9223372036854775807\r\n\r\n", make([]byte, 256<<10))
}

func BenchmarkFilterRequests_Chunked(b *testing.B) {
	benchmarkBody(b, chunked(""), slices.Concat([]byte("8000\r\n"), make([]byte, 32<<10), []byte("\r\n")))
}

func BenchmarkFilterRequests_SmallChunks(b *testing.B) {
	benchmarkBody(b, chunked(""), slices.Concat([]byte("40\r\n"), make([]byte, 64), []byte("\r\n")))
}

func BenchmarkFilterRequests_Heads(b *testing.B) {
	benchmarkBody(b, "", []byte("GET /a?b=c HTTP/1.1\r\nHost: a.example:8080\r\nUser-Agent: curl/8.14.1\r\nAccept: */*\r\n\r\n"))
}
