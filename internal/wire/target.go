package wire

import (
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cayhq/cay"
)

// DefaultURL is the default address of a daemon.
const DefaultURL = "http://127.0.0.1:7070"

// Target names a daemon and a token. Resolve fills in empty fields.
type Target struct {
	URL        string       // empty: $CAY_URL, else DefaultURL
	Token      string       // empty: $CAY_TOKEN, else the admin.token file for a daemon on this machine
	Team       string       // only with an admin token; empty: the token's own
	HTTPClient *http.Client // nil: one shared by all clients of the process
}

// DataDir returns the daemon's data directory: $CAY_DATA, else /var/lib/cay
// for root, else .local/share/cay in the home directory.
func DataDir() string {
	if dir := os.Getenv("CAY_DATA"); dir != "" {
		return dir
	}
	if os.Geteuid() == 0 {
		return "/var/lib/cay"
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "/var/lib/cay"
	}
	return filepath.Join(home, ".local", "share", "cay")
}

// sharedTransport serves every client without an HTTPClient. HTTP/1.1 only:
// each stream then has a connection, and so its own flow control.
var sharedTransport = newTransport()

func newTransport() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     60 * time.Second, // less than the daemon's, so that it is not the one to close
		DisableCompression:  true,
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      64 << 10,
		Protocols:           protocols,
	}
}

// Resolve fills in empty fields and checks the others.
func (t Target) Resolve() (*Conn, error) {
	if t.URL == "" {
		t.URL = os.Getenv("CAY_URL")
	}
	if t.URL == "" {
		t.URL = DefaultURL
	}
	u, err := url.Parse(t.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, cay.Errorf(cay.Invalid, "%q is not the address of a cay daemon", redact(u, t.URL)).
			WithHint("give an http or https URL such as %s", DefaultURL)
	}
	if t.Token == "" {
		t.Token = os.Getenv("CAY_TOKEN")
	}
	if t.Token == "" && isLoopback(u.Hostname()) {
		// The admin token of this machine must not be sent to another machine.
		if b, err := os.ReadFile(filepath.Join(DataDir(), "admin.token")); err == nil {
			t.Token = strings.TrimSpace(string(b))
		}
	}
	hc := http.Client{Transport: sharedTransport}
	if t.HTTPClient != nil {
		hc = *t.HTTPClient
	}
	// A redirect would send the token and the body elsewhere.
	hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Conn{base: strings.TrimSuffix(u.String(), "/"), token: t.Token, team: t.Team, http: &hc}, nil
}

func redact(u *url.URL, raw string) string {
	if u == nil {
		return raw
	}
	return u.Redacted()
}

func isLoopback(host string) bool {
	if host == "localhost" { // below it are previews, no daemon
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
