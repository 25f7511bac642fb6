package gatewayd

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// defaultOutput is the number of output tokens reserved if neither the request nor the
// catalogue has a limit.
const defaultOutput = 16 << 10

// needOf estimates the maximum cost of a call: 1 token per 3 bytes of the request, at
// most the model's context, at the highest price of a prompt token, plus the requested
// output limit, or the model's. An English token has 4 bytes or more. The tokens that a
// provider's own tools add to the prompt are unknown before the call.
//
// Requested options come from the client's request and from asked, which is nil before
// the provider's request exists.
func (c *call) needOf(o *offer, byok bool, asked *asks) ledger.Need {
	c.asked = asked
	n := ledger.Need{BYOK: byok, Unpriced: o.endpoint.Price == nil, Spent: c.lost.total}
	input, output := c.mostOf(o)
	n.Tokens = input + output
	if p := o.endpoint.Price; p != nil {
		n.Cost = catalog.MostOf(p, input, output, c.tier())
		if asked != nil {
			n.Cost = max(n.Cost, catalog.MostOf(p, input, output, asked.tier), catalog.MostOf(p, input, output, asked.speed))
		}
		n.Cost = n.Cost.Plus(c.mostMedia(p))
	}
	if asked != nil {
		c.needs(&n, asked, o, input)
	}
	return n
}

// soundTokens is the maximum number of tokens per second of sound.
const soundTokens = 20

// mostOf returns the maximum numbers of input and output tokens of a call.
func (c *call) mostOf(o *offer) (input, output int64) {
	input = int64(len(c.body))/3 + 16
	if c.rt.kind == kindTranscription {
		input = min(input, c.seconds()*soundTokens)
	}
	if limit := orDefault(o.endpoint.Context, o.model.Context); limit > 0 {
		input = min(input, limit)
	}
	if c.refers() { // to turns that the provider has
		if before := c.before(); before >= 0 {
			return min(input+before+before/8, orDefault(orDefault(o.endpoint.Context, o.model.Context), math.MaxInt64)), c.mostOut(o)
		}
		input = orDefault(orDefault(o.endpoint.Context, o.model.Context), max(input, defaultContext))
	}
	return input, c.mostOut(o)
}

// before returns the number of tokens of the earlier turns that the request continues, -1
// if unknown.
func (c *call) before() int64 {
	if c.asked == nil {
		return -1
	}
	return c.asked.before
}

// mostOut returns the maximum number of output tokens of a call.
func (c *call) mostOut(o *offer) (output int64) {
	if p := o.endpoint.Price; c.rt.kind == kindLanguage || p != nil && p.Output > 0 {
		output = c.maxOutput
		if c.asked != nil {
			output = max(output, c.asked.output)
		}
		if c.rt.kind == kindImage {
			output = c.perImage()
		}
		output = orDefault(output, orDefault(o.target.MaxOutput, defaultOutput))
	}
	n := max(1, c.copies)
	if c.asked != nil {
		n = max(n, c.asked.copies)
	}
	return output * min(n, maxCopies)
}

// maxCopies is the maximum number of answers that the estimate assumes, and
// maxImageTokens the number of tokens of an image: OpenAI's largest in the best quality.
const (
	maxCopies      = 128
	maxImageTokens = 6240
)

// defaultContext is the number of tokens assumed for a conversation that the request only
// names, if the model's context is unknown.
const defaultContext = 128 << 10

// refers reports whether the request continues a conversation, or uses a prompt, that the
// provider keeps.
func (c *call) refers() bool {
	if c.rt.name != formatResponses {
		return false
	}
	for _, name := range [...]string{"previous_response_id", "conversation", "prompt"} {
		if raw := c.obj.get(name); raw != nil && string(raw) != "null" {
			return true
		}
	}
	return false
}

// tier returns the requested service tier, "" if there is none.
func (c *call) tier() string {
	if raw := c.obj.get("service_tier"); len(raw) > 2 && raw[0] == '"' {
		return clip(gjson.ParseBytes(raw).Str)
	}
	return c.opts.tier
}

// charge is the cost of a call.
type charge struct {
	known     bool
	total     gateway.Money // amount charged
	market    gateway.Money
	in, out   gateway.Money
	version   string
	estimated bool
	searches  int64
	unpriced  []string // parts without a price, not included
	tokens    gateway.Tokens
}

// saw records the result of a tap.
func (c *call) saw(a *attempt, s *hub.Seen) {
	c.outputBytes, a.kept = s.OutputBytes, s.Kept
	c.sawUsage(a, s.Usage, s.Response, s.Finish, s.Complete)
}

// sawUsage records the usage and the result of a finished answer.
func (c *call) sawUsage(a *attempt, u *hub.Usage, r hub.Response, f hub.Finish, complete bool) {
	c.closed = false
	c.usage, c.estimated = u, false
	if u != nil {
		u.Fill()
	}
	if u == nil || u.Input == nil || u.Output == nil || !complete {
		c.estimate(complete)
	}
	a.record.ResponseID = r.ID
	c.keeps(a, r, a.kept)
	c.record.FinishReason = string(f.Reason)
}

