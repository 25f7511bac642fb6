package settings

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/chatcompletions"
	"github.com/cayhq/cay/internal/gatewayd/gemini"
	"github.com/cayhq/cay/internal/gatewayd/messages"
	"github.com/cayhq/cay/internal/gatewayd/provider"
	"github.com/cayhq/cay/internal/gatewayd/responses"
)

// formats lists all wire formats.
var formats = []string{"chatcompletions", "responses", "messages", "gemini", "converse", "scripted"}

// quirks holds the quirk names of all formats.
var quirks = func() map[string]bool {
	all := chatcompletions.Quirks()
	for _, q := range []string{
		responses.QuirkReasoning, responses.QuirkHostedCustomTools, responses.QuirkSystemRole, responses.QuirkPlainInclude,
		messages.QuirkVersion2026, messages.QuirkAdaptive, messages.QuirkNoBudget, messages.QuirkNoThinking, messages.QuirkNoSampling,
		messages.QuirkOutputFormat, messages.QuirkNoOutputFormat, messages.QuirkMidSystem, messages.QuirkNoURLs,
		gemini.QuirkVertex, gemini.QuirkOpenAPISchema, gemini.QuirkThinkingLevel, gemini.QuirkThinkingBudget, gemini.QuirkNoSystem,
	} {
		all[q] = true
	}
	return all
}()

// moreQuirks returns a known kind's quirks that package chatcompletions does not have:
// quirks of other formats, and quirks whose names differ.
func moreQuirks(kind string) map[string]bool {
	switch kind {
	case "moonshotai":
		return chatcompletions.Known("moonshot")
	case "xai": // https://docs.x.ai: its searches are items of custom tools
		return map[string]bool{responses.QuirkHostedCustomTools: true}
	case "vertex":
		return map[string]bool{gemini.QuirkVertex: true}
	}
	return nil
}

// providers builds the provider.Set.
func (b *builder) providers() error {
	b.all = make(map[string]*provider.Provider)
	if err := b.collect(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(b.entries)) {
		entry := b.entries[name]
		if entry.Disabled {
			b.snapshot.disabled = append(b.snapshot.disabled, name)
			continue
		}
		p, err := b.provider(name, entry)
		if err != nil {
			if b.snapshot.origins[name] == FromFile {
				return at(err, "providers", name)
			}
			return cay.Errorf(cay.Invalid, "provider %s, which is set by the %s: %s", name, b.snapshot.origins[name], err) // no path of the file
		}
		b.all[name] = p
	}
	for _, k := range provider.KnownKinds() {
		if e := b.entries[k.Kind]; e != nil {
			continue // configured explicitly, or disabled
		}
		p := k.New(k.Kind, provider.Where{})
		addQuirks(p, k.Kind)
		if k.Kind == "cay" || p.NeedsCredential && (b.snapshot.byok != nil || b.isOwned(k.Kind)) {
			b.all[k.Kind], b.snapshot.origins[k.Kind] = p, FromTable
		}
	}
	b.snapshot.Providers = provider.NewSet(slices.Collect(maps.Values(b.all))...)
	return nil
}

// isOwned reports whether any project has its own credentials for a provider.
func (b *builder) isOwned(name string) bool {
	for _, p := range b.file.Projects {
		if p != nil && len(p.Providers[name]) > 0 {
			return true
		}
	}
	return slices.ContainsFunc(b.stored.own, func(o storedOwn) bool { return o.id.Provider == name })
}

// collect gathers each provider's settings: from the file, else from the API, else from
// the environment.
func (b *builder) collect() error {
	b.entries = make(map[string]*Provider)
	if b.on {
		for _, k := range provider.KnownKinds() {
			if b.configures(&k) {
				b.entries[k.Kind], b.snapshot.origins[k.Kind] = new(Provider), FromEnvironment
			}
		}
	}
	for name, p := range b.stored.providers {
		b.entries[name], b.snapshot.origins[name] = p, FromAPI
	}
	for name, p := range b.file.Providers {
		if !catalog.ValidName(name) {
			return at(cay.Errorf(cay.Invalid, "%.80q is no name of a provider: it has a-z, 0-9, \".\", \"_\" and \"-\"", name), "providers", name)
		}
		if p == nil { // "openai:" and nothing else
			p = new(Provider)
		}
		b.entries[name], b.snapshot.origins[name] = p, FromFile
	}
	return nil
}

