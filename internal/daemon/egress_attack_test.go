package daemon_test

import (
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

//go:embed testdata/egress/raw.py
var rawPython []byte

// attempt is input for testdata/egress/raw.py, with the expected result.
type attempt struct {
	To    string   `json:"to"`
	Port  int      `json:"port"`
	TLS   string   `json:"tls,omitempty"`
	Send  []string `json:"send"` // latin-1: a byte per character
	First bool     `json:"first,omitempty"`

	name string
	gets string // a regular expression for all that comes back
}

// attack makes the guest carry out all attempts, several at a time.
func (st *station) attack(t *testing.T, attempts []attempt) {
	t.Helper()
	for i := range attempts {
		for j, s := range attempts[i].Send {
			attempts[i].Send[j] = latin1(s)
		}
	}
	arg, err := json.Marshal(attempts)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	out := st.run(t, sandbox.CommandParams{Argv: []string{"python3", "/tmp/raw.py", string(arg)}})
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got) != len(attempts) {
		t.Fatalf("%d results of %d attempts, %v: %s", len(got), len(attempts), err, out)
	}
	for i, a := range attempts {
		if !matches(a.gets, got[i]) {
			t.Errorf("%s: it gets %.300q, want %q", a.name, got[i], a.gets)
		}
	}
}

// latin1 returns s with a character for each of its bytes, so that it survives
// JSON.
func latin1(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(rune(s[i]))
	}
	return b.String()
}

