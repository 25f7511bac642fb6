package settings

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// Project is a project's settings in the file.
type Project struct {
	// Providers maps provider names to the project's own credentials.
	Providers map[string]Owns `yaml:"providers"`
}

// Own is one credential of a project: exactly one of Key, AWS and ServiceAccount is set.
type Own struct {
	Name           string `yaml:"name" json:"-"` // empty: key, or key-1, key-2... of several
	Key            *Ref   `yaml:"key" json:"key"`
	AWS            *AWS   `yaml:"aws" json:"aws"`
	ServiceAccount *Ref   `yaml:"service_account" json:"service_account"` // the JSON of the key file

	// Region (Bedrock), Resource (Azure), Project and Location (Vertex) override the
	// provider's.
	Region   string `yaml:"region" json:"region"`
	Resource string `yaml:"resource" json:"resource"`
	Project  string `yaml:"project" json:"project"`
	Location string `yaml:"location" json:"location"`

	Models        map[string]string `yaml:"models" json:"models"`
	ZeroRetention bool              `yaml:"zero_retention" json:"zero_retention"`
	// Fallback allows the operator's credentials to be tried after this one.
	Fallback bool `yaml:"fallback" json:"fallback"`
}

// Owns is a list of credentials; a single credential may be written without a list.
type Owns []*Own

// UnmarshalYAML implements yaml.InterfaceUnmarshaler.
func (o *Owns) UnmarshalYAML(unmarshal func(any) error) error {
	var list []*Own
	if unmarshal(&list) == nil && list != nil {
		*o = list
		return nil
	}
	one := new(Own)
	if err := unmarshal(one); err != nil {
		return err
	}
	*o = Owns{one}
	return nil
}

// maxModelNames is the maximum number of model names that a credential may define.
const maxModelNames = 500

type ownKey struct{ project, provider string }

// own is the set of a project's credentials for a provider.
type own struct {
	source      gateway.Source
	credentials []provider.Credential
	fallback    bool
	about       []gateway.Credential
}

// Own returns a project's own credentials for a provider, in the order to try them;
// fallback says whether the operator's credentials may be tried after them. An empty list
// means that the project uses the operator's credentials.
func (s *Snapshot) Own(project, providerName string) (list []provider.Credential, fallback bool) {
	if len(s.own) == 0 {
		return nil, true
	}
	o := s.own[ownKey{project, providerName}]
	if o == nil {
		return nil, true
	}
	return o.credentials, o.fallback
}

// ownBuilder builds the projects' own credentials.
type ownBuilder struct {
	credentialBuilder
	byName
	own      map[ownKey]*own
	problems map[gateway.CredentialID]error
}

// build builds the projects' credentials: credentials in the file, else those set by
// the API. A credential set by the API that has become invalid, for example because the
// provider changed, is reported when credentials are listed; it does not make the
// settings invalid.
func (b *ownBuilder) build(file map[string]*Project, stored []storedOwn) error {
	for _, project := range slices.Sorted(maps.Keys(file)) {
		p := file[project]
		if !strings.HasPrefix(project, "prj_") || len(project) > 128 {
			return at(cay.Errorf(cay.Invalid, "%.80q is no id of a project, as prj_default is", project), "projects", project)
		}
		if p == nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(p.Providers)) {
			if err := b.ownsOf(project, name, p.Providers[name]); err != nil {
				return at(err, "projects", project, "providers", name)
			}
		}
	}
	for i := range stored {
		s := &stored[i]
		if o := b.own[ownKey{s.id.ProjectID, s.id.Provider}]; o != nil && o.source == FromFile {
			b.problems[s.id] = cay.Errorf(cay.Conflict, "the file of settings has the project's credentials for %s", s.id.Provider)
			continue
		}
		if err := b.addOwn(s.id, &s.own, FromAPI, s.trusted); err != nil {
			b.problems[s.id] = err
		}
	}
	return nil
}

// ownsOf adds the credentials that the file has for a project.
func (b *ownBuilder) ownsOf(project, name string, all Owns) error {
	for i, o := range all {
		var path []any
		if len(all) > 1 {
			path = []any{i}
		}
		if o == nil {
			return at(cay.Errorf(cay.Invalid, "it is empty"), path...)
		}
		id := gateway.CredentialID{ProjectID: project, Provider: name, Name: o.Name}
		switch {
		case id.Name == "" && len(all) == 1:
			id.Name = "key"
		case id.Name == "":
			id.Name = fmt.Sprintf("key-%d", i+1)
		}
		if err := b.addOwn(id, o, FromFile, true); err != nil {
			return at(err, path...)
		}
	}
	return nil
}

// addOwn adds one credential of a project. trusted says that the operator has set it.
func (b *ownBuilder) addOwn(id gateway.CredentialID, o *Own, source gateway.Source, trusted bool) error {
	p := b.all[id.Provider]
	if p == nil {
		return cay.Errorf(cay.NotFound, "there is no provider %q", id.Provider)
	}
	if !catalog.ValidName(id.Name) {
		return at(cay.Errorf(cay.Invalid, "%.80q is no name of a credential: it has a-z, 0-9, \".\", \"_\" and \"-\"", id.Name), "name")
	}
	c, err := b.ownCredential(p, id, o, trusted)
	if err != nil {
		return err
	}
	key := ownKey{id.ProjectID, id.Provider}
	has := b.own[key]
	if has == nil {
		has = &own{source: source, fallback: true}
		b.own[key] = has
	}
	if slices.ContainsFunc(has.about, func(a gateway.Credential) bool { return a.CredentialID == id }) {
		return cay.Errorf(cay.Invalid, "there are two credentials with the name %s", id.Name)
	}
	has.credentials = append(has.credentials, c)
	has.fallback = has.fallback && o.Fallback
	has.about = append(has.about, gateway.Credential{CredentialID: id, Source: source, Fallback: o.Fallback, ZeroRetention: o.ZeroRetention})
	return nil
}