// provider builds a provider from its settings.
func (b *builder) provider(name string, e *Provider) (*provider.Provider, error) {
	kind := e.Kind
	if kind == "" {
		kind = name
	}
	k, known := provider.KnownKind(kind)
	if !known {
		if e.Kind != "" {
			return nil, at(cay.Errorf(cay.Invalid, "%q is not known; it is one of %s", e.Kind, kinds()), "kind")
		}
		if len(e.Format) == 0 || e.BaseURL == "" {
			return nil, cay.Errorf(cay.Invalid, "%s is no kind of provider that is known, so it takes a kind, or a format and a base_url", name).
				WithHint("kinds are %s", kinds())
		}
		k = provider.Known{Formats: e.Format, Auth: provider.AuthBearer}
	}
	where, err := b.where(k.Kind, e)
	if err != nil {
		return nil, err
	}
	p := k.New(name, where)
	public := p.BaseURL
	addQuirks(p, k.Kind)
	if !known {
		p.Models, p.Embeddings = "/models", "/embeddings"
		if e.Format[0] == "messages" || e.Format[0] == "gemini" {
			p.Embeddings = ""
		}
		if e.Format[0] == "converse" {
			p.Models, p.Embeddings = "", ""
		}
	}
	if err := b.apply(p, &k, e); err != nil {
		return nil, err
	}
	if err := b.credentials(p, &k, e); err != nil {
		return nil, err
	}
	asked := b.file.BYOK != nil && *b.file.BYOK
	p.OperatorOnly = !asked && (!known || p.BaseURL != public || len(p.Header) > 0)
	if !known {
		p.NeedsCredential = len(p.Credentials) > 0 // a self-described provider needs a credential only if it configures one
	}
	if (e.Discover != nil && *e.Discover || e.Discover == nil && p.SelfHosted) && p.Models != "" {
		b.snapshot.discover = append(b.snapshot.discover, name)
	}
	return p, nil
}

func kinds() string {
	var names []string
	for _, k := range provider.KnownKinds() {
		names = append(names, k.Kind)
	}
	return strings.Join(names, ", ")
}

func addQuirks(p *provider.Provider, kind string) {
	if slices.Contains(p.Formats, "chatcompletions") {
		maps.Copy(p.Quirks, chatcompletions.Known(kind))
	}
	maps.Copy(p.Quirks, moreQuirks(kind))
}

// where returns the account-dependent parts of the address.
func (b *builder) where(kind string, e *Provider) (provider.Where, error) {
	w := provider.Where{Region: e.Region, Resource: e.Resource, Project: e.Project, Location: e.Location}
	or := func(v *string, names ...string) {
		if *v == "" {
			*v = b.first(names...)
		}
	}
	switch kind {
	case "bedrock":
		or(&w.Region, "AWS_REGION", "AWS_DEFAULT_REGION")
	case "azure":
		or(&w.Resource, "AZURE_RESOURCE_NAME")
		if w.Resource == "" && e.BaseURL == "" && b.first("AZURE_OPENAI_ENDPOINT") == "" {
			return w, cay.Errorf(cay.Invalid, "Azure takes a resource (the name in <resource>.openai.azure.com) or a base_url")
		}
	case "vertex":
		or(&w.Project, "GOOGLE_VERTEX_PROJECT", "GOOGLE_CLOUD_PROJECT")
		or(&w.Location, "GOOGLE_VERTEX_LOCATION")
		if w.Project == "" && e.BaseURL == "" {
			return w, cay.Errorf(cay.Invalid, "Vertex takes a project")
		}
	}
	for name, v := range map[string]string{"region": w.Region, "resource": strings.ToLower(w.Resource), "project": w.Project, "location": w.Location} {
		if v != "" && !provider.ValidPlace(v) {
			return w, at(cay.Errorf(cay.Invalid, "%.80q cannot be a part of an address", v), name)
		}
	}
	return w, nil
}

