// Package request reads what a client sends to the gateway: who sends it, the options for
// the gateway itself, the members that decide about permissions and cost and, on demand,
// the whole in the hub's form. It calls no provider.
package request
