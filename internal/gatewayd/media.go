package gatewayd

import (
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Images, speech and transcriptions are priced per image, character or second, or by
// tokens that the request does not reveal. If the provider does not count, the gateway
// charges the maximum.

// imageTokens is the maximum number of tokens of an OpenAI image, by quality; some sizes
// have fewer tokens.
var imageTokens = map[string]int64{"low": 408, "medium": 1584, "high": maxImageTokens}

// partialTokens is the number of tokens of each partial image.
const partialTokens = 100

// audioRate is the minimum number of bytes per second of sound: 16 kbit/s, a low rate for
// speech.
const audioRate = 2000

// text returns a string member of the request, from its JSON or its form.
func (c *call) text(name string) string {
	if c.obj.body == nil {
		for i := range c.parts {
			if c.parts[i].name == name {
				return string(c.parts[i].data)
			}
		}
		return ""
	}
	return gjson.ParseBytes(c.obj.get(name)).Str
}

// perImage returns the maximum number of tokens of an image in the request.
func (c *call) perImage() int64 {
	n := orDefault(imageTokens[c.text("quality")], maxImageTokens)
	partial, _ := strconv.ParseInt(string(c.obj.get("partial_images")), 10, 64)
	return n + min(max(0, partial), 3)*partialTokens
}

// eachImage returns the cost of one image, for a model with image prices: the price for
// quality and size, for either of them, else the highest price.
func (c *call) eachImage(p *gateway.Price) gateway.Money {
	quality, size := c.text("quality"), c.text("size")
	for _, name := range [...]string{quality + "/" + size, quality, size} {
		if m, ok := p.Images[name]; ok {
			return m
		}
	}
	most := p.Image
	for _, m := range p.Images {
		most = max(most, m)
	}
	return most
}

// seconds returns the maximum duration of the sound in a request.
func (c *call) seconds() int64 {
	n := 0
	for i := range c.parts {
		n += len(c.parts[i].data)
	}
	return int64(n)/audioRate + 1
}

// pieces returns the cost of a call besides tokens: images generated, characters spoken,
// or seconds transcribed. The provider's count of seconds takes precedence.
func (c *call) pieces(p *gateway.Price, images, seconds int64) gateway.Money {
	switch c.rt.kind {
	case kindImage:
		return c.eachImage(p).Times(images)
	case kindSpeech:
		return p.Character.Times(int64(utf8.RuneCountInString(c.text("input"))))
	case kindTranscription:
		return p.Second.Times(orDefault(seconds, c.seconds()))
	}
	return 0
}

// mostMedia returns the maximum cost of a call besides tokens.
func (c *call) mostMedia(p *gateway.Price) gateway.Money {
	n := max(1, c.copies)
	if c.asked != nil {
		n = max(n, c.asked.copies)
	}
	return c.pieces(p, min(n, maxCopies), 0)
}

// sawMedia reads a passed answer and the provider's counts in it.
func (c *call) sawMedia(a *attempt, body []byte, usage *hub.Usage) {
	c.images = int64(len(gjson.GetBytes(body, "data").Array()))
	for _, path := range [...]string{"usage.seconds", "duration"} { // OpenAI's; the second is of verbose_json
		if v := gjson.GetBytes(body, path); v.Type == gjson.Number && v.Num > 0 && v.Num < 1e7 {
			c.heard = int64(math.Ceil(v.Num))
			break
		}
	}
	if usage == nil && c.rt.kind == kindTranscription { // plain text has the words, but not the duration
		c.outputBytes = int64(len(body))
	}
	c.saidMedia(a, usage, c.images, hub.Response{ID: gjson.GetBytes(body, "id").Str})
}

// saidMedia records the result of an answer of a model other than a language model.
func (c *call) saidMedia(a *attempt, usage *hub.Usage, images int64, r hub.Response) {
	c.images = images
	if p := a.o.endpoint.Price; c.rt.kind == kindImage && p != nil && p.Output > 0 && (usage == nil || hub.Count(usage.Output) == 0) {
		if usage != nil {
			usage.Output = nil
		}
		c.outputBytes = 4 * images * c.perImage() // the maximum number of tokens
	}
	c.sawUsage(a, usage, r, hub.Finish{Reason: hub.Stop}, true)
}
