package gatewayd

import (
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Images, speech and transcriptions cost by the piece, the letter and the second, or
// by tokens that a request does not show. What providers do not count, is reckoned at
// the most that it can be.

// imageTokens is how many tokens an image of OpenAI's has at most, by its quality;
// other sizes have fewer.
var imageTokens = map[string]int64{"low": 408, "medium": 1584, "high": maxImageTokens}

// partialTokens is how many tokens each image has that is sent before the last.
const partialTokens = 100

// audioRate is how many bytes a second of sound has at least: 16 kbit/s, which is
// little for speech.
const audioRate = 2000

// text returns a member of the request that is a text, from its JSON or its form.
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

// perImage is how many tokens an image of the request has at most.
func (c *call) perImage() int64 {
	n := orDefault(imageTokens[c.text("quality")], maxImageTokens)
	partial, _ := strconv.ParseInt(string(c.obj.get("partial_images")), 10, 64)
	return n + min(max(0, partial), 3)*partialTokens
}

// eachImage is what an image of the request costs, of a model whose images have a
// price: by quality and size, by either, else the dearest there is.
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

// seconds is how long the sound in a request is at most.
func (c *call) seconds() int64 {
	n := 0
	for i := range c.parts {
		n += len(c.parts[i].data)
	}
	return int64(n)/audioRate + 1
}

// pieces is what a call costs beside tokens: images that are made, letters that are
// said, seconds that are heard. The last are those the provider counts, if it does.
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

// mostMedia is the most that a call can cost beside tokens.
func (c *call) mostMedia(p *gateway.Price) gateway.Money {
	n := max(1, c.copies)
	if c.asked != nil {
		n = max(n, c.asked.copies)
	}
	return c.pieces(p, min(n, maxCopies), 0)
}

// sawMedia reads what an answer that passes has, and what of it the provider counts.
func (c *call) sawMedia(a *attempt, body []byte, usage *hub.Usage) {
	c.images = int64(len(gjson.GetBytes(body, "data").Array()))
	for _, path := range [...]string{"usage.seconds", "duration"} { // OpenAI's; the second is of verbose_json
		if v := gjson.GetBytes(body, path); v.Type == gjson.Number && v.Num > 0 && v.Num < 1e7 {
			c.heard = int64(math.Ceil(v.Num))
			break
		}
	}
	if usage == nil && c.rt.kind == kindTranscription { // plain text: the words are there, and not how long it took to say them
		c.outputBytes = int64(len(body))
	}
	c.saidMedia(a, usage, c.images, hub.Response{ID: gjson.GetBytes(body, "id").Str})
}

// saidMedia takes over what is known of an answer that is no language model's.
func (c *call) saidMedia(a *attempt, usage *hub.Usage, images int64, r hub.Response) {
	c.images = images
	if p := a.o.endpoint.Price; c.rt.kind == kindImage && p != nil && p.Output > 0 && (usage == nil || hub.Count(usage.Output) == 0) {
		if usage != nil {
			usage.Output = nil
		}
		c.outputBytes = 4 * images * c.perImage() // as many tokens as there can be
	}
	c.sawUsage(a, usage, r, hub.Finish{Reason: hub.Stop}, true)
}
