package sniff_test

import (
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/sandboxd/network/sniff"
)

func TestGuess(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		first string
		want  sniff.Protocol
		at    int // how many bytes it takes
	}{
		{"\x16\x03\x01\x02\x00", sniff.TLS, 2},
		{"\x16\x03\x09", sniff.TLS, 2}, // for ReadClientHello to refuse
		{"\x16\x02\x01", sniff.Unknown, 2},
		{"\x80\x2e\x01\x03\x01", sniff.Unknown, 1},
		{"\x15\x03\x01", sniff.Unknown, 1},
		{"GET / HTTP/1.1\r\n", sniff.HTTP, 5},
		{"POST http://a.example/ HTTP/1.1\r\n", sniff.HTTP, 10},
		{"POST HTTPS://a.example/ HTTP/1.1\r\n", sniff.HTTP, 11},
		{"OPTIONS * HTTP/1.1\r\n", sniff.HTTP, 9},
		{"M-SEARCH * HTTP/1.1\r\n", sniff.HTTP, 10},
		{"CONNECT a.example:443 HTTP/1.1\r\n", sniff.HTTP, 8},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", sniff.HTTP, 5},
		{"UPDATEREDIRECTREF / HTTP/1.1", sniff.HTTP, 19},
		{"ABCDEFGHIJKLMNOPQRSTUVWXYZ", sniff.Unknown, 21},
		{"GET key\r\n", sniff.Unknown, 5},
		{"GET  / HTTP/1.1\r\n", sniff.Unknown, 5},
		{"GET\t/ HTTP/1.1\r\n", sniff.Unknown, 4},
		{"EHLO host.example\r\n", sniff.Unknown, 7},
		{"HELP\r\n", sniff.Unknown, 5},
		{"get / HTTP/1.1\r\n", sniff.Unknown, 1},
		{"SSH-2.0-OpenSSH_9.2p1 Debian\r\n", sniff.Unknown, 5},
		{"\r\nGET / HTTP/1.1", sniff.Unknown, 1},
		{" GET / HTTP/1.1", sniff.Unknown, 1},
		{"-GET / HTTP/1.1", sniff.Unknown, 1},
		{"\x00\x00\x00\x08\x04\xd2\x16\x2f", sniff.PostgresTLS, 8},
		{"\x00\x00\x00\x08\x04\xd2\x16\x2fmore", sniff.PostgresTLS, 8},
		{"\x00\x00\x00\x08\x04\xd2\x16\x30", sniff.PostgresGSS, 8},
		{"\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02", sniff.Unknown, 4}, // cancel
		{"\x00\x00\x00\x29\x00\x03\x00\x00user\x00", sniff.Unknown, 4},                         // startup
		{"\x00\x00\x00\x08\x04\xd2\x16\x31", sniff.Unknown, 8},
	} {
		for n := range len(c.first) + 1 {
			p, more := sniff.Guess([]byte(c.first[:n]))
			switch {
			case n < c.at && (!more || p != sniff.Unknown):
				t.Errorf("%q: %v, more %t; it takes %d bytes", c.first[:n], p, more, c.at)
			case n >= c.at && (more || p != c.want):
				t.Errorf("%q: %v, more %t; want %v", c.first[:n], p, more, c.want)
			}
		}
	}
}

func FuzzGuess(f *testing.F) {
	for _, s := range []string{"\x16\x03", "GET / HTTP/1.1", sniff.PostgresSSLRequest, sniff.PostgresGSSRequest, "CONNECT x"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, first []byte) {
		decided := false
		var was sniff.Protocol
		for n := range len(first) + 1 {
			p, more := sniff.Guess(first[:n])
			switch {
			case more && (p != sniff.Unknown || n >= sniff.GuessSize):
				t.Fatalf("%q: %v and undecided", first[:n], p)
			case more && decided, decided && p != was:
				t.Fatalf("%q: %v, more %t; it was decided to be %v", first[:n], p, more, was)
			}
			decided, was = !more, p
		}
		if was == sniff.HTTP && !strings.Contains(string(first), " ") {
			t.Fatalf("%q: HTTP without a space", first)
		}
	})
}