// estimate fills in counts that the provider did not send, because the stream broke off
// before them, or the provider does not count. A token is estimated as 4 bytes.
func (c *call) estimate(complete bool) {
	u := hub.Usage{}
	if c.usage != nil {
		u = *c.usage
	}
	input, guess := int64(len(c.body)+3)/4, (c.outputBytes+3)/4+c.unseen
	if c.served != nil { // capped at the call's maximum
		most, mostOut := c.mostOf(c.served.offer)
		if guess = min(guess, mostOut); c.refers() { // a client that leaves early must not pay less
			input = most
		}
		input = min(input, most)
	}
	if u.Input == nil {
		u.Input, u.NoCache = &input, nil
		c.estimated = true
	}
	if u.Output == nil || !complete && *u.Output < guess {
		u.Output, u.Text = &guess, nil
		c.estimated = true
	}
	u.Fill()
	c.usage = &u
}

// forget resets what the call recorded of an attempt, before another attempt.
func (c *call) forget() {
	c.usage, c.outputBytes, c.first = nil, 0, time.Time{}
	c.served, c.started, c.closed, c.estimated = nil, false, false, false
	c.record.FinishReason = ""
}

func (c *call) outputTokens() int64 {
	if c.usage == nil || c.estimated {
		return 0
	}
	return hub.Count(c.usage.Output)
}

// charge computes the cost of the call as known so far: the served answer and the lost
// attempts.
func (c *call) charge() *charge {
	if c.closed {
		return &c.cost
	}
	c.closed = true
	c.cost = c.priced()
	if l := &c.lost; l.total|l.market != 0 || l.unpriced {
		c.cost.total, c.cost.market = c.cost.total.Plus(l.total), c.cost.market.Plus(l.market)
		c.cost.known = c.cost.known && (!l.unpriced || l.total != 0)
		c.cost.version = orDefault(c.cost.version, l.version)
	}
	if c.served == nil { // no answer: the usage is that of the attempts
		c.cost.tokens, c.cost.searches = plusTokens(c.cost.tokens, c.lost.tokens), c.cost.searches+c.lost.searches
	}
	return &c.cost
}

// priced computes the cost of the current answer.
func (c *call) priced() (cost charge) {
	cost.estimated = c.estimated
	u := c.usage
	if u == nil {
		cost.known = !c.started // no provider was called
		return cost
	}
	cost.tokens = gateway.Tokens{
		Input: hub.Count(u.Input), CacheRead: hub.Count(u.CacheRead), CacheWrite: hub.Count(u.CacheWrite), CacheWrite1h: hub.Count(u.CacheWrite1h),
		Output: hub.Count(u.Output), Reasoning: hub.Count(u.Reasoning), Estimated: c.estimated,
	}
	cost.searches = hub.Count(u.Searches)
	if c.served == nil {
		return cost
	}
	o := c.served.offer
	p := o.endpoint.Price
	if u.Model != "" && u.Model != o.endpoint.Model {
		if m, other := c.v.at(o.provider.Name, u.Model); m != nil && m != o.model {
			p = other // a fallback model answered, at its own price
		}
	}
	if p == nil { // the provider's reported cost is better than none
		if cost.market, cost.known = catalog.Reported(u.Cost); cost.known {
			cost.version = reported
			if !c.byok {
				cost.total = cost.market
			}
		}
		return cost
	}
	by := catalog.CostOf(p, u)
	cost.known, cost.version = true, p.Version
	by.Total = by.Total.Plus(c.pieces(p, c.images, c.heard))
	more, unpriced := c.ran(o, u)
	by.Total = by.Total.Plus(more)
	if c.asked != nil && c.asked.fast() && p.ServiceTiers[c.asked.speed] == 0 {
		unpriced = append(unpriced, "speed "+c.asked.speed)
	}
	cost.unpriced = unpriced
	cost.market, cost.in, cost.out = by.Total, by.Input, by.Output
	cost.total = by.Total
	if c.byok {
		cost.total = 0
	}
	return cost
}

// ran returns the cost of the tools that the provider ran, and the names of tools without
// a known price.
func (c *call) ran(o *offer, u *hub.Usage) (cost gateway.Money, unpriced []string) {
	count := func(name string, n int64) {
		if n <= 0 {
			return
		}
		each, known := toolPrice(o, name)
		if !known {
			unpriced = append(unpriced, name)
		}
		cost = cost.Plus(each.Times(n))
	}
	count(c.searchTool(o, u), hub.Count(u.Searches))
	for name, n := range u.Tools {
		count(name, n)
	}
	for i := range u.Others {
		other := &u.Others[i]
		name := other.Model
		if name == "" && c.asked != nil {
			name = c.asked.imageModel()
		}
		_, p := c.v.at(o.provider.Name, orDefault(name, imageModel))
		if p == nil {
			unpriced = append(unpriced, orDefault(name, imageModel))
			continue
		}
		cost = cost.Plus(catalog.CostOf(p, other).Total)
	}
	slices.Sort(unpriced)
	return cost, unpriced
}

