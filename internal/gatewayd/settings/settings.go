// Package settings holds the configuration of the gateway: providers and their
// credentials, additions to the catalogue of models, and the resolution of model names.
//
// Settings come from the environment, from the API (in the gateway's database, sealed)
// and from a file; for each provider, a later source overrides an earlier one. A Snapshot
// is the immutable result; Live builds a new Snapshot when a source changes, and keeps
// the old one if the new settings are invalid.
package settings

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/cache"
	"github.com/cayhq/cay/internal/gatewayd/capture"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/guard"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// Snapshot is the gateway's configuration at one time.
type Snapshot struct {
	// Providers has all providers that can be called, including those without a
	// credential, for which requests may bring one.
	Providers *provider.Set
	Catalog   *catalog.Catalog
	Guards    *guard.Guards // nil: none
	Cache     Cache
	Capture   *capture.Rules // nil: no bodies are kept

	origins  map[string]Origin
	disabled []string // names of providers that are disabled
	own      map[ownKey]*own
	problems map[gateway.CredentialID]error // errors of stored project credentials that are not used
	rules    []Rule
	aliases  map[string]string
	splits   map[string][]Share
	virtual  map[string]*Virtual
	accounts map[accountKey]provider.Credential
	byok     *provider.BYOK // nil: requests bring none
	discover []string       // providers that are asked for their models, sorted
}

// Origin is the source of a provider's settings.
type Origin = gateway.Source

// The origins. Known providers without settings exist for requests and projects that
// bring credentials.
const (
	FromFile        = gateway.FromFile
	FromAPI         = gateway.FromAPI
	FromEnvironment = gateway.FromEnvironment
	FromTable       = gateway.FromTable
)

// Origin returns the source of a provider's settings, "" if there is no such provider.
func (s *Snapshot) Origin(name string) Origin { return s.origins[name] }

// Configured returns the providers that can be called without bringing a credential,
// sorted by name.
func (s *Snapshot) Configured() []*provider.Provider {
	return slices.DeleteFunc(s.sorted(), func(p *provider.Provider) bool { return !usable(p) })
}

// sorted returns all providers by name.
func (s *Snapshot) sorted() []*provider.Provider {
	var all []*provider.Provider
	for _, name := range slices.Sorted(slices.Values(s.Providers.Names())) {
		all = append(all, s.Providers.Get(name))
	}
	return all
}

func usable(p *provider.Provider) bool { return !p.NeedsCredential || len(p.Credentials) > 0 }

// Custom returns the credential that a request brings for a provider. Errors: *hub.Error
// of the kind BadRequest, or Forbidden where requests may not bring credentials.
func (s *Snapshot) Custom(p *provider.Provider, raw []byte) (provider.Credential, error) {
	if s.byok == nil {
		return nil, &hub.Error{Kind: hub.Forbidden, Code: "byok", Param: "providerOptions.gateway.byok", Message: "this gateway takes no credentials in requests"}
	}
	return s.byok.Credential(p, raw)
}

// inputs is the data that a Snapshot is built from.
type inputs struct {
	src        *source // nil: no file
	env        func(string) string
	stored     stored
	discovered map[string][]string // names of models, by provider
	byok       *provider.BYOK
	client     *http.Client
	accounts   map[accountKey]provider.Credential // credentials of the previous settings
	list       *catalog.List                      // the operator's list of models; nil for none
}

// Settings is the result of Load.
type Settings struct{ Snapshot *Snapshot }

// Load reads the file at path, "" for none, the list of models beside it, and the
// environment. Errors: invalid,
// with the file and the line.
func Load(path string, env func(string) string) (*Settings, error) {
	in := inputs{env: env, byok: provider.NewBYOK(nil)}
	if path != "" {
		var err error
		if in.src, err = read(path); err != nil {
			return nil, err
		}
		if in.list, err = catalog.ReadList(catalog.ListFile(path)); err != nil {
			return nil, err
		}
	}
	s, err := build(in)
	if err != nil {
		return nil, err
	}
	return &Settings{s}, nil
}

// build makes a Snapshot. Errors: invalid, with the file and the line if it is
// about the file.
func build(in inputs) (*Snapshot, error) {
	b := &builder{inputs: in, snapshot: &Snapshot{
		origins: make(map[string]Origin), own: make(map[ownKey]*own), problems: make(map[gateway.CredentialID]error),
		accounts: make(map[accountKey]provider.Credential), byok: in.byok,
	}}
	if in.src != nil {
		b.file = &in.src.file
	} else {
		b.file = new(File)
	}
	variables := environment{get: in.env, on: b.file.Environment == nil || *b.file.Environment}
	if in.env == nil {
		variables.get = func(string) string { return "" }
	}
	b.credentialBuilder = credentialBuilder{environment: variables, client: in.client, old: in.accounts, accounts: b.snapshot.accounts}
	err := b.build()
	if err == nil {
		return b.snapshot, nil
	}
	if in.src != nil {
		err = in.src.locate(err)
	}
	if cay.CodeOf(err) == cay.Internal {
		err = cay.Errorf(cay.Invalid, "the gateway's settings: %w", err)
	}
	return nil, err
}

// builder builds a Snapshot: the providers itself, the other parts by their builders,
// which get the providers.
type builder struct {
	inputs
	credentialBuilder
	byName
	file     *File
	snapshot *Snapshot
}

// byName holds the providers of the settings.
type byName struct {
	entries map[string]*Provider          // settings by name, also of disabled providers
	all     map[string]*provider.Provider // by name
}

