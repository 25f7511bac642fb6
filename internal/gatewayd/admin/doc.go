// Package admin manages the gateway: its keys, budgets, records, providers and
// credentials, for the daemon's own API. It calls no model and knows no engine.
package admin
