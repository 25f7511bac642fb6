package sandbox

import (
	"math"
	"net/url"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

// SourceType is how a source is fetched.
type SourceType string

// The types of sources.
const (
	// GitSource is cloned by git in the sandbox.
	GitSource SourceType = "git"
	// TarballSource is a tar archive, possibly compressed, fetched over HTTP.
	TarballSource SourceType = "tarball"
)

// Source fills a new sandbox's working directory. It is fetched from within the
// sandbox, under the sandbox's network policy and as its user, before the first
// command. If fetching fails, the sandbox is removed.
type Source struct {
	Type SourceType `json:"type"`
	// URL is an http or https URL of at most 4096 bytes. A user in it is used as
	// Username and Password.
	URL string `json:"url"`
	// Dir is the destination: below the working directory, or absolute. Empty means
	// the working directory itself.
	Dir string `json:"dir,omitempty"`

	// The other fields are for GitSource.

	Depth    int    `json:"depth,omitempty"`    // commits of history; 0: all
	Revision string `json:"revision,omitempty"` // branch, tag or whole id of a commit; empty: the remote's HEAD
	// Username and Password are sent to the URL's host alone, and are not stored in
	// the sandbox.
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

const maxSourceText = 4096 // bytes of a URL, a name, a password

// Validate returns an invalid error that names the first field with a bad value.
func (s Source) Validate() error {
	switch s.Type {
	case GitSource:
	case TarballSource:
		if s.Depth != 0 || s.Revision != "" || s.Username != "" || s.Password != "" {
			return invalid("source.depth, revision, username and password are for git, not for a tarball")
		}
	default:
		return invalid("source.type %q is not one of %s, %s", s.Type, GitSource, TarballSource)
	}
	u, err := url.Parse(s.URL)
	switch {
	case len(s.URL) > maxSourceText || strings.ContainsFunc(s.URL, notGraphic):
		return invalid("source.url is not a URL of at most %d bytes without white space", maxSourceText)
	case err != nil: // its text may hold a password
		return invalid("source.url is no URL")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Opaque != "":
		return invalid("source.url %.100q is not of http or https, with a host", u.Redacted())
	case u.User != nil && (s.Username != "" || s.Password != ""):
		return invalid("source.url has a user, and source.username is given").WithHint("leave one of the two out")
	}
	if s.Dir != "" {
		if err := CheckPath("source.dir", s.Dir); err != nil {
			return err
		}
		if d := path.Clean(s.Dir); d == ".." || strings.HasPrefix(d, "../") {
			return invalid("source.dir %.100q is not below the working directory", s.Dir).WithHint("give an absolute one")
		}
	}
	switch {
	case s.Depth < 0 || s.Depth > math.MaxInt32:
		return invalid("source.depth %d is not a number of commits", s.Depth)
	case !validRevision(s.Revision):
		return invalid("source.revision %.100q is no name of a branch, tag or commit", s.Revision)
	case s.Password != "" && s.Username == "":
		return invalid("source.password is given without source.username").WithHint("servers that take a token mostly take any name with it")
	}
	for what, v := range map[string]string{"username": s.Username, "password": s.Password} {
		if len(v) > maxSourceText || !utf8.ValidString(v) || strings.ContainsFunc(v, unicode.IsControl) {
			return invalid("source.%s is not text of at most %d bytes without control characters", what, maxSourceText)
		}
	}
	return nil
}

// validRevision reports whether s is a valid name for git; see git check-ref-format.
func validRevision(s string) bool {
	return len(s) <= 1024 && !strings.HasPrefix(s, "-") && !strings.ContainsAny(s, ` ~^:?*[\`) && !strings.ContainsFunc(s, notGraphic) &&
		!strings.Contains(s, "..") && !strings.Contains(s, "@{") && !strings.Contains(s, "//") && strings.Trim(s, "/") == s
}
