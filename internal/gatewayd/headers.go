package gatewayd

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/plan"
)

// headers sets the headers of a whole answer.
func (x *exchange) headers(h http.Header) {
	x.host.limits(h)
	describeOffer(h, x.o.Offer)
	if cost := x.host.charge(); cost.Known {
		h["X-Cay-Cost"] = []string{cost.Total.String()}
	}
}

// streamHeaders sets the headers of a stream, whose cost is not yet known.
func (x *exchange) streamHeaders() {
	h := x.cl.out.w.Header()
	x.host.limits(h)
	eventHeaders(h, nil)
	if x.serving {
		describeOffer(h, x.o.Offer)
	}
}

// describeOffer sets the headers that name the provider and the model that answered.
func describeOffer(h http.Header, o *plan.Offer) {
	h["X-Cay-Provider"] = []string{o.Provider.Name}
	if o.Unlisted() {
		h.Set("X-Cay-Warning", headerText(o.Warning()))
	}
}

// headerText returns s with characters replaced that are invalid in headers.
func headerText(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}

// eventHeaders sets the headers of a stream that begins before a provider has answered.
func eventHeaders(h http.Header, hold ledger.Hold) {
	if hold != nil {
		hold.Limits(h)
	}
	h["Content-Type"] = eventsType
	h["Cache-Control"] = noCache
	h["X-Accel-Buffering"] = bufferingOff
}

var (
	noCache      = []string{"no-cache"}
	bufferingOff = []string{"no"}
)

func appendInt(dst []byte, n int64) []byte { return strconv.AppendInt(dst, n, 10) }
