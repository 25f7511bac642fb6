package catalog

import (
	"slices"
	"strings"

	"github.com/cayhq/cay/gateway"
)

// Offered returns the model a provider's own name of one stands for, of which
// nothing is known but that it is there: provider/name. What it reads is not known. It is for servers that
// say themselves what they have. price is nil if it is not known what it costs.
func Offered(provider, name string, price *gateway.Price) gateway.Model {
	m := gateway.Model{
		ID: provider + "/" + name, Name: name, Kind: guessKind(name), Output: []string{"text"},
		Endpoints: []gateway.Endpoint{{Provider: provider, Model: name, Price: price, Health: gateway.Health{State: "unknown"}}},
	}
	if m.Kind == "embedding" {
		m.Output = []string{"vector"}
	}
	return m
}

// guessKind tells embedding and reranking models, which lists of servers do not
// tell apart, by the names they usually have. It decides what lists of models show;
// a call is made for what the client calls.
func guessKind(name string) string {
	name = strings.ToLower(name)
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(name, w) })
	}
	switch {
	case has("rerank"):
		return "reranking"
	case has("embed", "bge-", "minilm", "e5-", "gte-"):
		return "embedding"
	}
	return "language"
}

// Free is the price of what runs on the operator's own machines.
func Free() *gateway.Price { return &gateway.Price{Version: "self-hosted"} }
