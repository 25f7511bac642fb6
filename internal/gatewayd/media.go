package gatewayd

import (
	"math"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/asks"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// Images, speech and transcriptions are priced per image, character or second, or by
// tokens that the request does not reveal. If the provider does not count, the gateway
// charges the maximum.

// eachImage returns the cost of one image, for a model with image prices: the price for
// quality and size, for either of them, else the highest price.
func eachImage(p *request.Payload, at *gateway.Price) gateway.Money {
	quality, size := p.Text("quality"), p.Text("size")
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

// pieces returns the cost of a call besides tokens: images generated, characters spoken,
// or seconds transcribed. The provider's count of seconds takes precedence.
func pieces(rq *request.Request, p *gateway.Price, images, seconds int64) gateway.Money {
	switch rq.Route.Kind {
	case kindImage:
		return eachImage(&rq.Payload, p).Times(images)
	case kindSpeech:
		return p.Character.Times(int64(utf8.RuneCountInString(rq.Text("input"))))
	case kindTranscription:
		return p.Second.Times(orDefault(seconds, rq.SoundSeconds()))
	}
	return 0
}

// mostMedia returns the maximum cost of a call besides tokens.
func mostMedia(rq *request.Request, p *gateway.Price, asked *asks.Asks) gateway.Money {
	n := max(1, rq.Copies)
	if asked != nil {
		n = max(n, asked.Copies)
	}
	return pieces(rq, p, min(n, maxCopies), 0)
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
	if usage == nil && x.cl.rq.Route.Kind == kindTranscription { // plain text has the words, but not the duration
		x.outputBytes = int64(len(body))
	}
	x.sawMedia(usage, images, hub.Response{ID: gjson.GetBytes(body, "id").Str})
}

// sawMedia records the result of an answer of a model other than a language model.
func (x *exchange) sawMedia(usage *hub.Usage, images int64, r hub.Response) {
	x.images = images
	rq := &x.cl.rq
	if p := x.o.endpoint.Price; rq.Route.Kind == kindImage && p != nil && p.Output > 0 && (usage == nil || hub.Count(usage.Output) == 0) {
		if usage != nil {
			usage.Output = nil
		}
		x.outputBytes = 4 * images * rq.PerImage() // the maximum number of tokens
	}
	x.sawUsage(usage, r, hub.Finish{Reason: hub.Stop}, true)
}