// requests are rows N12 and N13: HTTP that a proxy and a server may read
// differently; each hides a request that is not allowed.
var requests = []struct {
	name, send, gets string
}{
	{"as it should be", "GET /right HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n", `^HTTP/1\.1 200 `},
	{"upper case", "GET /right HTTP/1.1\r\nHost: API.Example.Com\r\nConnection: close\r\n\r\n", `^HTTP/1\.1 200 `},
	{"final dot", "GET /right HTTP/1.1\r\nHost: api.example.com.\r\nConnection: close\r\n\r\n", `^HTTP/1\.1 (200|4\d\d) `},
	{"absolute form", "GET http://api.example.com/right HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n", `^HTTP/1\.1 (200|400) `},
	{"absolute form of another host", "GET http://evil.example.net/smuggled HTTP/1.1\r\nHost: api.example.com\r\n\r\n", `^HTTP/1\.1 4\d\d `},
	{"absolute form and another host", "GET http://api.example.com/smuggled HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", `^HTTP/1\.1 4\d\d `},
	{"two hosts", "GET /smuggled HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.example.net\r\n\r\n", `^HTTP/1\.1 400 `},
	{"the same host twice", "GET /smuggled HTTP/1.1\r\nHost: api.example.com\r\nHost: api.example.com\r\n\r\n", `^HTTP/1\.1 400 `},
	{"no host", "GET /smuggled HTTP/1.1\r\n\r\n", `^HTTP/1\.1 4\d\d `},
	{"empty host", "GET /smuggled HTTP/1.1\r\nHost: \r\n\r\n", `^HTTP/1\.1 4\d\d `},
	{"HTTP/1.0 without host", "GET /smuggled HTTP/1.0\r\n\r\n", `^HTTP/1\.[01] 4\d\d `},
	{"HTTP/0.9", "GET /smuggled\r\n\r\n", `^(HTTP/1\.1 4\d\d |\[|$)`},
	{"a line that is no header", "GET /smuggled HTTP/1.1\r\nHost: api.example.com\r\nX\r\n\r\n", `^HTTP/1\.1 400 `},
	{"folded host", "GET /smuggled HTTP/1.1\r\nHost: api.example.com\r\n\tevil.example.net\r\n\r\n", `^HTTP/1\.1 400 `},
	{"folded header", "GET /smuggled HTTP/1.1\r\nHost: api.example.com\r\nX: a\r\n b\r\n\r\n", `^HTTP/1\.1 400 `},
	{"space before the colon", "GET /smuggled HTTP/1.1\r\nHost : evil.example.net\r\nHost: api.example.com\r\n\r\n", `^HTTP/1\.1 400 `},
	{"bare line feeds", "GET /smuggled HTTP/1.1\nHost: api.example.com\n\n", `^HTTP/1\.1 400 `},
	{"bare carriage return", "GET /smuggled HTTP/1.1\r\nHost: api.example.com\rHost: evil.example.net\r\n\r\n", `^HTTP/1\.1 400 `},
	{"NUL in the host", "GET /smuggled HTTP/1.1\r\nHost: api.example.com\x00.evil.example.net\r\n\r\n", `^HTTP/1\.1 400 `},
	{"NUL in a header", "GET /smuggled HTTP/1.1\r\nHost: api.example.com\r\nX: \x00\r\n\r\n", `^HTTP/1\.1 400 `},
	{"user information", "GET /smuggled HTTP/1.1\r\nHost: api.example.com@evil.example.net\r\n\r\n", `^HTTP/1\.1 4\d\d `},
	{"user information the other way", "GET /smuggled HTTP/1.1\r\nHost: evil.example.net@api.example.com\r\n\r\n", `^HTTP/1\.1 4\d\d `},
	{"escaped NUL", "GET /smuggled HTTP/1.1\r\nHost: api.example.com%00.evil.example.net\r\n\r\n", `^HTTP/1\.1 4\d\d `},
	{"path in the host", "GET /smuggled HTTP/1.1\r\nHost: api.example.com/.evil.example.net\r\n\r\n", `^HTTP/1\.1 4\d\d `},
	{"fragment in the host", "GET /smuggled HTTP/1.1\r\nHost: evil.example.net#.api.example.com\r\n\r\n", `^HTTP/1\.1 4\d\d `},
	{"homograph", "GET /smuggled HTTP/1.1\r\nHost: \u0430pi.example.com\r\n\r\n", `^HTTP/1\.1 4\d\d `},
	{"two ports", "GET /smuggled HTTP/1.1\r\nHost: api.example.com:80:25\r\n\r\n", `^HTTP/1\.1 4\d\d `},
	{"an address", "GET /smuggled HTTP/1.1\r\nHost: 93.184.0.20\r\n\r\n", `^HTTP/1\.1 4\d\d `},
	{"both lengths", "POST /right HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", `^HTTP/1\.1 400 `},
	{"two lengths", "POST /right HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", `^HTTP/1\.1 400 `},
	{"a list of lengths", "POST /right HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 0, 44\r\n\r\n", `^HTTP/1\.1 400 `},
	{"a length with a sign", "POST /right HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: +4\r\n\r\nabcd", `^HTTP/1\.1 400 `},
	{"another transfer coding", "POST /right HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: xchunked\r\n\r\n", `^HTTP/1\.1 (400|501) `},
	{"chunked twice", "POST /right HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", `^HTTP/1\.1 (400|501) `},
	{"bad chunk size", "POST /right HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n0x4\r\nabcd\r\n0\r\n\r\n", `^(HTTP/1\.1 (400|502) |$|\[)`},
	{"a head without end", "GET /smuggled HTTP/1.1\r\nHost: api.example.com\r\nX: " + strings.Repeat("x", 80<<10), `^(HTTP/1\.1 4\d\d |\[)`},
	// Several hosts over a single connection.
	{"another host next", "GET /right HTTP/1.1\r\nHost: api.example.com\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", `(?s)^HTTP/1\.1 200 .*HTTP/1\.1 4\d\d `},
	{"another host after an upgrade that was refused", "GET /right HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", `^HTTP/1\.1 \d`},
	{"upgrade to HTTP/2", "GET /right HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", `^HTTP/1\.1 [24]\d\d`},
	{"tunnel", "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n", `^HTTP/1\.1 4\d\d `},
	{"tunnel to another host", "CONNECT evil.example.net:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n", `^HTTP/1\.1 4\d\d `},
}

