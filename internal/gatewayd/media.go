package gatewayd

import (
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/asks"
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
func (p *payload) text(name string) string {
	if p.obj.Body == nil {
		for i := range p.parts {
			if p.parts[i].name == name {
				return string(p.parts[i].data)
			}
		}
		return ""
	}
	return gjson.ParseBytes(p.obj.Get(name)).Str
}

// perImage returns the maximum number of tokens of an image in the request.
func (p *payload) perImage() int64 {
	n := orDefault(imageTokens[p.text("quality")], maxImageTokens)
	partial, _ := strconv.ParseInt(string(p.obj.Get("partial_images")), 10, 64)
	return n + min(max(0, partial), 3)*partialTokens
}

// eachImage returns the cost of one image, for a model with image prices: the price for
// quality and size, for either of them, else the highest price.
func (p *payload) eachImage(at *gateway.Price) gateway.Money {
	quality, size := p.text("quality"), p.text("size")
	for _, name := range [...]string{quality + "/" + size, quality, size} {
		if m, ok := at.Images[name]; ok {
			return m
		}
	}
	most := at.Image
	for _, m := range at.Images {
		most = max(most, m)
	}
	return most
}

// soundSeconds returns the maximum duration of the sound in a request.
func (p *payload) soundSeconds() int64 {
	n := 0
	for i := range p.parts {
		n += len(p.parts[i].data)
	}
	return int64(n)/audioRate + 1
}

// pieces returns the cost of a call besides tokens: images generated, characters spoken,
// or seconds transcribed. The provider's count of seconds takes precedence.
func (rq *request) pieces(p *gateway.Price, images, seconds int64) gateway.Money {
	switch rq.rt.kind {
	case kindImage:
		return rq.eachImage(p).Times(images)
	case kindSpeech:
		return p.Character.Times(int64(utf8.RuneCountInString(rq.text("input"))))
	case kindTranscription:
		return p.Second.Times(orDefault(seconds, rq.soundSeconds()))
	}
	return 0
}

// mostMedia returns the maximum cost of a call besides tokens.
func mostMedia(rq *request, p *gateway.Price, asked *asks.Asks) gateway.Money {
	n := max(1, rq.copies)
	if asked != nil {
		n = max(n, asked.Copies)
	}
	return rq.pieces(p, min(n, maxCopies), 0)
}

// sawBody records the provider's counts in an answer that is passed, of a model other than
// a language model.
func (x *exchange) sawBody(body []byte, usage *hub.Usage) {
	images := int64(len(gjson.GetBytes(body, "data").Array()))
	for _, path := range [...]string{"usage.seconds", "duration"} { // OpenAI's; the second is of verbose_json
		if v := gjson.GetBytes(body, path); v.Type == gjson.Number && v.Num > 0 && v.Num < 1e7 {
			x.seconds = int64(math.Ceil(v.Num))
			break
		}
	}
	if usage == nil && x.cl.rq.rt.kind == kindTranscription { // plain text has the words, but not the duration
		x.outputBytes = int64(len(body))
	}
	x.sawMedia(usage, images, hub.Response{ID: gjson.GetBytes(body, "id").Str})
}

// sawMedia records the result of an answer of a model other than a language model.
func (x *exchange) sawMedia(usage *hub.Usage, images int64, r hub.Response) {
	x.images = images
	rq := &x.cl.rq
	if p := x.o.endpoint.Price; rq.rt.kind == kindImage && p != nil && p.Output > 0 && (usage == nil || hub.Count(usage.Output) == 0) {
		if usage != nil {
			usage.Output = nil
		}
		x.outputBytes = 4 * images * rq.perImage() // the maximum number of tokens
	}
	x.sawUsage(usage, r, hub.Finish{Reason: hub.Stop}, true)
}
