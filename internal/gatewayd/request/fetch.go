package request

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Some providers do not fetch files by URL. Only for such a provider, the gateway fetches
// the file itself, with the rights of a client on the public internet: each name is
// resolved once and the checked address is dialled, redirects are checked, too, and
// neither a proxy of this machine nor a credential is used.

const (
	maxFiles     = 16
	maxFetched   = 20 << 20 // bytes of a file
	maxUsed      = 40 << 20 // bytes of all files of a request, counted each time one is used
	fetchTimeout = 20 * time.Second
)

// errNotPublic is the error for addresses that are not dialled.
var errNotPublic = errors.New("it is not on the public internet")

// closed are non-public ranges, besides those that package netip knows.
var closed = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("100::/64"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
}

// public is the default of Config.Fetch.
func public(ip netip.Addr) bool {
	ip = ip.Unmap()
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && ip.Zone() == "" && !slices.ContainsFunc(closed, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// NewFetcher returns a client that fetches files from addresses that allowed accepts.
func NewFetcher(allowed func(netip.Addr) bool) *http.Client {
	if allowed == nil {
		allowed = public
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || !allowed(at.Addr().Unmap()) {
			return errNotPublic
		}
		return nil
	}}
	return &http.Client{
		Timeout:   fetchTimeout,
		Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true, TLSHandshakeTimeout: 5 * time.Second, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > 3 || r.URL.Scheme != "http" && r.URL.Scheme != "https" {
				return errors.New("it is redirected too often, or to no web page")
			}
			r.Header.Del("Referer")
			return nil
		},
	}
}

// WithFiles returns the call with the content of the files for which fetches is true, in
// place of their URLs: the upstream cannot fetch them. Each file is fetched once per call.
func (d *Document) WithFiles(ctx context.Context, by *http.Client, fetches func(*hub.File) bool) (*hub.Call, *hub.Error) {
	var changed *hub.Call
	used := 0 // bytes of fetched files, counted once per use
	replace := func(i int, parts []hub.Part) ([]hub.Part, *hub.Error) {
		var own []hub.Part
		for j := range parts {
			f := parts[j].File
			if f == nil || !fetches(f) {
				continue
			}
			got, err := d.fetch(ctx, by, f)
			if err != nil {
				return nil, err
			}
			if used += len(got.Data); used > maxUsed {
				return nil, &hub.Error{Kind: hub.TooLarge, Code: "files_too_large",
					Message: fmt.Sprintf("the files that the gateway fetches for this request are larger than %d bytes, counted each time one is used", maxUsed)}
			}
			if own == nil {
				own = slices.Clone(parts)
			}
			own[j].File = got
		}
		return own, nil
	}
	for i := range d.Call.Prompt {
		own, err := replace(i, d.Call.Prompt[i].Parts)
		if err != nil {
			return nil, err
		}
		parts := own
		if parts == nil {
			parts = d.Call.Prompt[i].Parts
		}
		for j := range parts { // files in results of tools
			if parts[j].Result == nil {
				continue
			}
			content, err := replace(i, parts[j].Result.Output.Content)
			if err != nil {
				return nil, err
			}
			if content != nil {
				if own == nil {
					own = slices.Clone(parts)
					parts = own
				}
				r := *parts[j].Result
				r.Output.Content = content
				own[j].Result = &r
			}
		}
		if own == nil {
			continue
		}
		if changed == nil {
			one := *d.Call
			one.Prompt = slices.Clone(one.Prompt)
			changed = &one
		}
		changed.Prompt[i].Parts = own
	}
	if changed == nil {
		return d.Call, nil
	}
	return changed, nil
}

// fetch returns a file with its content. Errors: FailedDependency.
func (d *Document) fetch(ctx context.Context, by *http.Client, f *hub.File) (*hub.File, *hub.Error) {
	if got := d.files[f.URL]; got != nil {
		return got, nil
	}
	u, _ := url.Parse(f.URL) // it was, before
	failed := func(what string, cause error) *hub.Error {
		return &hub.Error{Kind: hub.FailedDependency, Code: "file_not_fetched", Message: "a file of the request at " + u.Hostname() + " cannot be fetched: " + what, Cause: cause}
	}
	if len(d.files) == maxFiles {
		return nil, failed(fmt.Sprintf("there are more than %d", maxFiles), nil)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.URL, nil)
	if err != nil || u.User != nil {
		return nil, failed("its address is wrong", err)
	}
	r.Header.Set("User-Agent", "cay/"+cay.Version())
	resp, err := by.Do(r)
	switch {
	case errors.Is(err, errNotPublic):
		return nil, failed(errNotPublic.Error(), nil)
	case err != nil && ctx.Err() != nil:
		return nil, hub.Left()
	case err != nil:
		return nil, failed("there is no answer", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, failed(fmt.Sprintf("the status is %d", resp.StatusCode), nil)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxFetched+1))
	if err != nil || len(data) > maxFetched {
		return nil, failed(fmt.Sprintf("it broke off, or is larger than %d bytes", maxFetched), err)
	}
	got := *f
	got.URL, got.Data = "", data
	if media := mediaType(resp.Header.Get("Content-Type")); media != "" && (f.MediaType == "" || strings.HasSuffix(f.MediaType, "/*")) {
		got.MediaType = media
	}
	if d.files == nil {
		d.files = make(map[string]*hub.File)
	}
	d.files[f.URL] = &got
	return &got, nil
}

func mediaType(ct string) string {
	m, _, err := mime.ParseMediaType(ct)
	if err != nil {
		return ""
	}
	return m
}
