package gatewayd

import (
	"math"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// saw records the result of a tap.
func (x *exchange) saw(s *hub.Seen) {
	x.OutputBytes, x.kept = s.OutputBytes, s.Kept
	x.sawUsage(s.Usage, s.Response, s.Finish, s.Complete)
}

// sawUsage records the usage and the result of a finished answer.
func (x *exchange) sawUsage(u *hub.Usage, r hub.Response, f hub.Finish, complete bool) {
	x.Usage, x.Estimated = u, false
	if u != nil {
		u.Fill()
	}
	if u == nil || u.Input == nil || u.Output == nil || !complete {
		x.Estimate(&x.cl.rq, complete)
	}
	x.record.ResponseID = r.ID
	x.keep(r, x.kept)
	x.finishReason = string(f.Reason)
}

// sawBody records the provider's counts in an answer that is passed, of a model other than
// a language model.
func (x *exchange) sawBody(body []byte, usage *hub.Usage) {
	images := int64(len(gjson.GetBytes(body, "data").Array()))
	for _, path := range [...]string{"usage.seconds", "duration"} { // OpenAI's; the second is of verbose_json
		if v := gjson.GetBytes(body, path); v.Type == gjson.Number && v.Num > 0 && v.Num < 1e7 {
			x.Seconds = int64(math.Ceil(v.Num))
			break
		}
	}
	if usage == nil && x.cl.rq.Route.Kind == kindTranscription { // plain text has the words, but not the duration
		x.OutputBytes = int64(len(body))
	}
	x.sawMedia(usage, images, hub.Response{ID: gjson.GetBytes(body, "id").Str})
}

// sawMedia records the result of an answer of a model other than a language model.
func (x *exchange) sawMedia(usage *hub.Usage, images int64, r hub.Response) {
	x.Images = images
	rq := &x.cl.rq
	if p := x.o.Endpoint.Price; rq.Route.Kind == kindImage && p != nil && p.Output > 0 && (usage == nil || hub.Count(usage.Output) == 0) {
		if usage != nil {
			usage.Output = nil
		}
		x.OutputBytes = 4 * images * rq.PerImage() // the maximum number of tokens
	}
	x.sawUsage(usage, r, hub.Finish{Reason: hub.Stop}, true)
}