// ownCredential builds one credential of a project.
func (b *ownBuilder) ownCredential(p *provider.Provider, id gateway.CredentialID, o *Own, trusted bool) (provider.Credential, error) {
	k, known := provider.KnownKind(p.Kind)
	if !known {
		k.Auth = provider.AuthBearer
	}
	// A server that accepts any credential would let a project call it for free, since
	// calls with own credentials are not charged.
	if !trusted && (p.OperatorOnly || k.Auth == provider.AuthNone) {
		return nil, cay.Errorf(cay.PermissionDenied, "%s is a server of the operator's own: only an admin token, or the file of settings, gives projects credentials for it", p.Name)
	}
	if err := o.check(k.Auth); err != nil {
		return nil, err
	}
	owner := provider.Owner{ID: id.ProjectID + "/" + id.Name, BYOK: true, ZeroRetention: o.ZeroRetention, Models: o.Models}
	switch {
	case o.AWS != nil:
		c, err := b.aws(owner, o.AWS, o.Region)
		return c, at(err, "aws")
	case o.ServiceAccount != nil:
		c, err := b.ownServiceAccount(owner, b.entries[p.Name], o, trusted)
		return c, at(err, "service_account")
	}
	text, err := b.secret(o.Key)
	if err != nil {
		return nil, at(err, "key")
	}
	s, err := provider.NewSecret(text)
	if err != nil {
		return nil, at(err, "key")
	}
	switch k.Auth {
	case provider.AuthAWS:
		return provider.BedrockKey(owner, s, o.Region)
	case provider.AuthAzure:
		account := provider.Azure{Key: s, Resource: o.Resource}
		if e := b.entries[p.Name]; e != nil {
			account.APIVersion, account.Deployments = e.APIVersion, e.Deployments
		} else if o.Resource == "" {
			return nil, at(cay.Errorf(cay.Invalid, "Azure takes a resource: the name in <resource>.openai.azure.com"), "resource")
		}
		return provider.AzureKey(owner, account)
	}
	return provider.KeyFor(k.Auth, owner, s)
}

// check rejects members that contradict each other or do not fit the provider's auth.
func (o *Own) check(auth provider.Auth) error {
	n := 0
	for _, there := range []bool{o.Key != nil, o.AWS != nil, o.ServiceAccount != nil} {
		if there {
			n++
		}
	}
	switch {
	case n != 1:
		return cay.Errorf(cay.Invalid, "a credential is one of key, aws and service_account")
	case (auth == provider.AuthVertex) != (o.ServiceAccount != nil):
		return cay.Errorf(cay.Invalid, "Vertex takes a service_account, and nobody else does")
	case o.AWS != nil && auth != provider.AuthAWS:
		return at(cay.Errorf(cay.Invalid, "only Bedrock takes these"), "aws")
	case len(o.Models) > maxModelNames:
		return at(cay.Errorf(cay.Invalid, "there are %d; at most %d models have names of their own", len(o.Models), maxModelNames), "models")
	}
	for _, place := range []struct {
		name, value string
		auth        provider.Auth
	}{{"region", o.Region, provider.AuthAWS}, {"resource", o.Resource, provider.AuthAzure}, {"project", o.Project, provider.AuthVertex}, {"location", o.Location, provider.AuthVertex}} {
		switch {
		case place.value == "":
		case place.auth != auth:
			return at(cay.Errorf(cay.Invalid, "this provider has none"), place.name)
		case !provider.ValidPlace(strings.ToLower(place.value)):
			return at(cay.Errorf(cay.Invalid, "%.80q cannot be a part of an address", place.value), place.name)
		}
	}
	for id, own := range o.Models {
		if own == "" || len(own) > 512 || !strings.Contains(id, "/") {
			return at(cay.Errorf(cay.Invalid, "a model is creator/model: and the account's name of it"), "models", id)
		}
	}
	return nil
}

// ownServiceAccount returns a credential that signs in as a project's service account;
// calls go to the Google Cloud project of the account. Tokens come from Google's address;
// only the operator may set another address, because the daemon would send requests to
// it.
func (b *ownBuilder) ownServiceAccount(owner provider.Owner, e *Provider, o *Own, trusted bool) (provider.Credential, error) {
	text, err := o.ServiceAccount.resolve(b.get)
	if err != nil {
		return nil, err
	}
	g, err := provider.ReadGoogle([]byte(text))
	if err != nil {
		return nil, err
	}
	if !trusted {
		g.TokenURL = ""
	}
	location := ""
	if e != nil {
		location = e.Location
	}
	g.Project, g.Location = firstOf(o.Project, g.Project), firstOf(o.Location, location, "global")
	if g.Project == "" {
		return nil, cay.Errorf(cay.Invalid, "neither the key file nor the credential says which project of Google Cloud it is for")
	}
	return b.account(owner, g, text)
}
