package ledger

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

const (
	secretPrefix = "cgk_"
	secretLength = len(secretPrefix) + 43
	// shownPrefix is the length of the secret's prefix that is stored so that users can
	// tell keys apart.
	shownPrefix = len(secretPrefix) + 6
	// maxKeys is the maximum number of keys of a team; all keys are kept in memory.
	maxKeys = 10_000
)

// hash is the SHA-256 of a secret; the secret itself is not stored. A secret has 256
// random bits, so no slower hash is needed.
type hash [sha256.Size]byte

// IsSecret reports whether s has the form of a key's secret.
func IsSecret(s string) bool {
	return len(s) == secretLength && strings.HasPrefix(s, secretPrefix)
}

// key is a key in memory. k, which users see, is replaced as a whole and never changed.
type key struct {
	hash  hash
	k     *gateway.Key
	rates *rates // guarded by memory.mu
	// minute is the minute of the last use, as last written to the database; only the
	// writer uses it.
	minute int64
}

// fill refills the rate buckets up to now. Called with memory.mu held.
func (k *key) fill(now time.Time) {
	k.rates.requests.fill(now, k.k.RequestsPerMinute)
	k.rates.tokens.fill(now, k.k.TokensPerMinute)
}

// admit checks whether the key's rates let a call begin. Called with memory.mu held.
func (k *key) admit(n Need, now time.Time) error {
	if n.Arrival != nil && n.Arrival.here { // Arrive has checked the request rate and concurrency
		k.fill(now)
	} else if err := k.arrive(now); err != nil {
		return err
	}
	if wait := k.rates.tokens.wait(n.Tokens); wait > 0 {
		return k.limited(wait, "has used the %d tokens it may use in a minute: this request may use %d", k.k.TokensPerMinute, n.Tokens)
	}
	return nil
}

// keys are all keys, in memory.
type keys struct {
	mu     sync.RWMutex // guards the following fields; no other lock is taken under it
	hashes map[hash]*key
	ids    map[string]*key
}

func (ks *keys) load(all []*key) {
	ks.hashes, ks.ids = make(map[hash]*key, len(all)), make(map[string]*key, len(all))
	for _, k := range all {
		ks.hashes[k.hash], ks.ids[k.k.ID] = k, k
	}
}

func (ks *keys) byHash(h hash) *key {
	ks.mu.RLock()
	defer ks.mu.RUnlock()
	return ks.hashes[h]
}

func (ks *keys) byID(id string) *key {
	ks.mu.RLock()
	defer ks.mu.RUnlock()
	return ks.ids[id]
}

func (ks *keys) set(k *key) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	ks.hashes[k.hash], ks.ids[k.k.ID] = k, k
}

func (ks *keys) remove(k *key) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	delete(ks.hashes, k.hash)
	delete(ks.ids, k.k.ID)
}

// keyring authenticates callers, and manages keys. A change is durable before the keys in
// memory have it.
type keyring struct {
	keys   *keys
	memory *memory // has the keys' budgets
	store  store
	writer *writer
	now    func() time.Time
	auth   api.Authenticator // nil: only keys are accepted
	change *sync.Mutex       // held while keys and definitions change; shared with budgets, locked before keys.mu and memory.mu
}

// timestamp returns a time as the database stores it.
func timestamp(now time.Time) time.Time { return now.UTC().Truncate(time.Millisecond) }

func unknownKey() *hub.Error {
	return &hub.Error{Kind: hub.Unauthenticated, Code: "invalid_api_key", Message: "the key is not valid: it is unknown, or was deleted"}
}

// Authenticate implements Ledger.
func (r *keyring) Authenticate(ctx context.Context, secret string) (*Caller, error) {
	if !IsSecret(secret) {
		return r.authenticateToken(ctx, secret)
	}
	k := r.keys.byHash(sha256.Sum256([]byte(secret)))
	if k == nil {
		return nil, unknownKey()
	}
	switch {
	case k.k.Disabled:
		return nil, &hub.Error{Kind: hub.Unauthenticated, Code: "invalid_api_key", Message: fmt.Sprintf("the key %s is disabled", k.k.ID)}
	case k.k.ExpiresAt != nil && !r.now().Before(*k.k.ExpiresAt):
		return nil, &hub.Error{
			Kind: hub.Unauthenticated, Code: "invalid_api_key",
			Message: fmt.Sprintf("the key %s has expired at %s", k.k.ID, k.k.ExpiresAt.UTC().Format(time.RFC3339)),
		}
	}
	return &Caller{TeamID: k.k.TeamID, ProjectID: k.k.ProjectID, KeyID: k.k.ID, Key: k.k, Tags: slices.Clip(k.k.Tags)}, nil
}

// authenticateToken returns the Caller that holds a token of the daemon.
func (r *keyring) authenticateToken(ctx context.Context, secret string) (*Caller, error) {
	if r.auth == nil {
		return nil, unknownKey()
	}
	p, err := r.auth.Authenticate(ctx, secret)
	switch {
	case cay.CodeOf(err) == cay.Unauthenticated:
		return nil, &hub.Error{Kind: hub.Unauthenticated, Code: "invalid_api_key", Message: err.Error(), Cause: err}
	case err != nil:
		return nil, &hub.Error{Kind: hub.Overloaded, Message: "tokens cannot be checked at present", Cause: err, RetryAfter: time.Second}
	}
	if p.ProjectID == "" && p.TeamID == account.DefaultTeam {
		p.ProjectID = account.DefaultProject
	}
	return &Caller{TeamID: p.TeamID, ProjectID: p.ProjectID, KeyID: p.TokenID}, nil
}

