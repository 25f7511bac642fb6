package oidc

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// How long a token of a forwarded request is valid, and how long it is reused
// for further requests: it must still be valid when the receiver verifies it.
const (
	forwardTTL   = 5 * time.Minute
	forwardReuse = 3 * time.Minute
	maxForwards  = 4096 // tokens that are remembered
)

// Sandbox identifies the sandbox whose request is forwarded.
type Sandbox struct{ TeamID, ProjectID, ID, Name string }

// forwardClaims name the sandbox that a request comes from. The claims have the
// names of another product, whose receivers expect them.
type forwardClaims struct {
	Claims
	TeamID      string `json:"team_id"`
	ProjectID   string `json:"project_id"`
	SandboxID   string `json:"sandbox_id"`
	SandboxName string `json:"sandbox_name"`
}

// Forwards makes the tokens for requests that a network policy forwards. A
// token tells the receiver which sandbox a request comes from. Our own API does
// not accept these tokens: their audience is the receiver's URL.
type Forwards struct {
	// Sign makes a token of claims.
	Sign func(ctx context.Context, claims any) (string, error)
	// Issuer returns the URL at which our keys are published.
	Issuer func() string
	// Sandbox returns the sandbox of a machine.
	Sandbox func(ctx context.Context, machine string) (Sandbox, error)
	// Now is the wall clock. Nil means time.Now.
	Now func() time.Time

	mu     sync.Mutex // guards what follows
	tokens map[forwardKey]forwardToken
}

type forwardKey struct{ machine, audience string }

type forwardToken struct {
	text  string
	until time.Time // from when on it goes with no request
}

// Token returns a token for a request of a machine to a receiver.
func (f *Forwards) Token(ctx context.Context, machine, audience string) (string, error) {
	now := time.Now()
	if f.Now != nil {
		now = f.Now()
	}
	key := forwardKey{machine, audience}
	f.mu.Lock()
	t := f.tokens[key]
	f.mu.Unlock()
	if now.Before(t.until) {
		return t.text, nil
	}
	sb, err := f.Sandbox(ctx, machine)
	if err != nil {
		return "", fmt.Errorf("find the sandbox of machine %s: %w", machine, err)
	}
	t.until = now.Add(forwardReuse)
	if t.text, err = f.Sign(ctx, forwardClaims{
		Claims: Claims{
			Issuer: f.Issuer(), Subject: "sandbox:" + sb.ID, Audience: audience,
			IssuedAt: now.Unix(), Expiry: now.Add(forwardTTL).Unix(),
		},
		TeamID: sb.TeamID, ProjectID: sb.ProjectID, SandboxID: sb.ID, SandboxName: sb.Name,
	}); err != nil {
		return "", err
	}
	f.keep(key, t, now)
	return t.text, nil
}

// keep remembers t. When there are too many tokens, keep drops expired ones, or
// else random ones.
func (f *Forwards) keep(key forwardKey, t forwardToken, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tokens == nil {
		f.tokens = make(map[forwardKey]forwardToken)
	}
	if len(f.tokens) >= maxForwards {
		for k, old := range f.tokens {
			if !now.Before(old.until) {
				delete(f.tokens, k)
			}
		}
	}
	if len(f.tokens) >= maxForwards {
		for k := range f.tokens { // the order of a map is random
			delete(f.tokens, k)
			break
		}
	}
	f.tokens[key] = t
}
