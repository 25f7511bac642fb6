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

// Project is what the file says of a project.
type Project struct {
	// Providers are those it has credentials of its own for, by name.
	Providers map[string]Owns `yaml:"providers"`
}

// Own is a credential of a project's: one of Key, AWS and ServiceAccount.
type Own struct {
	Name           string `yaml:"name" json:"-"` // empty: key, or key-1, key-2... of several
	Key            *Ref   `yaml:"key" json:"key"`
	AWS            *AWS   `yaml:"aws" json:"aws"`
	ServiceAccount *Ref   `yaml:"service_account" json:"service_account"` // the JSON of the key file

	// Region is Bedrock's, Resource Azure's, Project and Location Vertex's, if they are
	// not the provider's.
	Region   string `yaml:"region" json:"region"`
	Resource string `yaml:"resource" json:"resource"`
	Project  string `yaml:"project" json:"project"`
	Location string `yaml:"location" json:"location"`

	Models        map[string]string `yaml:"models" json:"models"`
	ZeroRetention bool              `yaml:"zero_retention" json:"zero_retention"`
	// Fallback lets the operator's credentials be tried after it.
	Fallback bool `yaml:"fallback" json:"fallback"`
}

// Owns are credentials, of which one may be written without a list.
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

// maxModelNames is how many names of its own an account may have for models.
const maxModelNames = 500

type ownKey struct{ project, provider string }

// own is what a project has at a provider.
type own struct {
	source      gateway.Source
	credentials []provider.Credential
	fallback    bool
	about       []gateway.Credential
}

// Own returns the credentials a project has of its own at a provider, in the order
// to try them, and whether those of the operator may be tried after them. None: the
// project has those of the operator.
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

// projects gives projects their credentials: those of the file, else those that
// were set by the API. What is wrong with the latter, after a provider has changed
// say, is told to who lists them: it is no reason to stop.
func (b *builder) projects() error {
	for _, project := range slices.Sorted(maps.Keys(b.file.Projects)) {
		p := b.file.Projects[project]
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
	for i := range b.stored.own {
		s := &b.stored.own[i]
		if o := b.snapshot.own[ownKey{s.id.ProjectID, s.id.Provider}]; o != nil && o.source == FromFile {
			b.snapshot.problems[s.id] = cay.Errorf(cay.Conflict, "the file of settings has the project's credentials for %s", s.id.Provider)
			continue
		}
		if err := b.addOwn(s.id, &s.own, FromAPI, s.trusted); err != nil {
			b.snapshot.problems[s.id] = err
		}
	}
	return nil
}

// ownsOf adds a project's credentials in the file.
func (b *builder) ownsOf(project, name string, all Owns) error {
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

// addOwn adds a credential to those of its project. trusted ones are the
// operator's word.
func (b *builder) addOwn(id gateway.CredentialID, o *Own, source gateway.Source, trusted bool) error {
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
	has := b.snapshot.own[key]
	if has == nil {
		has = &own{source: source, fallback: true}
		b.snapshot.own[key] = has
	}
	if slices.ContainsFunc(has.about, func(a gateway.Credential) bool { return a.CredentialID == id }) {
		return cay.Errorf(cay.Invalid, "there are two credentials with the name %s", id.Name)
	}
	has.credentials = append(has.credentials, c)
	has.fallback = has.fallback && o.Fallback
	has.about = append(has.about, gateway.Credential{CredentialID: id, Source: source, Fallback: o.Fallback, ZeroRetention: o.ZeroRetention})
	return nil
}

// ownCredential makes a project's credential.
func (b *builder) ownCredential(p *provider.Provider, id gateway.CredentialID, o *Own, trusted bool) (provider.Credential, error) {
	k, known := provider.KnownKind(p.Kind)
	if !known {
		k.Auth = provider.AuthBearer
	}
	// Whatever a project brought to a server that lets everybody in, its calls would
	// count as paid for by itself.
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

// check refuses what does not go together, or with the way a provider is convinced.
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

// ownServiceAccount signs in as a project's service account: its calls go to the
// account's own Google Cloud project. Where access tokens come from is Google's,
// unless the operator says something else: the address would be asked by us.
func (b *builder) ownServiceAccount(owner provider.Owner, e *Provider, o *Own, trusted bool) (provider.Credential, error) {
	text, err := o.ServiceAccount.resolve(b.env)
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
