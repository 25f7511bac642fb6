package provider

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// BYOK creates credentials from those that callers bring, the objects in
// providerOptions.gateway.byok, in the AI SDK's form. It caches recent credentials, so
// that an access token serves more than one request. It is safe for concurrent use.
type BYOK struct {
	client *http.Client
	salt   []byte // salts IDs, so that an ID reveals nothing about the credential
	kept   *lru.Cache[string, Credential]
}

const (
	maxKept = 1024
	maxBYOK = 16 << 10 // bytes of a credential
)

// NewBYOK returns a BYOK. client requests access tokens; nil for a default.
func NewBYOK(client *http.Client) *BYOK {
	b := &BYOK{client: client, salt: make([]byte, 32)}
	rand.Read(b.salt)                                // never fails
	b.kept, _ = lru.New[string, Credential](maxKept) // fails for sizes below 1 only
	return b
}

// own is a credential that a caller brings, for any provider.
type own struct {
	APIKey          string `json:"apiKey"`
	AccessKeyID     string `json:"accessKeyId"`
	SecretAccessKey string `json:"secretAccessKey"`
	SessionToken    string `json:"sessionToken"`
	Region          string `json:"region"`
	Project         string `json:"project"`
	Location        string `json:"location"`
	Credentials     *struct {
		Email      string `json:"clientEmail"`
		PrivateKey string `json:"privateKey"`
		KeyID      string `json:"privateKeyId"`
	} `json:"googleCredentials"`
	ResourceName  string `json:"resourceName"`
	ModelMappings []struct {
		Slug  string `json:"gatewayModelSlug"`
		Model string `json:"customModelId"`
	} `json:"modelMappings"`
	ZeroDataRetention bool `json:"zeroDataRetention"`
}

// Credential returns the credential that raw describes, for p. Errors: *hub.Error of the
// kind BadRequest, whose message repeats nothing of raw.
func (b *BYOK) Credential(p *Provider, raw []byte) (Credential, error) {
	mac := hmac.New(sha256.New, b.salt)
	fmt.Fprintf(mac, "%s\x00%s\x00%s\x00", p.Name, p.Kind, p.BaseURL)
	mac.Write(raw)
	id := "byok-" + hex.EncodeToString(mac.Sum(nil)[:12])
	if c, ok := b.kept.Get(id); ok {
		return c, nil
	}
	wrong := func(what string) error {
		return &hub.Error{Kind: hub.BadRequest, Code: "invalid_option", Param: "providerOptions.gateway.byok." + p.Name,
			Message: "providerOptions.gateway.byok." + p.Name + ": " + what}
	}
	if len(raw) > maxBYOK {
		return nil, wrong("a credential is larger than 16 KiB")
	}
	var o own
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		var typ *json.UnmarshalTypeError
		if errors.As(err, &typ) {
			return nil, wrong(typ.Field + " is not of the right type")
		}
		return nil, wrong("a credential has the members apiKey; accessKeyId, secretAccessKey, sessionToken, region; project, location, googleCredentials; resourceName; modelMappings; zeroDataRetention")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, wrong("there is something after the credential")
	}
	owner := Owner{ID: id, BYOK: true, ZeroRetention: o.ZeroDataRetention, Models: make(map[string]string, len(o.ModelMappings))}
	for _, m := range o.ModelMappings {
		if m.Slug == "" || m.Model == "" || len(m.Model) > 512 {
			return nil, wrong("each of modelMappings has a gatewayModelSlug and a customModelId")
		}
		owner.Models[m.Slug] = m.Model
	}
	c, err := b.credential(p, owner, &o)
	if err != nil {
		return nil, wrong(err.Error())
	}
	b.kept.Add(id, c)
	return c, nil
}

func (b *BYOK) credential(p *Provider, owner Owner, o *own) (Credential, error) {
	auth := AuthBearer
	if k, ok := KnownKind(p.Kind); ok {
		auth = k.Auth
	}
	switch {
	case auth == AuthVertex:
		if o.Credentials == nil || o.Project == "" {
			return nil, errors.New("a credential for Vertex AI has a project and googleCredentials")
		}
		g := Google{
			Email: o.Credentials.Email, PrivateKey: newSecret(o.Credentials.PrivateKey), KeyID: o.Credentials.KeyID,
			Project: o.Project, Location: o.Location, Client: b.client,
		}
		if g.Location == "" {
			g.Location = "global"
		}
		return ServiceAccount(owner, g)
	case auth == AuthAWS && o.AccessKeyID != "":
		secret, err := NewSecret(o.SecretAccessKey)
		if err != nil {
			return nil, fmt.Errorf("secretAccessKey: %w", err)
		}
		keys := AWS{AccessKeyID: o.AccessKeyID, SecretAccessKey: secret, Region: o.Region}
		if o.SessionToken != "" {
			if keys.SessionToken, err = NewSecret(o.SessionToken); err != nil {
				return nil, fmt.Errorf("sessionToken: %w", err)
			}
		}
		return SigV4(owner, keys)
	}
	secret, err := NewSecret(o.APIKey)
	if err != nil {
		return nil, fmt.Errorf("apiKey: %w", err)
	}
	switch auth {
	case AuthAWS:
		return BedrockKey(owner, secret, o.Region)
	case AuthAzure:
		if o.ResourceName == "" {
			return nil, errors.New("a credential for Azure has a resourceName")
		}
		return AzureKey(owner, Azure{Key: secret, Resource: o.ResourceName})
	case AuthNone:
		return nil, errors.New("this provider takes no credentials")
	}
	return KeyFor(auth, owner, secret)
}

// KeyFor returns the credential made of one secret, for an auth that takes one. Errors:
// those of the auth's constructor.
func KeyFor(auth Auth, o Owner, s Secret) (Credential, error) {
	switch auth {
	case AuthXKey:
		return Header(o, "X-Api-Key", s), nil
	case AuthGoogle:
		return Header(o, "X-Goog-Api-Key", s), nil
	case AuthAzure:
		return AzureKey(o, Azure{Key: s})
	case AuthAWS:
		return BedrockKey(o, s, "")
	}
	return Bearer(o, s), nil
}
