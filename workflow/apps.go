package workflow

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/cayhq/cay/internal/wire"
)

// Deployment is one build of an app that is written with the Workflow SDK in JavaScript:
// the app replays its runs by itself, and a daemon wakes it. A run's messages go only to
// its deployment.
type Deployment struct {
	ID      string `json:"id"`
	Project string `json:"project"`
	// URL is the app's address, "" if the app has never registered, or has deregistered.
	URL       string    `json:"url,omitempty"`
	CreatedAt time.Time `json:"created_at,omitzero"` // when the app first registered
	SeenAt    time.Time `json:"seen_at,omitzero"`    // when the app was last heard of
	// Error is why deliveries to the deployment fail, "" if they do not.
	Error string `json:"error,omitempty"`
	// Draining: no new runs are started with the deployment.
	Draining bool `json:"draining,omitempty"`
}

// Delivery is a message to an app that has not been acknowledged yet.
type Delivery struct {
	ID         string    `json:"id"`
	Deployment string    `json:"deployment"`
	Topic      string    `json:"topic"`
	Run        string    `json:"run,omitempty"`
	Step       string    `json:"step,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
	Due        time.Time `json:"due"` // time of the next delivery
	// Attempt counts the deliveries that reached the app, 0 before the first.
	Attempt int `json:"attempt,omitempty"`
	// LeasedUntil is set while the app works on the message: the message is delivered
	// again after that time.
	LeasedUntil time.Time `json:"leased_until,omitzero"`
	// Error is why the message is not delivered.
	Error string `json:"error,omitempty"`
}

// Apps lists the apps of other languages that a daemon wakes.
type Apps struct{ remote *remote }

// DialApps returns the apps of a daemon. It does not connect. Errors: invalid.
func DialApps(o RemoteOptions) (*Apps, error) {
	conn, err := wire.Target{URL: o.URL, Token: o.Token, Team: o.Team, HTTPClient: o.HTTPClient}.Resolve()
	if err != nil {
		return nil, err
	}
	return &Apps{&remote{conn, o.Project}}, nil
}

// Deployments returns all deployments, the newest first. Errors: unauthenticated,
// unavailable.
func (a *Apps) Deployments(ctx context.Context) ([]Deployment, error) {
	var page struct{ Items []Deployment }
	err := a.remote.call(ctx, wire.Request{Method: http.MethodGet, Path: "/v1/workflows/deployments"}, &page)
	return page.Items, err
}

// Deliveries returns at most 100 messages that wait for apps, the soonest first. If run
// is not "", only messages about that run are returned. Errors: unauthenticated,
// unavailable.
func (a *Apps) Deliveries(ctx context.Context, run string) ([]Delivery, error) {
	q := url.Values{}
	if run != "" {
		q.Set("run", run)
	}
	var page struct{ Items []Delivery }
	err := a.remote.call(ctx, wire.Request{Method: http.MethodGet, Path: "/v1/workflows/messages", Query: q}, &page)
	return page.Items, err
}