// hellos are row N13 for TLS, and other kinds of first packets. alert is a
// refusal, hello the server's answer, or ours if connections are opened.
func hellos(opened bool) []attempt {
	const (
		alert = `^(\x15\x03|\[ConnectionReset|$)`
		hello = `^\x16\x03`
	)
	right := clientHello(sni("api.example.com"))
	var all []attempt
	for name, send := range map[string]string{
		"no name":               clientHello(),
		"empty name":            clientHello(sni("")),
		"NUL":                   clientHello(sni("api.example.com\x00.evil.example.net")),
		"line end":              clientHello(sni("api.example.com\r\nX")),
		"user information":      clientHello(sni("evil@api.example.com")),
		"port":                  clientHello(sni("api.example.com:443")),
		"homograph":             clientHello(sni("\u0430pi.example.com")),
		"an address":            clientHello(sni(api)),
		"an address in allowed": clientHello(sni("0x5db8000a")),
		"a pattern":             clientHello(sni("*.example.com")),
		"empty label":           clientHello(sni("api..example.com")),
		"leading dot":           clientHello(sni(".api.example.com")),
		"a name of 300":         clientHello(sni(strings.Repeat("a.", 150) + "example.com")),
		"allowed name second":   clientHello(sni("evil.example.net", "api.example.com")),
		"allowed name first":    clientHello(sni("api.example.com", "evil.example.net")),
		"two extensions":        clientHello(sni("api.example.com"), sni("evil.example.net")),
		"encrypted hello":       clientHello(sni("api.example.com"), extension(0xfe0d, "\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00")),
		"another name":          clientHello(sni("evil.example.net")),
		"SOCKS5":                "\x05\x01\x00",
		"SOCKS4":                "\x04\x01\x01\xbb\x5d\xb8\x00\x0aapi.example.com\x00\x00",
		"SSH":                   "SSH-2.0-OpenSSH_9.9\r\n",
		"HTTP/2 unasked":        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"nothing of a kind":     "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09",
	} {
		gets := alert
		switch {
		case name == "HTTP/2 unasked":
			gets = `^(HTTP/1\.1 4\d\d |\[ConnectionReset|$)`
		case name == "encrypted hello" && opened:
			gets = hello // ours, which has no key for what is encrypted
		}
		all = append(all, attempt{name: name, To: cdn, Port: 443, Send: []string{send}, First: true, gets: gets})
	}
	var bytewise []string
	for i := range len(right) {
		bytewise = append(bytewise, right[i:i+1])
	}
	return append(all,
		attempt{name: "as it should be", To: cdn, Port: 443, Send: []string{right}, First: true, gets: hello},
		attempt{name: "upper case", To: cdn, Port: 443, Send: []string{clientHello(sni("API.example.com"))}, First: true, gets: hello},
		attempt{name: "byte by byte", To: cdn, Port: 443, Send: bytewise, First: true, gets: hello},
		attempt{name: "records of a byte", To: cdn, Port: 443, Send: []string{inRecords(right, 1)}, First: true, gets: hello},
		attempt{name: "another name in records of a byte", To: cdn, Port: 443,
			Send: []string{inRecords(clientHello(sni("evil.example.net")), 1)}, First: true, gets: alert},
	)
}

func vector(size int, s string) string {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(s)))
	return string(n[4-size:]) + s
}

func extension(kind uint16, body string) string {
	return string(binary.BigEndian.AppendUint16(nil, kind)) + vector(2, body)
}

// sni is the extension that names the server, with any number of names.
func sni(names ...string) string {
	var list strings.Builder
	for _, n := range names {
		list.WriteString("\x00" + vector(2, n))
	}
	return extension(0, vector(2, list.String()))
}

// clientHello is the smallest hello of TLS 1.2 that servers answer, in a record.
func clientHello(extensions ...string) string {
	rest := extension(10, vector(2, "\x00\x1d\x00\x17")) + // groups: X25519, P-256
		extension(11, vector(1, "\x00")) + // uncompressed points
		extension(13, vector(2, "\x04\x03\x08\x04")) // signatures: ECDSA, RSA-PSS
	body := "\x03\x03" + strings.Repeat("r", 32) + vector(1, "") +
		vector(2, "\xc0\x2b\xc0\x2f") + // ECDHE with AES-128-GCM
		vector(1, "\x00") + vector(2, strings.Join(extensions, "")+rest)
	return "\x16\x03\x01" + vector(2, "\x01"+vector(3, body))
}

// inRecords spreads the content of a record over records of size bytes.
func inRecords(record string, size int) string {
	var all strings.Builder
	for content := record[5:]; content != ""; {
		n := min(size, len(content))
		all.WriteString("\x16\x03\x01" + vector(2, content[:n]))
		content = content[n:]
	}
	return all.String()
}

