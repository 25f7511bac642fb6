package sniff_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/network/sniff"
)

// sayHello returns the first bytes that crypto/tls's client sends.
func sayHello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	failed := make(chan error, 1)
	go func() { failed <- tls.Client(client, config).Handshake() }()
	_, raw, err := sniff.ReadClientHello(server)
	if err != nil {
		t.Fatalf("crypto/tls's hello: %v", err)
	}
	server.Close()
	<-failed
	return raw
}

// message returns the handshake message in a hello of one record.
func message(hello []byte) []byte { return hello[5:] }

// records sends a handshake message in records with size bytes each.
func records(message []byte, size int) (raw []byte) {
	for part := range slices.Chunk(message, size) {
		raw = append(raw, 22, 3, 1, byte(len(part)>>8), byte(len(part)))
		raw = append(raw, part...)
	}
	return raw
}

// extension is a TLS extension of any content.
func extension(kind uint16, data []byte) []byte {
	return slices.Concat(binary.BigEndian.AppendUint16(nil, kind), vector16(data))
}

func vector16(data []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(data))), data...)
}

// names is a server name extension with entries of the given types.
func names(entries ...string) []byte {
	var list []byte
	for _, e := range entries {
		list = append(list, e[0])
		list = append(list, vector16([]byte(e[1:]))...)
	}
	return extension(0, vector16(list))
}

func host(name string) string { return "\x00" + name }

// helloMessage is a minimal ClientHello of TLS 1.2 with these extensions.
func helloMessage(extensions ...[]byte) []byte {
	body := slices.Concat([]byte{3, 3}, make([]byte, 32), []byte{0}, []byte{0, 2, 0xc0, 0x2f}, []byte{1, 0})
	if extensions != nil {
		body = append(body, vector16(slices.Concat(extensions...))...)
	}
	return slices.Concat([]byte{1, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body)
}

func TestReadClientHello_Real(t *testing.T) {
	t.Parallel()
	many := make([]string, 200)
	for i := range many {
		many[i] = fmt.Sprintf("%s-%03d", strings.Repeat("protocol", 6), i)
	}
	for name, config := range map[string]*tls.Config{
		"1.0":      {ServerName: "api.example.com", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10},
		"1.2":      {ServerName: "api.example.com", MaxVersion: tls.VersionTLS12},
		"1.3":      {ServerName: "api.example.com", MinVersion: tls.VersionTLS13},
		"Any":      {ServerName: "API.example.com", NextProtos: []string{"h2", "http/1.1"}},
		"ALPNHuge": {ServerName: "a-b_c.example.com", NextProtos: many},
		"NoName":   {InsecureSkipVerify: true},
		"Address":  {ServerName: "192.0.2.1"}, // which clients do not send
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := config.ServerName
			if name == "Address" {
				want = ""
			}
			raw := sayHello(t, config)
			for _, size := range []int{1, 2, 3, 5, 100, 1 << 14} {
				cut := records(message(raw), size)
				if len(cut) > 32<<10 {
					continue
				}
				behind := []byte("early data")
				for how, r := range map[string]io.Reader{
					"whole":     bytes.NewReader(append(cut, behind...)),
					"bytewise":  iotest.OneByteReader(bytes.NewReader(append(cut, behind...))),
					"with EOF":  iotest.DataErrReader(bytes.NewReader(append(cut, behind...))),
					"half-wise": iotest.HalfReader(bytes.NewReader(append(cut, behind...))),
				} {
					hello, got, err := sniff.ReadClientHello(r)
					if err != nil {
						t.Fatalf("records of %d bytes, %s: %v", size, how, err)
					}
					if hello.ServerName != want || !slices.Equal(hello.ALPN, config.NextProtos) || hello.ECH {
						t.Errorf("records of %d bytes, %s: %+v", size, how, hello)
					}
					if !bytes.Equal(got, cut) {
						t.Errorf("records of %d bytes, %s: raw is not what was sent", size, how)
					}
					if rest, err := io.ReadAll(r); err != nil || !bytes.Equal(rest, behind) {
						t.Errorf("records of %d bytes, %s: left %q behind, %v", size, how, rest, err)
					}
				}
			}
		})
	}
}

