package charge

import (
	"cmp"
	"unicode/utf8"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/asks"
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
	case request.KindImage:
		return eachImage(&rq.Payload, p).Times(images)
	case request.KindSpeech:
		return p.Character.Times(int64(utf8.RuneCountInString(rq.Text("input"))))
	case request.KindTranscription:
		return p.Second.Times(cmp.Or(seconds, rq.SoundSeconds()))
	}
	return 0
}

// mostMedia returns the maximum cost of a call besides tokens.
func mostMedia(rq *request.Request, p *gateway.Price, asked *asks.Asks) gateway.Money {
	n := max(1, rq.Copies)
	if asked != nil {
		n = max(n, asked.Copies)
	}
	return pieces(rq, p, min(n, MaxCopies), 0)
}
