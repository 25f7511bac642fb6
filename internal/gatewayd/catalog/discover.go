package catalog

import (
	"slices"
	"strings"

	"github.com/cayhq/cay/gateway"
)

// Offered returns a model for a provider's own model name, of which only its existence is
// known: provider/name. Its modalities are unknown. The gateway uses it for servers that
// list their models. price is nil if unknown.
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

// guessKind recognizes embedding and reranking models, which servers' lists do not mark,
// by their usual names. The kind affects only lists of models; the client's path decides
// the kind of a call.
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

// Free is the price of self-hosted models.
func Free() *gateway.Price { return &gateway.Price{Version: "self-hosted"} }
