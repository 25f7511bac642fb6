// Package cay is the root of cay, a self-hosted agent cloud in one binary:
// sandboxes that run untrusted code, durable workflows, an AI gateway, and
// agents made of the three.
//
// The package itself holds only what every part shares: the error vocabulary
// and the version. Programs import the capability they use:
//
//	github.com/cayhq/cay/sandbox   create sandboxes, run commands, move files
//	github.com/cayhq/cay/workflow  durable workflows, in the program itself or on a daemon
//	github.com/cayhq/cay/account   teams, projects, tokens, quotas
//
// It imports the standard library only.
package cay
