package hub

import "encoding/json"

// RerankCall is one call to a model that orders documents by how well they answer a
// query.
type RerankCall struct {
	Query string
	// Documents are texts, or JSON objects if Objects is true.
	Documents []json.RawMessage
	Objects   bool
	TopN      int64 // how many of the best are wanted; 0 for all
	// Options are for one provider each. The member gateway has been removed.
	Options  Options
	Warnings []Warning // content that the Surface could not put into the call
}

// RerankResult is the answer to a RerankCall.
type RerankResult struct {
	Ranking  []Ranked // the best first
	Usage    *Usage   // nil if the provider gave none
	Warnings []Warning
	Response Response
	Options  Options
}

// Ranked is one document in a ranking.
type Ranked struct {
	Index int // of the document in the call
	Score float64
}