// selfSigned is a certificate for tests.
func selfSigned(t testing.TB, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A client that resumes a session sends its ticket, as the last extension.
func TestReadClientHello_Ticket(t *testing.T) {
	t.Parallel()
	cert := selfSigned(t, "api.example.com")
	for name, version := range map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := &tls.Config{ServerName: "api.example.com", InsecureSkipVerify: true,
				MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
			fresh := sayHello(t, config)

			listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			served := make(chan error, 1)
			go func() {
				conn, err := listener.Accept()
				if err == nil {
					_, err = conn.Write([]byte("x"))
					err = errors.Join(err, conn.Close())
				}
				served <- err
			}()
			client, err := tls.Dial("tcp", listener.Addr().String(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			if err := <-served; err != nil {
				t.Fatal(err)
			}

			resumed := sayHello(t, config)
			if len(resumed) < len(fresh)+64 {
				t.Fatalf("hello of %d bytes after one of %d: there is no ticket in it", len(resumed), len(fresh))
			}
			hello, _, err := sniff.ReadClientHello(bytes.NewReader(resumed))
			if err != nil || hello.ServerName != "api.example.com" {
				t.Errorf("hello %+v, %v", hello, err)
			}
		})
	}
}

func TestReadClientHello_Made(t *testing.T) {
	t.Parallel()
	padding := extension(21, make([]byte, 12<<10))
	alpn := extension(16, vector16([]byte("\x02h2\x08http/1.1")))
	for name, c := range map[string]struct {
		raw  []byte
		want sniff.ClientHello
	}{
		"no extensions":    {records(helloMessage(), 1000), sniff.ClientHello{}},
		"name":             {records(helloMessage(names(host("a.example"))), 1000), sniff.ClientHello{ServerName: "a.example"}},
		"name of 1 letter": {records(helloMessage(names(host("a"))), 1000), sniff.ClientHello{ServerName: "a"}},
		"padded":           {records(helloMessage(padding, names(host("a.example"))), 16384), sniff.ClientHello{ServerName: "a.example"}},
		"ALPN":             {records(helloMessage(alpn), 7), sniff.ClientHello{ALPN: []string{"h2", "http/1.1"}}},
		"ECH":              {records(helloMessage(names(host("a.example")), extension(0xfe0d, []byte{0, 1, 2})), 7), sniff.ClientHello{ServerName: "a.example", ECH: true}},
		"PSK at the end":   {records(helloMessage(names(host("a.example")), extension(41, []byte{1})), 9), sniff.ClientHello{ServerName: "a.example"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hello, raw, err := sniff.ReadClientHello(iotest.OneByteReader(bytes.NewReader(c.raw)))
			if err != nil {
				t.Fatal(err)
			}
			if hello.ServerName != c.want.ServerName || hello.ECH != c.want.ECH || !slices.Equal(hello.ALPN, c.want.ALPN) {
				t.Errorf("%+v, want %+v", *hello, c.want)
			}
			if !bytes.Equal(raw, c.raw) {
				t.Error("raw is not what was sent")
			}
		})
	}
}

func TestReadClientHello_Refused(t *testing.T) {
	t.Parallel()
	good := helloMessage(names(host("a.example")))
	edit := func(b []byte, at int, to ...byte) []byte {
		b = slices.Clone(b)
		copy(b[at:], to)
		return b
	}
	one := func(message []byte) []byte { return records(message, 1<<14) }
	ext := func(e ...[]byte) []byte { return one(helloMessage(e...)) }
	big := slices.Concat([]byte{1, 0, 0x40, 1}, make([]byte, 100))
	for name, c := range map[string]struct {
		raw    []byte
		reason string // a part of the error's reason
	}{
		"SSL 2":                {[]byte("\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10"), "SSL 2"},
		"alert":                {[]byte{21, 3, 1, 0, 2, 2, 40}, "an alert"},
		"application data":     {[]byte{23, 3, 3, 0, 1, 0}, "record type 23"},
		"change cipher spec":   {[]byte{20, 3, 3, 0, 1, 1}, "record type 20"},
		"HTTP":                 {[]byte("GET / HTTP/1.1\r\n"), "record type 71"},
		"short text":           {[]byte("hi"), "record type 104"},
		"record version 2":     {edit(one(good), 1, 2), "record version 2.1"},
		"record version 3.5":   {edit(one(good), 2, 5), "record version 3.5"},
		"empty record":         {slices.Concat([]byte{22, 3, 1, 0, 0}, one(good)), "an empty record"},
		"empty second record":  {slices.Concat(records(good[:9], 9), []byte{22, 3, 1, 0, 0}), "an empty record"},
		"large record":         {[]byte{22, 3, 1, 0x40, 1}, "a record of 16385 bytes"},
		"server hello":         {one(edit(good, 0, 2)), "handshake message 2"},
		"hello request":        {one([]byte{0, 0, 0, 0}), "handshake message 0"},
		"large message":        {one(big), "16385 bytes long"},
		"too many records":     {records(helloMessage(extension(21, make([]byte, 8<<10))), 1), "too many records"},
		"trailing byte":        {one(append(slices.Clone(good), 0)), "more in its record"},
		"two messages":         {one(slices.Concat(good, good)), "more in its record"},
		"type changes":         {slices.Concat(records(good[:9], 9), []byte{23, 3, 3, 0, 1, 0}), "record type 23"},
		"empty body":           {one([]byte{1, 0, 0, 0}), "cut off"},
		"cut body":             {one(edit(good, 3, 20)[:24]), "cut off"},
		"SSL 3":                {one(edit(good, 5, 0)), "version 3.0"},
		"version 3.4":          {one(edit(good, 5, 4)), "version 3.4"},
		"long session id":      {one(slices.Concat([]byte{1, 0, 0, 74, 3, 3}, make([]byte, 32), []byte{33}, make([]byte, 33), []byte{0, 2, 0xc0, 0x2f}, []byte{1, 0})), "session id"},
		"no cipher suites":     {one(slices.Concat([]byte{1, 0, 0, 39, 3, 3}, make([]byte, 32), []byte{0}, []byte{0, 0}, []byte{1, 0})), "cipher suites"},
		"odd cipher suites":    {one(slices.Concat([]byte{1, 0, 0, 40, 3, 3}, make([]byte, 32), []byte{0}, []byte{0, 1, 7}, []byte{1, 0})), "cipher suites"},
		"compressed only":      {one(edit(helloMessage(), 4+34+1+4+1, 1)), "uncompressed"},
		"extensions too long":  {one(edit(good, 4+41+1, 0xff)), "extensions"},
		"behind extensions":    {one(edit(append(slices.Clone(good), 0), 3, good[3]+1)), "extensions"},
		"extension cut off":    {ext([]byte{0, 0, 0, 9, 1}), "an extension is cut off"},
		"half an extension":    {ext([]byte{0}), "an extension is cut off"},
		"name twice":           {ext(names(host("a.example")), names(host("b.example"))), "extension 0 twice"},
		"unknown twice":        {ext(extension(999, nil), extension(999, nil)), "extension 999 twice"},
		"two names":            {ext(names(host("a.example"), host("b.example"))), "several server names"},
		"same name twice":      {ext(names(host("a.example"), host("a.example"))), "several server names"},
		"other kind first":     {ext(names("\x01x", host("a.example"))), "type 1"},
		"other kind second":    {ext(names(host("a.example"), "\x01x")), "several server names"},
		"other kind only":      {ext(names("\x01a.example")), "type 1"},
		"empty name":           {ext(names(host(""))), "an empty server name"},
		"empty list":           {ext(names()), "an empty server name list"},
		"no list":              {ext(extension(0, nil)), "server name list"},
		"list too long":        {ext(extension(0, []byte{0, 9, 0, 0, 1, 'a'})), "server name list"},
		"behind the list":      {ext(extension(0, []byte{0, 4, 0, 0, 1, 'a', 0})), "server name list"},
		"name cut off":         {ext(extension(0, []byte{0, 4, 0, 0, 9, 'a'})), "server name is cut off"},
		"NUL":                  {ext(names(host("a.example\x00.evil.example"))), "'\\x00'"},
		"line feed":            {ext(names(host("a.example\n"))), "'\\n'"},
		"space":                {ext(names(host("a example"))), "' '"},
		"slash":                {ext(names(host("a.example/"))), "'/'"},
		"port":                 {ext(names(host("a.example:443"))), "':'"},
		"user":                 {ext(names(host("u@a.example"))), "'@'"},
		"wildcard":             {ext(names(host("*.example"))), "'*'"},
		"not ASCII":            {ext(names(host("\u0430.example"))), "in server name"},
		"trailing dot":         {ext(names(host("a.example."))), "with a dot"},
		"leading dot":          {ext(names(host(".example"))), "with a dot"},
		"IPv4":                 {ext(names(host("192.0.2.1"))), "the address 192.0.2.1"},
		"IPv6":                 {ext(names(host("2001:db8::1"))), "':'"},
		"long name":            {ext(names(host(strings.Repeat("a", 256)))), "256 bytes"},
		"ALPN empty list":      {ext(extension(16, []byte{0, 0})), "list of protocols"},
		"ALPN empty name":      {ext(extension(16, []byte{0, 1, 0})), "an empty protocol"},
		"ALPN cut off":         {ext(extension(16, []byte{0, 2, 9, 'h'})), "an empty protocol"},
		"ALPN behind":          {ext(extension(16, []byte{0, 2, 1, 'h', 0})), "list of protocols"},
		"PSK not last":         {ext(extension(41, nil), names(host("a.example"))), "behind pre_shared_key"},
		"garbage in TLS shape": {slices.Concat([]byte{22, 3, 1, 0, 60, 1, 0, 0, 56, 3, 3}, bytes.Repeat([]byte{0xff}, 54)), "cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for how, r := range map[string]io.Reader{"whole": bytes.NewReader(c.raw), "bytewise": iotest.OneByteReader(bytes.NewReader(c.raw))} {
				hello, raw, err := sniff.ReadClientHello(r)
				bad, ok := errors.AsType[*sniff.HelloError](err)
				if !ok || hello != nil {
					t.Fatalf("%s: hello %+v, error %v, want a HelloError", how, hello, err)
				}
				if !strings.Contains(bad.Reason, c.reason) {
					t.Errorf("%s: reason %q, want one with %q", how, bad.Reason, c.reason)
				}
				if !bytes.HasPrefix(c.raw, raw) {
					t.Errorf("%s: raw is not what was sent", how)
				}
			}
		})
	}
}