// searchTool returns the tool whose price applies to searches: the tool named in the
// answer, else the most expensive one that was requested.
func (c *call) searchTool(o *offer, u *hub.Usage) string {
	name := orDefault(u.SearchTool, "web_search")
	most, _ := toolPrice(o, name)
	if c.asked == nil || u.SearchTool != "" {
		return name
	}
	for _, t := range c.asked.tools {
		if p, known := toolPrice(o, t.name); strings.Contains(t.name, "search") && t.name != "file_search" && (known && p > most || !known && name == "web_search") {
			name, most = t.name, p
		}
	}
	return name
}

// reported is the price version for costs that the provider reported with its answer.
const reported = "reported"

// settle writes the call's record; it does so once.
func (c *call) settle() {
	if c.caller == nil || c.rt.kind == "" { // no caller, or no model call
		return
	}
	if c.record.ID == "" { // the call was refused early
		c.about()
	}
	switch {
	case c.failure != nil && c.failure.Kind == hub.Canceled && c.started:
		c.reckon()
	case c.started && c.usage == nil && c.served != nil: // canceled before data arrived
		c.estimate(false)
	}
	r := &c.record
	begun, status, bytes, _ := c.out.state()
	r.HTTPStatus, r.BytesOut = status, bytes
	now := time.Now()
	r.Latency = millis(now.Sub(c.begun))
	if !c.first.IsZero() {
		r.FirstToken = millis(c.first.Sub(c.begun))
	}
	if r.Cached {
		r.Status = gateway.Succeeded
		c.served, c.started, c.usage = nil, false, nil
	}
	served, by := r.Served, r.Provider
	cost := c.charge()
	r.Tokens, r.Searches, r.BYOK = cost.tokens, cost.searches, c.byok && c.served != nil
	r.Served, r.Provider = served, by
	if c.served != nil {
		r.Served, r.Provider = c.served.model.ID, c.served.provider.Name
	}
	if cost.known {
		r.Cost = &cost.total
		if c.served != nil || c.lost.market != 0 {
			r.MarketCost, r.InputCost, r.OutputCost, r.PriceVersion = &cost.market, &cost.in, &cost.out, cost.version
			r.Unpriced = cost.unpriced
		}
	}
	switch f := c.failure; {
	case f == nil:
		r.Status = gateway.Succeeded
	case f.Kind == hub.Canceled:
		r.Status, r.HTTPStatus = gateway.Cancelled, statusCanceled
		if begun && c.stream { // a whole answer that was not sent is no success
			r.HTTPStatus = status
		}
	case len(r.Attempts) == 0:
		r.Status = gateway.Refused
	default:
		r.Status = gateway.Failed
	}
	if c.failure != nil {
		r.ErrorKind, r.Error = string(c.failure.Kind), c.failure.Message
	}
	c.out.keep(r)
	c.capture(r)
	switch {
	case c.hold != nil:
		c.hold.Settle(r)
		c.hold = nil
		c.e.metrics.Ended(c.ended(now))
	default:
		if l, ok := c.e.cfg.Ledger.(interface{ Record(*gateway.Request) error }); ok {
			if err := l.Record(r); err != nil {
				c.e.log.WarnContext(c.ctx, "the record of a request that was refused could not be kept", "request", c.id, "error", err)
			}
		}
	}
}

// statusCanceled is the status in records of calls whose client left; proxies use the
// same number.
const statusCanceled = 499

func (c *call) ended(now time.Time) Ended {
	r := &c.record
	e := Ended{
		Surface: r.Surface, Kind: r.Kind, Provider: r.Provider, Model: r.Served, Status: string(r.Status), ErrorKind: r.ErrorKind,
		Took: now.Sub(c.begun), Input: r.Tokens.Input, Output: r.Tokens.Output, Priced: r.Cost != nil,
	}
	if !c.first.IsZero() {
		e.FirstToken = c.first.Sub(c.begun)
		if n := r.Tokens.Output; n > 1 && c.stream {
			e.PerOutputToken = now.Sub(c.first) / time.Duration(n-1)
		}
	}
	if r.Cost != nil {
		e.Cost = r.Cost.Dollars()
	}
	return e
}

// headers sets the headers of a whole answer.
func (c *call) headers(h http.Header) {
	if c.hold != nil {
		c.hold.Limits(h)
	}
	c.servedHeaders(h)
	if cost := c.charge(); cost.known {
		h["X-Cay-Cost"] = []string{cost.total.String()}
	}
}

// streamHeaders sets the headers of a stream, whose cost is not yet known.
func (c *call) streamHeaders() {
	h := c.out.w.Header()
	eventHeaders(h, c.hold)
	if c.served != nil {
		c.servedHeaders(h)
	}
}

// servedHeaders sets the headers that name the provider and the model that answered.
func (c *call) servedHeaders(h http.Header) {
	h["X-Cay-Provider"] = []string{c.served.provider.Name}
	if c.served.unlisted() {
		h.Set("X-Cay-Warning", headerText(c.served.warning()))
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