// packets are rows N4 and N16: packets, other than TCP and UDP of the guest's
// own address, that root in the guest can send. None of them gets an answer.
const packets = `
import socket, struct, sys
target, peer = sys.argv[1], sys.argv[2]
def ip(proto, payload, src="0.0.0.0", flags=0, options=b""):
    length = 20 + len(options) + len(payload)
    return struct.pack(">BBHHHBBH4s4s", 0x40 | 5 + len(options) // 4, 0, length, 1, flags, 64, proto, 0,
        socket.inet_aton(src), socket.inet_aton(target)) + options + payload
def udp(payload, port=7):
    return struct.pack(">HHHH", 4444, port, 8 + len(payload), 0) + payload
answered = []
def send(name, proto, packet, raw=True):
    try:
        s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW if raw else proto)
        r = socket.socket(socket.AF_INET, socket.SOCK_RAW, proto)
        r.settimeout(0.3)
        s.sendto(packet, (target, 0))
        answer, frm = r.recvfrom(65536)
        if b"tunnel-" in answer and frm[0] == target and name != "ping":
            answered.append(name)
    except OSError:
        pass
send("GRE", 47, ip(47, b"\0\0\x08\0tunnel-gre"))
send("SCTP", 132, ip(132, b"\x11\x5c\0\x07\0\0\0\0\0\0\0\0tunnel-sctp"))
send("IP in IP", 4, ip(4, ip(17, udp(b"tunnel-ipip"))))
send("IPv6 in IP", 41, ip(41, b"\x60" + b"\0" * 39 + b"tunnel-6in4"))
send("ping", 1, struct.pack(">BBHHH", 8, 0, 0, 1, 1) + b"tunnel-icmp", raw=False)
send("another source", 17, ip(17, udp(b"tunnel-spoof"), src=peer))
send("the gateway's source", 17, ip(17, udp(b"tunnel-spoof"), src=sys.argv[3]))
send("loose source route", 17, ip(17, udp(b"tunnel-lsrr"), options=b"\x83\x07\x04" + socket.inet_aton("10.77.0.5") + b"\0"))
send("fragment", 17, ip(17, udp(b"tunnel-frag"), flags=0x2000))
for group, port in (("224.0.0.251", 5353), ("224.0.0.252", 5355), ("239.255.255.250", 1900), ("255.255.255.255", 67)):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        s.settimeout(0.3)
        try:
            s.sendto(b"tunnel-cast", (group, port))
            answered.append(f"{group}: {s.recvfrom(1500)}")
        except OSError:
            pass
print(answered)
`

// Rows N4, N12, N13 and N16, byte by byte.
func TestEgress_Attack(t *testing.T) {
	t.Parallel()
	s := openSite(t)
	t.Run("as allowed", func(t *testing.T) {
		t.Parallel()
		attackAs(t, s, only("api.example.com"))
	})
	t.Run("opened", func(t *testing.T) {
		t.Parallel()
		policy := only("api.example.com")
		policy.Strict = true
		attackAs(t, s, policy)
	})
}

func attackAs(t *testing.T, s *site, policy sandbox.Network) {
	st := openStation(t, s, "python", policy)
	if err := st.WriteFile(t.Context(), "/tmp/raw.py", rawPython, 0o755); err != nil {
		t.Fatal(err)
	}
	begin := s.net.Mark()
	check := func(t *testing.T) {
		t.Helper()
		for _, r := range s.net.Requests(begin) {
			if !strings.EqualFold(strings.TrimSuffix(r.Host, "."), "api.example.com") || strings.Contains(r.URI, "smuggled") {
				t.Errorf("a server got %s %s for %s", r.Method, r.URI, r.Host)
			}
		}
		for _, d := range s.net.Dials(begin) {
			if d.Address.Addr() != networktest.API || d.Address.Port() != 80 && d.Address.Port() != 443 {
				t.Errorf("dialled %s", d)
			}
		}
	}
	t.Run("requests", func(t *testing.T) {
		var plain []attempt
		for _, r := range requests {
			plain = append(plain, attempt{name: r.name, To: cdn, Port: 80, Send: []string{r.send}, gets: r.gets})
		}
		st.attack(t, plain)
		check(t)
	})
	t.Run("requests in TLS", func(t *testing.T) {
		if !policy.Strict {
			return // they are not read
		}
		var opened []attempt
		for _, r := range requests {
			opened = append(opened, attempt{name: r.name, To: cdn, Port: 443, TLS: "api.example.com", Send: []string{r.send}, gets: r.gets})
		}
		st.attack(t, opened)
		check(t)
	})
	t.Run("hellos", func(t *testing.T) {
		st.attack(t, hellos(policy.Strict))
		check(t)
	})
	t.Run("packets", func(t *testing.T) {
		got := st.run(t, sandbox.CommandParams{
			Argv: []string{"python3", "-c", packets, misc, "100.64.1.99", network.GatewayAddr.String()}, Sudo: true,
		})
		if strings.TrimSpace(got) != "[]" {
			t.Errorf("answers to %s", got)
		}
		check(t)
	})
}