// CreateKey creates a key of a team and returns it with its secret. p must be valid, and
// its ProjectID must be a project of the team. Errors: quota_exceeded (10,000 keys).
func (r *keyring) CreateKey(ctx context.Context, team string, p gateway.CreateKeyParams) (*gateway.Key, error) {
	raw := make([]byte, 32)
	rand.Read(raw) // never fails: see its documentation
	secret := secretPrefix + base64.RawURLEncoding.EncodeToString(raw)
	k := &gateway.Key{
		ID: "gk_" + strings.ToLower(rand.Text()[:20]), TeamID: team, ProjectID: p.ProjectID, Name: p.Name, Prefix: secret[:shownPrefix],
		KeyScope: p.KeyScope, Tags: p.Tags, CreatedAt: timestamp(r.now()), ExpiresAt: p.ExpiresAt,
	}
	entry := &key{hash: sha256.Sum256([]byte(secret)), k: k, rates: new(rates)}

	r.change.Lock()
	defer r.change.Unlock()
	if err := r.store.insertKey(ctx, entry, p.Budget); err != nil {
		return nil, err
	}
	r.keys.set(entry)
	if p.Budget != nil {
		r.memory.define(spender{team, gateway.ScopeKey, k.ID}, &definition{*p.Budget, k.CreatedAt})
	}
	out := r.shown(entry)
	out.Secret = secret
	return out, nil
}

// shown returns a copy of a key with its budget.
func (r *keyring) shown(k *key) *gateway.Key {
	out := *k.k
	out.Budget = r.memory.budget(spender{out.TeamID, gateway.ScopeKey, out.ID}, nil)
	return &out
}

// reached returns a key that is visible to a team, or to one of its projects if project
// is not empty. Errors: not_found.
func (r *keyring) reached(team, project, id string) (*key, error) {
	k := r.keys.byID(id)
	if k == nil || k.k.TeamID != team || project != "" && k.k.ProjectID != project {
		return nil, cay.Errorf(cay.NotFound, "key %q not found", id)
	}
	return k, nil
}

// GetKey returns a key of a team, or of one of its projects. Errors: not_found.
func (r *keyring) GetKey(ctx context.Context, team, project, id string) (*gateway.Key, error) {
	if err := r.writer.flush(ctx, false); err != nil {
		return nil, err
	}
	k, err := r.reached(team, project, id)
	if err != nil {
		return nil, err
	}
	out := r.shown(k)
	if out.LastUsedAt, err = r.store.lastUsed(ctx, id); err != nil {
		return nil, err
	}
	return out, nil
}

// ListKeys lists the keys of a team, or of one of its projects, newest first. Errors:
// invalid (the cursor).
func (r *keyring) ListKeys(ctx context.Context, team, project string, limit int, cursor string) (*gateway.Page[gateway.Key], error) {
	after, err := parseCursor("keys", cursor)
	if err != nil {
		return nil, err
	}
	if err := r.writer.flush(ctx, false); err != nil {
		return nil, err
	}
	ids, used, err := r.store.listKeys(ctx, team, project, after, limit+1)
	if err != nil {
		return nil, err
	}
	page := &gateway.Page[gateway.Key]{Items: []gateway.Key{}}
	for i, id := range ids {
		k := r.keys.byID(id)
		if k == nil {
			continue // deleted meanwhile
		}
		if len(page.Items) == limit {
			last := page.Items[limit-1]
			page.Next = position{last.CreatedAt.UnixMilli(), last.ID}.String()
			break
		}
		out := r.shown(k)
		out.LastUsedAt = used[i]
		page.Items = append(page.Items, *out)
	}
	return page, nil
}

// UpdateKey changes a key; calls that begin after UpdateKey has returned see the change.
// Errors: not_found.
func (r *keyring) UpdateKey(ctx context.Context, team, project, id string, p gateway.UpdateKeyParams) (*gateway.Key, error) {
	r.change.Lock()
	defer r.change.Unlock()
	old, err := r.reached(team, project, id)
	if err != nil {
		return nil, err
	}
	k := *old.k
	if p.Name != nil {
		k.Name = *p.Name
	}
	if p.Scope != nil {
		k.KeyScope = *p.Scope
	}
	if p.Tags != nil {
		k.Tags = *p.Tags
	}
	if p.Disabled != nil {
		k.Disabled = *p.Disabled
	}
	if p.ExpiresAt != nil {
		if k.ExpiresAt = p.ExpiresAt; p.ExpiresAt.IsZero() {
			k.ExpiresAt = nil
		}
	}
	entry := &key{hash: old.hash, k: &k, rates: old.rates}
	if err := r.store.updateKey(ctx, entry); err != nil {
		return nil, err
	}
	r.keys.set(entry)
	return r.shown(entry), nil
}

// DeleteKey deletes a key and its budget: calls that begin after DeleteKey has returned
// are refused. The key's records stay. Errors: not_found.
func (r *keyring) DeleteKey(ctx context.Context, team, project, id string) error {
	r.change.Lock()
	defer r.change.Unlock()
	k, err := r.reached(team, project, id)
	if err != nil {
		return err
	}
	if err := r.store.deleteKey(ctx, team, id); err != nil {
		return err
	}
	r.keys.remove(k)
	r.memory.define(spender{team, gateway.ScopeKey, id}, nil)
	return nil
}