// apply sets p's members from e, except credentials.
func (b *builder) apply(p *provider.Provider, k *provider.Known, e *Provider) error {
	if len(e.Format) > 0 {
		for i, f := range e.Format {
			if !slices.Contains(formats, f) || slices.Contains(e.Format[:i], f) {
				return at(cay.Errorf(cay.Invalid, "%q is none of %s, or there twice", f, strings.Join(formats, ", ")), "format")
			}
		}
		p.Formats = e.Format
	}
	if err := b.baseURL(p, k, e); err != nil {
		return at(err, "base_url")
	}
	head, err := b.header(e.Headers)
	if err != nil {
		return at(err, "headers")
	}
	maps.Copy(p.Header, head)
	for i, q := range e.Quirks {
		if !quirks[q] {
			return at(cay.Errorf(cay.Invalid, "%q is no quirk; they are %s", q, strings.Join(slices.Sorted(maps.Keys(quirks)), ", ")), "quirks", i)
		}
		p.Quirks[q] = true
	}
	for _, path := range []struct {
		name, from string
		to         *string
	}{
		{"models", e.Paths.Models, &p.Models}, {"embeddings", e.Paths.Embeddings, &p.Embeddings}, {"images", e.Paths.Images, &p.Images},
		{"rerank", e.Paths.Rerank, &p.Rerank}, {"speech", e.Paths.Speech, &p.Speech}, {"transcription", e.Paths.Transcription, &p.Transcription},
	} {
		switch {
		case path.from == "":
		case path.from == "none":
			*path.to = ""
		case !strings.HasPrefix(path.from, "/") && !isAddress(path.from):
			return at(cay.Errorf(cay.Invalid, "%.80q is neither a path with a slash in front, nor an address, nor none", path.from), "paths", path.name)
		default:
			*path.to = path.from
		}
	}
	if err := checkTime(time.Duration(e.FirstByte), "first_byte"); err != nil {
		return err
	}
	if err := checkTime(time.Duration(e.Idle), "idle"); err != nil {
		return err
	}
	p.FirstByte = firstOf(time.Duration(e.FirstByte), b.file.Defaults.FirstByte, p.FirstByte)
	p.Idle = firstOf(time.Duration(e.Idle), b.file.Defaults.Idle, p.Idle)
	setBool(&p.SelfHosted, e.SelfHosted)
	if e.SelfHosted != nil {
		p.ZeroRetention = *e.SelfHosted
		if p.Kind == "" { // a known kind determines Unlisted itself
			p.Unlisted = *e.SelfHosted
		}
	}
	for i, say := range [...]string{b.file.Defaults.OnDisconnect, e.OnDisconnect} {
		switch say {
		case "":
		case "cancel", "finish":
			p.Finish = say == "finish"
		default:
			if i == 1 { // the default was checked
				return at(cay.Errorf(cay.Invalid, "%.40q is neither cancel nor finish", say), "on_disconnect")
			}
		}
	}
	switch e.ForeignIDs {
	case "allow":
		p.ForeignIDs = true
	case "", "refuse":
	default:
		return at(cay.Errorf(cay.Invalid, "%.40q is neither allow nor refuse", e.ForeignIDs), "foreign_ids")
	}
	setBool(&p.ZeroRetention, e.ZeroRetention)
	setBool(&p.NoTraining, e.NoTraining)
	setBool(&p.Unlisted, e.Unlisted)
	if e.Country != "" {
		if len(e.Country) != 2 || strings.ToUpper(e.Country) != e.Country {
			return at(cay.Errorf(cay.Invalid, "%.10q is no code of a country such as US", e.Country), "country")
		}
		p.Country = e.Country
	}
	if e.Price != nil {
		var err error
		if p.Price, err = e.Price.Price(priceVersion); err != nil {
			return at(err, "price")
		}
	}
	for id, own := range e.Models {
		if own == "" || len(own) > 512 || !strings.Contains(id, "/") {
			return at(cay.Errorf(cay.Invalid, "a model is creator/model: and the provider's name of it"), "models", id)
		}
	}
	return nil
}

func firstOf[T comparable](values ...T) (v T) {
	for _, v = range values {
		var zero T
		if v != zero {
			break
		}
	}
	return v
}

func setBool(to *bool, from *bool) {
	if from != nil {
		*to = *from
	}
}

// address reports whether one of the paths is an absolute URL.
func (p *Paths) address() bool {
	return slices.ContainsFunc([]string{p.Models, p.Embeddings, p.Images, p.Rerank, p.Speech, p.Transcription}, isAddress)
}

func isAddress(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil && u.Fragment == ""
}

// baseURL sets p's base URL from the settings, else from the environment, else from the
// table of known providers.
func (b *builder) baseURL(p *provider.Provider, k *provider.Known, e *Provider) error {
	base := e.BaseURL
	if base == "" {
		base = serverURL(k.Kind, b.first(k.URLEnv...))
	}
	if endpoint := b.first("AZURE_OPENAI_ENDPOINT"); base == "" && k.Kind == "azure" && e.Resource == "" && endpoint != "" {
		base = strings.TrimSuffix(endpoint, "/") + "/openai/v1"
	}
	if base == "" {
		base = p.BaseURL
		if e.Deployments { // such URLs have no version in the path
			base = strings.TrimSuffix(base, "/v1")
		}
	}
	base = strings.TrimRight(base, "/")
	u, err := url.Parse(base)
	if err != nil || !isAddress(base) || u.RawQuery != "" {
		return cay.Errorf(cay.Invalid, "%.200q is not an address such as https://api.example.com/v1", withoutUser(base))
	}
	p.BaseURL = base
	return nil
}

// withoutUser removes the user part of a URL, which may contain a password.
func withoutUser(address string) string {
	if i := strings.LastIndexByte(address, '@'); i >= 0 {
		return "..." + address[i:]
	}
	return address
}

