package aisdk

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Credits returns the answer to GET /v1/credits: the remaining amount and the amount
// spent. The protocol has both as strings.
func Credits(balance, used gateway.Money) []byte {
	dst := text([]byte{'{'}, "balance", balance.String())
	return append(text(dst, "total_used", used.String()), '}')
}

// Generation returns the answer to GET /v1/generation: the record of a request. The
// protocol has costs as numbers, and clients accept nothing else: an unknown cost is 0,
// together with our own member unpriced, which is true.
func Generation(r *gateway.Request) []byte {
	cost := gateway.Money(0)
	if r.Cost != nil {
		cost = *r.Cost
	}
	upstream := gateway.Money(0) // charged to the caller's own key
	if r.BYOK && r.MarketCost != nil {
		upstream = *r.MarketCost
	}
	model := r.Served
	if model == "" {
		model = r.Model
	}
	first := r.FirstToken
	if first == 0 {
		first = r.Latency // a whole answer arrives at once
	}
	dst := text([]byte(`{"data":{`), "id", r.ID)
	dst = money(dst, "total_cost", cost)
	dst = money(dst, "upstream_inference_cost", upstream)
	dst = money(dst, "usage", cost)
	if r.MarketCost != nil {
		dst = money(dst, "market_cost", *r.MarketCost)
	}
	if r.Cost != nil {
		dst = money(dst, "gateway_cost", cost)
	}
	dst = yes(dst, "unpriced", r.Cost == nil)
	dst = text(dst, "created_at", r.CreatedAt.UTC().Format("2006-01-02T15:04:05.000Z"))
	dst = text(dst, "model", model)
	dst = boolean(dst, "is_byok", r.BYOK)
	dst = text(dst, "provider_name", r.Provider)
	dst = boolean(dst, "streamed", r.Streamed)
	dst = text(dst, "finish_reason", finishOf(r))
	dst = millis(dst, "latency", first)
	dst = millis(dst, "generation_time", r.Latency)
	dst = number(dst, "native_tokens_prompt", r.Tokens.Input)
	dst = number(dst, "native_tokens_completion", r.Tokens.Output)
	dst = number(dst, "native_tokens_reasoning", r.Tokens.Reasoning)
	dst = number(dst, "native_tokens_cached", r.Tokens.CacheRead)
	dst = number(dst, "native_tokens_cache_creation", r.Tokens.CacheWrite)
	dst = number(dst, "billable_web_search_calls", r.Searches)
	return append(dst, '}', '}')
}

// finishOf returns the finish reason; failed requests have one, too.
func finishOf(r *gateway.Request) string {
	switch {
	case r.FinishReason != "":
		return r.FinishReason
	case r.Status == gateway.Failed || r.Status == gateway.Refused:
		return "error"
	}
	return "other"
}

// Report is a request for GET /v1/report.
type Report struct {
	// Spend selects the requests to add up.
	Spend gateway.SpendParams

	group, member, credential string
}

// groups maps the values of group_by to those of SpendParams.By.
var groups = map[string]string{
	"day": "day", "hour": "hour", "user": "user", "model": "model", "tag": "tag", "provider": "provider", "credential_type": "credential",
}

// maxReportTags is the maximum number of tags in a report.
const maxReportTags = 32

// maxReportDays is the maximum number of days in a report.
const maxReportDays = 366

// ReadReport reads the query of GET /v1/report. start_date and end_date are days
// (2026-11-20), both included. If several tags are given, a request must have at least
// one of them. Errors are *hub.Error of the kind BadRequest and name the parameter.
func ReadReport(query url.Values) (*Report, error) {
	r := &Report{member: query.Get("group_by"), credential: query.Get("credential_type")}
	if r.member == "" {
		r.member = "day"
	}
	if part := query.Get("date_part"); part == "hour" && r.member == "day" {
		r.member = "hour"
	} else if part != "" && part != "day" && part != "hour" {
		return nil, wrong("date_part", "day or hour")
	}
	if r.group = groups[r.member]; r.group == "" {
		return nil, wrong("group_by", "day, user, model, tag, provider or credential_type")
	}
	r.Spend.By = []string{r.group}
	switch r.credential {
	case "":
	case "byok", "system":
		if r.group != "credential" {
			r.Spend.By = append(r.Spend.By, "credential")
		}
	default:
		return nil, wrong("credential_type", "byok or system")
	}
	var err error
	if r.Spend.Since, err = time.Parse(time.DateOnly, query.Get("start_date")); err != nil {
		return nil, wrong("start_date", "a day, as in 2026-11-20")
	}
	last, err := time.Parse(time.DateOnly, query.Get("end_date"))
	if err != nil {
		return nil, wrong("end_date", "a day, as in 2026-11-20")
	}
	r.Spend.Until = last.AddDate(0, 0, 1)
	if !r.Spend.Since.Before(r.Spend.Until) || r.Spend.Until.Sub(r.Spend.Since) > maxReportDays*24*time.Hour {
		return nil, wrong("end_date", "not before start_date, and at most "+strconv.Itoa(maxReportDays)+" days after it")
	}
	r.Spend.User, r.Spend.Model, r.Spend.Provider = query.Get("user_id"), query.Get("model"), query.Get("provider")
	for _, list := range query["tags"] {
		for tag := range strings.SplitSeq(list, ",") {
			if tag = strings.TrimSpace(tag); tag != "" {
				r.Spend.Tags = append(r.Spend.Tags, tag)
			}
		}
	}
	if len(r.Spend.Tags) > maxReportTags {
		return nil, wrong("tags", "at most "+strconv.Itoa(maxReportTags)+" tags")
	}
	return r, nil
}

func wrong(param, want string) *hub.Error {
	return &hub.Error{Kind: hub.BadRequest, Param: param, Message: param + " must be " + want}
}

// Write returns the answer with the rows that r.Spend selects. Costs are numbers.
func (r *Report) Write(rows []gateway.Spend) []byte {
	dst := []byte(`{"results":[`)
	for i := range rows {
		row := &rows[i]
		if r.credential != "" && row.Group["credential"] != r.credential {
			continue
		}
		dst = text(append(item(dst), '{'), r.member, row.Group[r.group])
		dst = money(dst, "total_cost", row.Cost)
		dst = money(dst, "market_cost", row.MarketCost)
		dst = number(dst, "input_tokens", row.Tokens.Input)
		dst = number(dst, "output_tokens", row.Tokens.Output)
		dst = number(dst, "cached_input_tokens", row.Tokens.CacheRead)
		dst = number(dst, "cache_creation_input_tokens", row.Tokens.CacheWrite)
		dst = number(dst, "reasoning_tokens", row.Tokens.Reasoning)
		dst = number(dst, "request_count", row.Requests)
		if row.Unpriced > 0 { // our own member: the costs exclude unpriced requests
			dst = number(dst, "unpriced_count", row.Unpriced)
		}
		dst = append(dst, '}')
	}
	return append(dst, ']', '}')
}

// money appends an amount as a number, which is exact in JSON but may lose precision in
// clients.
func money(dst []byte, name string, m gateway.Money) []byte {
	return append(key(dst, name), m.String()...)
}

func number(dst []byte, name string, n int64) []byte { return count(dst, name, &n) }

func millis(dst []byte, name string, m gateway.Millis) []byte {
	return appendFloat(key(dst, name), float64(m))
}

func boolean(dst []byte, name string, value bool) []byte {
	return strconv.AppendBool(key(dst, name), value)
}
