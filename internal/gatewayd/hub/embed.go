package hub

// EmbedCall is one call to an embedding model.
type EmbedCall struct {
	Values []string
	// Dimensions is the length of the vectors; 0 leaves it to the model.
	Dimensions int
	User       string // the caller's end user
	// Options are for one provider each. The member gateway has been removed.
	Options  Options
	Warnings []Warning // content that the Surface could not put into the call
}

// EmbedResult is the answer to an EmbedCall.
type EmbedResult struct {
	Vectors  [][]float64 // one for each value, in the same order
	Usage    *Usage      // its Input counts; nil if the provider gave none
	Warnings []Warning
	Response Response
	Options  Options
}