// Wherever the client stops, ReadClientHello returns the reader's own error.
func TestReadClientHello_CutOff(t *testing.T) {
	t.Parallel()
	whole := records(helloMessage(names(host("a.example"))), 20)
	for n := range whole {
		_, raw, err := sniff.ReadClientHello(bytes.NewReader(whole[:n]))
		want := io.ErrUnexpectedEOF
		if n == 0 {
			want = io.EOF
		}
		if !errors.Is(err, want) || !bytes.Equal(raw, whole[:n]) {
			t.Errorf("after %d bytes: error %v, %d bytes raw", n, err, len(raw))
		}
		_, raw, err = sniff.ReadClientHello(io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(os.ErrDeadlineExceeded)))
		if !errors.Is(err, os.ErrDeadlineExceeded) || !bytes.Equal(raw, whole[:n]) {
			t.Errorf("after %d bytes: error %v, %d bytes raw", n, err, len(raw))
		}
	}
}

// A client understands the alert.
func TestAlert_Record(t *testing.T) {
	t.Parallel()
	for alert, want := range map[sniff.Alert]string{
		sniff.AccessDenied:     "access denied",
		sniff.UnrecognizedName: "unrecognized name",
	} {
		client, server := net.Pipe()
		done := make(chan error, 1)
		go func() {
			defer server.Close()
			_, _, err := sniff.ReadClientHello(server)
			if err == nil {
				_, err = server.Write(alert.Record())
			}
			done <- err
		}()
		err := tls.Client(client, &tls.Config{ServerName: "a.example"}).Handshake()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("alert %d: the client says %v, want %q", alert, err, want)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := len(alert.Record()); n != 7 {
			t.Errorf("alert %d has %d bytes", alert, n)
		}
	}
}

