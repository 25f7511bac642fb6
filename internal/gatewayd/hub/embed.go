package hub

// EmbedCall is one call of an embedding model.
type EmbedCall struct {
	Values []string
	// Dimensions is how long the vectors are to be; 0 leaves it to the model.
	Dimensions int
	User       string // the caller's end user
	// Options are for one provider each. The member gateway has been taken out.
	Options  Options
	Warnings []Warning // what the Surface could not carry into the call
}

// EmbedResult is the answer to an EmbedCall.
type EmbedResult struct {
	Vectors  [][]float64 // one for each value, in the same order
	Usage    *Usage      // its Input counts; nil if the provider gave none
	Warnings []Warning
	Response Response
	Options  Options
}
