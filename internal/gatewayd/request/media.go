package request

import (
	"cmp"
	"strconv"

	"github.com/tidwall/gjson"
)

// MaxImageTokens is the number of tokens of an image: OpenAI's largest in the best quality.
const MaxImageTokens = 6240

// imageTokens is the maximum number of tokens of an OpenAI image, by quality; some sizes
// have fewer tokens.
var imageTokens = map[string]int64{"low": 408, "medium": 1584, "high": MaxImageTokens}

// partialTokens is the number of tokens of each partial image.
const partialTokens = 100

// audioRate is the minimum number of bytes per second of sound: 16 kbit/s, a low rate for
// speech.
const audioRate = 2000

// Text returns a string member of the request, from its JSON or its form.
func (p *Payload) Text(name string) string {
	if p.Object.Body == nil {
		for i := range p.Parts {
			if p.Parts[i].Name == name {
				return string(p.Parts[i].Data)
			}
		}
		return ""
	}
	return gjson.ParseBytes(p.Object.Get(name)).Str
}

// PerImage returns the maximum number of tokens of an image in the request.
func (p *Payload) PerImage() int64 {
	n := cmp.Or(imageTokens[p.Text("quality")], MaxImageTokens)
	partial, _ := strconv.ParseInt(string(p.Object.Get("partial_images")), 10, 64)
	return n + min(max(0, partial), 3)*partialTokens
}

// SoundSeconds returns the maximum duration of the sound in a request.
func (p *Payload) SoundSeconds() int64 {
	n := 0
	for i := range p.Parts {
		n += len(p.Parts[i].Data)
	}
	return int64(n)/audioRate + 1
}
