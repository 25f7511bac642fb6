package ledger

import (
	"math"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/cayhq/cay/gateway"
)

// appendRequest appends a record as the JSON that encoding/json would write, apart from
// white space, in a quarter of the time. Empty Attempts are written as [], never as null.
// A test checks every field.
func appendRequest(dst []byte, r *gateway.Request) []byte {
	o := object{append(dst, '{')}
	o.always("id", r.ID)
	o.time("created_at", r.CreatedAt)
	o.always("team_id", r.TeamID)
	o.always("project_id", r.ProjectID)
	o.always("key_id", r.KeyID)
	o.text("user", r.User)
	o.texts("tags", r.Tags)
	o.text("session", r.Session)
	o.text("deployment", r.Deployment)
	o.text("app", r.App)
	o.always("surface", r.Surface)
	o.always("kind", r.Kind)
	o.always("model", r.Model)
	o.text("served", r.Served)
	o.text("provider", r.Provider)
	o.flag("byok", r.BYOK)
	o.flag("streamed", r.Streamed)
	o.flag("cached", r.Cached)
	o.always("status", string(r.Status))
	o.number("http_status", int64(r.HTTPStatus))
	o.text("error_kind", r.ErrorKind)
	o.text("error", r.Error)
	o.text("finish_reason", r.FinishReason)
	o.tokens(&r.Tokens)
	o.count("searches", r.Searches)
	if o.money("cost", r.Cost); r.Cost == nil {
		o.name("cost")
		o.b = append(o.b, "null"...)
	}
	o.money("market_cost", r.MarketCost)
	o.money("input_cost", r.InputCost)
	o.money("output_cost", r.OutputCost)
	o.text("price_version", r.PriceVersion)
	o.texts("unpriced", r.Unpriced)
	o.millis("latency_ms", r.Latency)
	if r.FirstToken != 0 {
		o.millis("first_token_ms", r.FirstToken)
	}
	o.number("bytes_in", r.BytesIn)
	o.number("bytes_out", r.BytesOut)
	o.text("capture", r.Capture)
	o.name("attempts")
	o.b = append(o.b, '[')
	for i := range r.Attempts {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = appendAttempt(o.b, &r.Attempts[i])
	}
	return append(o.b, "]}"...)
}

func appendAttempt(dst []byte, a *gateway.Attempt) []byte {
	o := object{append(dst, '{')}
	o.always("model", a.Model)
	o.always("provider", a.Provider)
	o.always("provider_model", a.ProviderModel)
	o.flag("byok", a.BYOK)
	o.time("started_at", a.StartedAt)
	o.millis("latency_ms", a.Latency)
	o.count("status", int64(a.Status))
	o.name("ok")
	o.b = strconv.AppendBool(o.b, a.OK)
	o.text("error", a.Error)
	o.text("response_id", a.ResponseID)
	o.money("cost", a.Cost)
	return append(o.b, '}')
}

// object writes the members of a JSON object. Methods that omit zero values are named
// after the type of the value.
type object struct{ b []byte }

// name begins a member. Names need no escapes.
func (o *object) name(name string) {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	o.b = append(o.b, '"')
	o.b = append(o.b, name...)
	o.b = append(o.b, '"', ':')
}

func (o *object) quote(s string) {
	// AppendQuote's error reports that invalid UTF-8 was replaced.
	o.b, _ = jsontext.AppendQuote(o.b, s)
}

func (o *object) always(name, v string) {
	o.name(name)
	o.quote(v)
}

func (o *object) text(name, v string) {
	if v != "" {
		o.always(name, v)
	}
}

func (o *object) texts(name string, v []string) {
	if len(v) == 0 {
		return
	}
	o.name(name)
	for i, s := range v {
		if i == 0 {
			o.b = append(o.b, '[')
		} else {
			o.b = append(o.b, ',')
		}
		o.quote(s)
	}
	o.b = append(o.b, ']')
}

func (o *object) number(name string, v int64) {
	o.name(name)
	o.b = strconv.AppendInt(o.b, v, 10)
}

func (o *object) count(name string, v int64) {
	if v != 0 {
		o.number(name, v)
	}
}

func (o *object) flag(name string, v bool) {
	if v {
		o.name(name)
		o.b = append(o.b, "true"...)
	}
}

func (o *object) time(name string, v time.Time) {
	o.name(name)
	o.b = append(v.UTC().AppendFormat(append(o.b, '"'), time.RFC3339Nano), '"')
}

func (o *object) millis(name string, v gateway.Millis) {
	if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
		v = 0
	}
	o.name(name)
	o.b = strconv.AppendFloat(o.b, float64(v), 'f', -1, 64)
}

func (o *object) money(name string, v *gateway.Money) {
	if v == nil {
		return
	}
	o.name(name)
	o.b, _ = v.AppendText(append(o.b, '"')) // never fails
	o.b = append(o.b, '"')
}

func (o *object) tokens(t *gateway.Tokens) {
	o.name("tokens")
	in := object{append(o.b, '{')}
	in.number("input", t.Input)
	in.count("cache_read", t.CacheRead)
	in.count("cache_write", t.CacheWrite)
	in.count("cache_write_1h", t.CacheWrite1h)
	in.number("output", t.Output)
	in.count("reasoning", t.Reasoning)
	in.flag("estimated", t.Estimated)
	o.b = append(in.b, '}')
}
