package upstream

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
)

// buffers hold encoded requests.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// keep returns a buffer to the pool, unless it is large.
func keep(buf *[]byte) {
	if cap(*buf) <= maxBody/2 {
		buffers.Put(buf)
	}
}

// encode returns the encoded request, and closes its body. For a large request it returns
// only the head, and closes the body only on an error.
func encode(r *http.Request) (_ *[]byte, err error) {
	defer func() {
		if err != nil || !large(r) {
			closeBody(r)
		}
	}()
	buf := buffers.Get().(*[]byte)
	b, err := appendHead((*buf)[:0], r)
	if err == nil && r.ContentLength > 0 && !large(r) {
		b, err = appendBody(b, r.Body, int(r.ContentLength))
	}
	if err != nil {
		keep(buf)
		return nil, err
	}
	*buf = b
	return buf, nil
}

// appendHead appends the head of a request. Values with line ends are refused.
func appendHead(b []byte, r *http.Request) ([]byte, error) {
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	uri := r.URL.RequestURI()
	if !httpguts.ValidHostHeader(host) || strings.ContainsFunc(uri, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
		return nil, errors.New("the address of the request has characters that no address has")
	}
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, uri...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, host...)
	b = append(b, "\r\n"...)
	for name, values := range r.Header {
		if name == "Host" || name == "Content-Length" { // taken from the request's own fields
			continue
		}
		if !httpguts.ValidHeaderFieldName(name) {
			return nil, fmt.Errorf("%q is no name of a header", name)
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) { // not in the message: it may be a secret
				return nil, fmt.Errorf("the header %s has characters that no header has", name)
			}
			b = append(b, name...)
			b = append(b, ": "...)
			b = append(b, strings.Trim(v, " \t")...)
			b = append(b, "\r\n"...)
		}
	}
	if r.ContentLength > 0 {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, r.ContentLength, 10)
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...), nil
}

// appendBody appends a body, which must have exactly n bytes.
func appendBody(b []byte, body io.Reader, n int) ([]byte, error) {
	w := appender{b: b, left: n}
	_, err := io.Copy(&w, body) // uses WriteTo for a body in memory
	if err == nil && w.left != 0 {
		err = errLength
	}
	return w.b, err
}

var errLength = errors.New("the body of the request has another length than it says")

// appender is an io.Writer that accepts at most left more bytes.
type appender struct {
	b    []byte
	left int
}

func (a *appender) Write(p []byte) (int, error) {
	if len(p) > a.left {
		return 0, errLength
	}
	a.b, a.left = append(a.b, p...), a.left-len(p)
	return len(p), nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}
