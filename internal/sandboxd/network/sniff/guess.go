package sniff

import (
	"bytes"
	"strings"
)

// Protocol is the protocol that a connection begins with.
type Protocol int

const (
	// Unknown is any other protocol: it has no readable name.
	Unknown Protocol = iota
	// TLS begins with a handshake record; see ReadClientHello.
	TLS
	// HTTP begins with a request line of HTTP/1; see FilterRequests.
	HTTP
	// PostgresTLS begins with PostgresSSLRequest. After the answer 'S' the client sends a
	// ClientHello, and nothing may precede it.
	PostgresTLS
	// PostgresGSS begins with PostgresGSSRequest. After the answer 'N' the client asks
	// for TLS, or for an unencrypted session.
	PostgresGSS
)

func (p Protocol) String() string {
	switch p {
	case TLS:
		return "TLS"
	case HTTP:
		return "HTTP"
	case PostgresTLS:
		return "PostgreSQL with TLS"
	case PostgresGSS:
		return "PostgreSQL with GSSAPI"
	}
	return "unknown"
}

// The requests that a PostgreSQL client may begin with to get an encrypted
// session. The whole request is 8 bytes.
const (
	PostgresSSLRequest = "\x00\x00\x00\x08\x04\xd2\x16\x2f"
	PostgresGSSRequest = "\x00\x00\x00\x08\x04\xd2\x16\x30"
)

// GuessSize is how many bytes Guess needs at most.
const GuessSize = maxMethod + 1 + len("https:")

// maxMethod is the length of the longest HTTP method that Guess recognizes; the longest
// in use is UPDATEREDIRECTREF.
const maxMethod = 20

// Guess tells the protocol from the first bytes of a connection. If more is true, Guess
// is undecided, and must be called again with more bytes. A guessed protocol need not be
// valid.
func Guess(first []byte) (p Protocol, more bool) {
	switch {
	case len(first) == 0:
		return Unknown, true
	case first[0] == recordHandshake:
		if len(first) == 1 {
			return Unknown, true
		}
		if first[1] == 3 {
			return TLS, false
		}
		return Unknown, false
	case first[0] == 0:
		return guessPostgres(first)
	}
	return guessHTTP(first)
}

func guessPostgres(first []byte) (Protocol, bool) {
	switch {
	case bytes.HasPrefix(first, []byte(PostgresSSLRequest)):
		return PostgresTLS, false
	case bytes.HasPrefix(first, []byte(PostgresGSSRequest)):
		return PostgresGSS, false
	}
	return Unknown, strings.HasPrefix(PostgresSSLRequest, string(first)) || strings.HasPrefix(PostgresGSSRequest, string(first))
}

// guessHTTP requires a method in capitals and a valid beginning of a target after it.
// Other text protocols also begin with a word and a space.
func guessHTTP(first []byte) (Protocol, bool) {
	i := 0
	for i < len(first) && ('A' <= first[i] && first[i] <= 'Z' || first[i] == '-' && i > 0) {
		if i++; i > maxMethod {
			return Unknown, false
		}
	}
	switch {
	case i == len(first):
		return Unknown, true
	case i == 0 || first[i] != ' ':
		return Unknown, false
	case string(first[:i]) == "CONNECT":
		return HTTP, false // FilterRequests refuses it with a reason
	}
	target := first[i+1:]
	if len(target) == 0 {
		return Unknown, true
	}
	if target[0] == '/' || target[0] == '*' {
		return HTTP, false
	}
	for _, scheme := range []string{"http:", "https:"} {
		n := min(len(scheme), len(target))
		if !strings.EqualFold(scheme[:n], string(target[:n])) {
			continue
		}
		if n == len(scheme) {
			return HTTP, false
		}
		return Unknown, true
	}
	return Unknown, false
}