// replay is a connection that reads from Reader.
type replay struct {
	net.Conn
	io.Reader
}

func (r replay) Read(p []byte) (int, error)     { return r.Reader.Read(p) }
func (replay) Write(p []byte) (int, error)      { return len(p), nil }
func (replay) Close() error                     { return nil }
func (replay) SetDeadline(time.Time) error      { return nil }
func (replay) SetWriteDeadline(time.Time) error { return nil }

var errSeen = errors.New("seen")

// FuzzReadClientHello compares with crypto/tls: crypto/tls reads the same server from
// each accepted hello, or refuses the hello.
func FuzzReadClientHello(f *testing.F) {
	for _, config := range []*tls.Config{
		{ServerName: "api.example.com"},
		{ServerName: "api.example.com", MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2"}},
		{InsecureSkipVerify: true},
	} {
		raw := sayHello(f, config)
		f.Add(raw)
		f.Add(records(message(raw), 50))
	}
	f.Add(records(helloMessage(names(host("a.example"), "\x01x")), 100))
	f.Add(records(helloMessage(names(host("a.example")), names(host("b.example"))), 100))
	f.Fuzz(func(t *testing.T, sent []byte) {
		hello, raw, err := sniff.ReadClientHello(bytes.NewReader(sent))
		if !bytes.HasPrefix(sent, raw) {
			t.Fatal("raw is not what was sent")
		}
		sliced, rawSliced, errSliced := sniff.ReadClientHello(iotest.OneByteReader(bytes.NewReader(sent)))
		if (err == nil) != (errSliced == nil) || err != nil && err.Error() != errSliced.Error() || !bytes.Equal(raw, rawSliced) {
			t.Fatalf("whole: %v, byte by byte: %v", err, errSliced)
		}
		if err != nil {
			return
		}
		if sliced.ServerName != hello.ServerName {
			t.Fatalf("whole: %+v, byte by byte: %+v", hello, sliced)
		}
		var theirs *tls.ClientHelloInfo
		config := &tls.Config{GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			theirs = info
			return nil, errSeen
		}}
		err = tls.Server(replay{Reader: bytes.NewReader(raw)}, config).HandshakeContext(context.Background())
		switch {
		case theirs == nil && err == nil:
			t.Fatal("crypto/tls shook hands without a hello")
		case theirs == nil:
			// crypto/tls refuses extensions that do not matter here.
		case theirs.ServerName != hello.ServerName:
			t.Fatalf("server name %q, crypto/tls reads %q", hello.ServerName, theirs.ServerName)
		case !slices.Equal(theirs.SupportedProtos, hello.ALPN):
			t.Fatalf("protocols %q, crypto/tls reads %q", hello.ALPN, theirs.SupportedProtos)
		}
	})
}
