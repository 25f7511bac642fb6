package scripted

import (
	"hash/fnv"
	"math"
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// maxWork is the maximum number of words times dimensions per call.
const maxWork = 1 << 29

// Embed returns a vector of length 1 for each value, computed from the hashes of its
// words: equal texts have equal vectors, and texts that share words are closer than texts
// that do not. A call with more than 8 million words at the default dimensions fails with
// TooLarge.
func (s *Script) Embed(c *hub.EmbedCall) (*hub.EmbedResult, *hub.Error) {
	dimensions := c.Dimensions
	if dimensions <= 0 {
		dimensions = s.dimensions
	}
	if dimensions == 0 {
		dimensions = DefaultDimensions
	}
	r := &hub.EmbedResult{Vectors: make([][]float64, len(c.Values)), Response: hub.Response{Model: "scripted"}}
	if dimensions > maxDimensions {
		dimensions = maxDimensions
		r.Warnings = append(r.Warnings, hub.Warning{
			Kind: hub.WarnCompatibility, Feature: "dimensions",
			Message: "vectors of the scripted model have at most " + strconv.Itoa(maxDimensions),
		})
	}
	var n int64
	for _, text := range c.Values {
		n += words(text)
	}
	if (n+int64(len(c.Values)))*int64(dimensions) > maxWork {
		return nil, &hub.Error{Kind: hub.TooLarge, Message: "the values have too many words for the scripted model; send fewer, or ask for fewer dimensions"}
	}
	for i, text := range c.Values {
		r.Vectors[i] = vector(text, dimensions)
	}
	r.Usage = &hub.Usage{Input: &n}
	r.Usage.Fill()
	return r, nil
}

// vector adds up a direction per word, ignoring case, and scales the sum to length 1.
func vector(text string, dimensions int) []float64 {
	v := make([]float64, dimensions)
	all := strings.Fields(strings.ToLower(text))
	if len(all) == 0 {
		all = []string{""}
	}
	for _, word := range all {
		h := fnv.New64a()
		h.Write([]byte(strings.Trim(word, ".,;:!?\"'()[]{}")))
		state := h.Sum64()
		for i := range v {
			v[i] += direction(&state)
		}
	}
	length := 0.0
	for _, x := range v {
		length += x * x
	}
	if length = math.Sqrt(length); length == 0 {
		v[0], length = 1, 1
	}
	for i := range v {
		v[i] /= length
	}
	return v
}

// direction returns the next number from -1 to 1 of a sequence (splitmix64).
func direction(state *uint64) float64 {
	*state += 0x9e3779b97f4a7c15
	x := *state
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return float64(x>>11)/(1<<52) - 1
}