// known reports whether there is a provider, or one that is disabled.
func (n *byName) known(name string) bool { return n.all[name] != nil || n.entries[name] != nil }

func (b *builder) build() error {
	s := b.snapshot
	if b.file.BYOK != nil && !*b.file.BYOK {
		s.byok = nil
	}
	if err := b.defaults(); err != nil {
		return at(err, "defaults")
	}
	if err := b.providers(); err != nil {
		return err
	}
	owns := ownBuilder{credentialBuilder: b.credentialBuilder, byName: b.byName, own: s.own, problems: s.problems}
	if err := owns.build(b.file.Projects, b.stored.own); err != nil {
		return err
	}
	models := catalogBuilder{byName: b.byName, models: make(map[string]*gateway.Model)}
	if err := models.build(b.list, b.file.Models); err != nil {
		return err
	}
	models.discoveries(s.discover, b.discovered)
	s.Catalog = models.catalog()
	s.rules, s.aliases, s.splits, s.virtual = b.file.Rules, b.file.Aliases, b.file.Splits, b.file.Virtual
	names := nameChecker{byName: b.byName, file: b.file, catalog: s.Catalog}
	if err := names.check(); err != nil {
		return err
	}
	if err := b.guards(); err != nil {
		return at(err, "guards")
	}
	if err := b.capture(); err != nil {
		return at(err, "capture")
	}
	return b.keeping()
}

const (
	minTime = 100 * time.Millisecond
	maxTime = time.Hour
)

func checkTime(d time.Duration, name string) error {
	if d != 0 && (d < minTime || d > maxTime) {
		return at(cay.Errorf(cay.Invalid, "%v is not from %v to %v", d, minTime, maxTime), name)
	}
	return nil
}

func (b *builder) defaults() error {
	d := &b.file.Defaults
	if err := checkTime(d.FirstByte, "first_byte"); err != nil {
		return err
	}
	if d.OnDisconnect != "" && d.OnDisconnect != "cancel" && d.OnDisconnect != "finish" {
		return at(cay.Errorf(cay.Invalid, "%.40q is neither cancel nor finish", d.OnDisconnect), "on_disconnect")
	}
	return checkTime(d.Idle, "idle")
}

func (b *builder) guards() error {
	g := &b.file.Guards
	cfg := guard.Config{
		MaxPrompt: int64(g.MaxPrompt), MaxOutputTokens: g.MaxOutputTokens, Models: g.Models, Tools: g.Tools, DenyTools: g.DenyTools,
		BufferStreams: g.Streams == "buffer",
	}
	if g.Streams != "" && g.Streams != "buffer" {
		return at(cay.Errorf(cay.Invalid, "%q is not \"buffer\"", g.Streams), "streams")
	}
	for _, list := range []struct {
		name string
		from []Pattern
		to   *[]guard.Pattern
	}{{"requests", g.Requests, &cfg.Requests}, {"answers", g.Answers, &cfg.Answers}} {
		for i, p := range list.from {
			if p.Action != "block" && p.Action != "redact" {
				return at(cay.Errorf(cay.Invalid, "%q is neither block nor redact", p.Action), list.name, i, "action")
			}
			*list.to = append(*list.to, guard.Pattern{Name: p.Name, Preset: p.Preset, Regex: p.Regex, Words: p.Words, Redact: p.Action == "redact"})
			if _, err := guard.New(guard.Config{Requests: (*list.to)[i:]}, nil); err != nil {
				_, what, _ := strings.Cut(err.Error(), ": ") // without "requests[0]"
				return at(cay.Errorf(cay.Invalid, "%s", what), list.name, i)
			}
		}
	}
	if w := g.Webhook; w != nil {
		if w.Fail != "" && w.Fail != "open" && w.Fail != "closed" {
			return at(cay.Errorf(cay.Invalid, "%q is neither open nor closed", w.Fail), "webhook", "fail")
		}
		head, err := b.header(w.Headers)
		if err != nil {
			return at(err, "webhook", "headers")
		}
		cfg.Webhook = &guard.Webhook{URL: w.URL, Header: head, Timeout: w.Timeout, FailOpen: w.Fail == "open", Answers: w.Answers}
	}
	guards, err := guard.New(cfg, b.inputs.client)
	if err != nil {
		return at(err)
	}
	if !zeroGuards(&cfg) {
		b.snapshot.Guards = guards
	}
	return nil
}

func zeroGuards(c *guard.Config) bool {
	return c.MaxPrompt == 0 && c.MaxOutputTokens == 0 && len(c.Models)+len(c.Tools)+len(c.DenyTools)+len(c.Requests)+len(c.Answers) == 0 && c.Webhook == nil
}

// keeping sets the defaults of the response cache and checks its limits.
func (b *builder) keeping() error {
	c := b.file.Cache
	if c.Size == 0 {
		c.Size = cache.DefaultSize
	}
	if c.Entry == 0 {
		c.Entry = cache.DefaultEntry
	}
	if c.Size < 0 || c.Size > 64<<30 {
		return at(cay.Errorf(cay.Invalid, "%v is more than 64 GiB", c.Size), "cache", "size")
	}
	if c.Entry < 0 || c.Entry > c.Size {
		return at(cay.Errorf(cay.Invalid, "%v is more than the cache's size, %v", c.Entry, c.Size), "cache", "entry")
	}
	b.snapshot.Cache = c
	return nil
}
