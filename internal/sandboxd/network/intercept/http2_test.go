package intercept

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// http2Client sends frames that no proper client sends.
type http2Client struct {
	conn   net.Conn
	framer *http2.Framer
	stream uint32
}

func newHTTP2Client(t *testing.T, conn net.Conn, w *world) *http2Client {
	t.Helper()
	c := tls.Client(conn, &tls.Config{RootCAs: w.guestTrust(), ServerName: host, NextProtos: []string{"h2"}})
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	h := &http2Client{conn: c, framer: http2.NewFramer(c, c), stream: 1}
	h.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := h.framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return h
}

// request returns the status of the response, or "reset".
func (c *http2Client) request(t *testing.T, fields ...string) string {
	t.Helper()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		if err := enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	for {
		f, err := c.framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			return f.PseudoValue("status")
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return "reset"
		}
	}
}