// serverURL returns the URL in a variable such as OLLAMA_HOST, whose value may be only
// host and port, or a listen address.
func serverURL(kind, v string) string {
	if v == "" {
		return ""
	}
	if !strings.Contains(v, "://") {
		v = "http://" + v
	}
	u, err := url.Parse(v)
	if err != nil {
		return v
	}
	if u.Hostname() == "0.0.0.0" || u.Hostname() == "::" {
		u.Host = strings.Replace(strings.Replace(u.Host, "0.0.0.0", "127.0.0.1", 1), "[::]", "[::1]", 1)
	}
	if kind == "ollama" && u.Port() == "" && u.Scheme == "http" {
		u.Host += ":11434" // as for Ollama's own client
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1"
	}
	return u.String()
}

// credentials sets p's credentials from e, else from the environment.
func (b *builder) credentials(p *provider.Provider, k *provider.Known, e *Provider) error {
	add := func(c provider.Credential, err error) error {
		if err != nil {
			return err
		}
		for _, other := range p.Credentials {
			if other.ID() == c.ID() {
				return cay.Errorf(cay.Invalid, "there are two credentials with the name %s", c.ID())
			}
		}
		p.Credentials = append(p.Credentials, c)
		return nil
	}
	keys := e.Keys
	if e.Key != nil {
		keys = append([]Key{{Name: "key", Key: e.Key}}, keys...)
	}
	for i, key := range keys {
		path := []any{"keys", i}
		if e.Key != nil {
			if path = []any{"key"}; i > 0 {
				path = []any{"keys", i - 1}
			}
		}
		if key.Name == "" {
			key.Name = fmt.Sprintf("key-%d", i+1)
		}
		if !catalog.ValidName(key.Name) {
			return at(cay.Errorf(cay.Invalid, "%.80q is no name of a key", key.Name), append(path, "name")...)
		}
		text, err := b.secret(key.Key)
		if err != nil {
			return at(err, path...)
		}
		if err := add(b.key(k, e, provider.Owner{ID: key.Name, ZeroRetention: key.ZeroRetention || p.ZeroRetention}, text)); err != nil {
			return at(err, path...)
		}
	}
	if e.AWS != nil {
		if err := add(b.aws(provider.Owner{ID: "aws"}, e.AWS, e.Region)); err != nil {
			return at(err, "aws")
		}
	}
	if e.ServiceAccount != nil {
		text, err := e.ServiceAccount.resolve(b.get)
		if err == nil {
			err = add(b.serviceAccount(text))
		}
		if err != nil {
			return at(err, "service_account")
		}
	}
	if e.Auth != "" {
		if err := add(b.ambient(p, k, e, b.snapshot.origins[p.Name])); err != nil {
			return at(err, "auth")
		}
	}
	if e.Profile != "" && e.Auth != provider.AWSAmbient {
		return at(cay.Errorf(cay.Invalid, "a profile is for auth: %s", provider.AWSAmbient), "profile")
	}
	if len(p.Credentials) > 0 || !b.on {
		return nil
	}
	return b.fromEnvironment(p, k, e, add)
}

// fromEnvironment adds the credential in environment variables.
func (b *builder) fromEnvironment(p *provider.Provider, k *provider.Known, e *Provider, add func(provider.Credential, error) error) error {
	// The variables belong to the kind's usual account, so only the provider named like
	// its kind uses them.
	if p.Name != k.Kind {
		return nil
	}
	for _, name := range k.KeyEnv {
		if v := b.first(name); v != "" {
			if err := add(b.key(k, e, provider.Owner{ID: name, ZeroRetention: p.ZeroRetention}, v)); err != nil {
				return cay.Errorf(cay.Invalid, "%s: %w", name, err)
			}
			return nil
		}
	}
	switch k.Kind {
	case "bedrock":
		if b.first("AWS_ACCESS_KEY_ID") == "" {
			return nil
		}
		keys := &AWS{AccessKeyID: &Ref{Env: "AWS_ACCESS_KEY_ID"}, SecretAccessKey: &Ref{Env: "AWS_SECRET_ACCESS_KEY"}}
		if b.first("AWS_SESSION_TOKEN") != "" {
			keys.SessionToken = &Ref{Env: "AWS_SESSION_TOKEN"}
		}
		return add(b.aws(provider.Owner{ID: "aws"}, keys, e.Region))
	case "vertex":
		file := b.first("GOOGLE_APPLICATION_CREDENTIALS")
		if file == "" {
			return nil
		}
		text, err := (&Ref{File: file}).resolve(b.get)
		if err == nil {
			err = add(b.serviceAccount(text))
		}
		if err != nil {
			return cay.Errorf(cay.Invalid, "GOOGLE_APPLICATION_CREDENTIALS: %w", err)
		}
	}
	return nil
}
