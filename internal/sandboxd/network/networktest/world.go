package networktest

import "net/netip"

// Addresses of the servers that every Internet has. The names in comments are in its DNS
// server; ports are TCP unless the comment says otherwise.
var (
	// API is api.example.com, alias.example.com (a CNAME of it) and
	// pinned.example.com: 80 HTTP, 443 HTTPS.
	API = netip.MustParseAddr("93.184.0.10")
	// Files is files.example.com: 80 and 443.
	Files = netip.MustParseAddr("93.184.0.11")
	// CDN is cdn.example.com and evil.example.net, which share one server and its
	// certificate: 80 and 443.
	CDN = netip.MustParseAddr("93.184.0.20")
	// Misc is misc.example.com: 7 echo (also UDP), 2222 a server that sends first, 8443
	// and 465 TLS that is not HTTP (an echo), 25 mail, 5432 like Postgres (SSLRequest,
	// then a TLS echo), 443 UDP an echo (QUIC's port).
	Misc = netip.MustParseAddr("93.184.0.30")
	// Other is other.example.org, *.exfil.example.net and www.xn--exmple-cua.com:
	// 80, 443.
	Other = netip.MustParseAddr("93.185.0.40")
	// DNS is dns.example.net, a resolver that guests must not reach: 53 (also
	// UDP), 853 DNS over TLS, 443 DNS over HTTPS.
	DNS = netip.MustParseAddr("93.184.0.53")
	// SelfSigned, Expired and WrongName are selfsigned.example.com, expired.example.com
	// and wrongname.example.com: 443 HTTPS with a certificate that clients must not
	// trust.
	SelfSigned = netip.MustParseAddr("93.184.0.61")
	Expired    = netip.MustParseAddr("93.184.0.62")
	WrongName  = netip.MustParseAddr("93.184.0.63")
	// BlackHole is slow.example.com: nothing there ever answers.
	BlackHole = netip.MustParseAddr("93.184.0.99")
	// Metadata is the address of cloud metadata services. A server there gives
	// Credentials to every client, which fails the test.
	Metadata = netip.MustParseAddr("169.254.169.254")
	// Private is internal.example.com: 80 HTTP. Reaching it fails the test, unless the
	// test calls Permit.
	Private = netip.MustParseAddr("10.77.0.5")
)

// Credentials is the answer of Metadata.
const Credentials = "the-credentials-of-the-host"

// names are the answers of the DNS server: addresses, or an alias.
var names = map[string][]string{
	"api.example.com":         {API.String()},
	"alias.example.com":       {"api.example.com"},
	"files.example.com":       {Files.String()},
	"cdn.example.com":         {CDN.String()},
	"evil.example.net":        {CDN.String()},
	"misc.example.com":        {Misc.String()},
	"other.example.org":       {Other.String()},
	"*.exfil.example.net":     {Other.String()},
	"www.xn--exmple-cua.com":  {Other.String()},
	"dns.example.net":         {DNS.String()},
	"selfsigned.example.com":  {SelfSigned.String()},
	"expired.example.com":     {Expired.String()},
	"wrongname.example.com":   {WrongName.String()},
	"slow.example.com":        {BlackHole.String()},
	"internal.example.com":    {Private.String()},
	"many.example.com":        {API.String(), Files.String()},
	"dead-first.example.com":  {"93.184.0.98", API.String()}, // the first refuses
	"cname.example.com":       {"internal.example.com"},
	"loopback.example.com":    {"127.0.0.1"},
	"metadata.example.com":    {Metadata.String()},
	"mixed.example.com":       {API.String(), Private.String()},
	"mixed-first.example.com": {Private.String(), API.String()},
	"unspecified.example.com": {"0.0.0.0"},
	"six.example.com":         {"2606:2800::10"},
	"both.example.com":        {API.String(), "2606:2800::10"},
	"mapped.example.com":      {"::ffff:127.0.0.1"},
	"dual-bad.example.com":    {API.String(), "fd00:ec2::254"},
}
