package gatewayd

import (
	"strconv"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
)

// metadata returns the object for providerMetadata.gateway, with the attempts and the
// cost. For the names, which third-party tools read, see section 6.3 of the protocol's
// description.
func (c *call) metadata() []byte {
	served := c.served()
	b := make([]byte, 0, 1024)
	b = append(b, '{')
	b = field(b, "generationId", c.rq.ID)
	if cost := c.charge(); cost.Known {
		b = money(b, "cost", cost.Total)
		if served != nil {
			b = money(b, "marketCost", cost.Market)
			b = money(b, "inferenceCost", cost.Market)
			b = money(b, "inputInferenceCost", cost.In)
			b = money(b, "outputInferenceCost", cost.Out)
		}
	}
	if c.rq.Options.ZeroData {
		b = append(b, `,"enabledZeroDataRetention":true`...)
	}
	if c.rq.Options.NoTraining {
		b = append(b, `,"enabledDisallowPromptTraining":true`...)
	}
	b = append(b, `,"routing":{`...)
	b = field(b, "originalModelId", c.rq.Model)
	if served != nil {
		s := served.o
		b = field(b, "canonicalSlug", s.Model.ID)
		b = field(b, "resolvedProvider", s.Provider.Name)
		b = field(b, "resolvedProviderApiModelId", s.Endpoint.Model)
		b = field(b, "internalResolvedModelId", s.Provider.Name+":"+s.Endpoint.Model)
		b = field(b, "finalProvider", s.Provider.Name)
	}
	b = append(b, `,"fallbacksAvailable":[`...)
	providers := c.trail.providers
	for i, name := range providers[min(1, len(providers)):] {
		if i > 0 {
			b = append(b, ',')
		}
		b = gjson.AppendJSONString(b, name)
	}
	b = append(b, ']')
	b = field(b, "planningReasoning", c.trail.reason)
	if c.plan.Rewritten != "" {
		b = field(b, "internalReasoning", "a rule asks for another model than "+c.plan.Rewritten)
	}
	if c.rq.Options.Sort != "" {
		b = append(b, `,"sort":{`...)
		b = field(b, "option", c.rq.Options.Sort)
		b = append(b, `,"executionOrder":[`...)
		for i, name := range providers {
			if i > 0 {
				b = append(b, ',')
			}
			b = gjson.AppendJSONString(b, name)
		}
		b = append(b, `]}`...)
	}
	if len(c.rq.Options.Unknown) > 0 {
		b = append(b, `,"unknownOptions":[`...)
		for i, name := range c.rq.Options.Unknown {
			if i > 0 {
				b = append(b, ',')
			}
			b = gjson.AppendJSONString(b, name)
		}
		b = append(b, ']')
	}
	// The attempt that serves the call is not in the record yet, because it has not
	// ended.
	all := c.trail.attempts
	models := c.trail.models
	if served != nil && !served.ended {
		now := served.record
		now.OK, now.ProviderModel, now.Latency = c.failure == nil && served.failed == nil, served.o.Endpoint.Model, millis(time.Since(now.StartedAt))
		all = append(all[:len(all):len(all)], now)
		from := 0
		if len(models) > 0 {
			from = models[len(models)-1].to
		}
		models = append(models[:len(models):len(models)], modelAttempt{now.Model, now.Model, now.OK, from, len(all)})
	}
	b = append(b, `,"attempts":`...)
	b = attempts(b, all)
	b = append(b, `,"modelAttempts":[`...)
	for i, m := range models {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		b = field(b, "modelId", m.asked)
		b = field(b, "canonicalSlug", m.model)
		b = append(b, `,"success":`...)
		b = strconv.AppendBool(b, m.ok)
		b = append(b, `,"providerAttemptCount":`...)
		b = appendInt(b, int64(m.to-m.from))
		b = append(b, `,"providerAttempts":`...)
		b = attempts(b, all[m.from:m.to])
		b = append(b, '}')
	}
	b = append(b, `],"modelAttemptCount":`...)
	b = appendInt(b, int64(len(models)))
	b = append(b, `,"totalProviderAttemptCount":`...)
	b = appendInt(b, int64(len(all)))
	return append(b, `}}`...)
}

func attempts(b []byte, all []gateway.Attempt) []byte {
	b = append(b, '[')
	for i := range all {
		a := &all[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		b = field(b, "provider", a.Provider)
		b = field(b, "internalModelId", a.Provider+":"+a.ProviderModel)
		b = field(b, "providerApiModelId", a.ProviderModel)
		kind := "system"
		if a.BYOK {
			kind = "byok"
		}
		b = field(b, "credentialType", kind)
		b = append(b, `,"success":`...)
		b = strconv.AppendBool(b, a.OK)
		start := float64(a.StartedAt.UnixMicro()) / 1000
		b = append(b, `,"startTime":`...)
		b = strconv.AppendFloat(b, start, 'f', -1, 64)
		b = append(b, `,"endTime":`...)
		b = strconv.AppendFloat(b, start+float64(a.Latency), 'f', 3, 64)
		if a.Status != 0 {
			b = append(b, `,"statusCode":`...)
			b = appendInt(b, int64(a.Status))
		}
		if a.Error != "" {
			b = field(b, "error", a.Error)
		}
		if a.ResponseID != "" {
			b = field(b, "providerResponseId", a.ResponseID)
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

// field appends a member to a JSON object.
func field(b []byte, name, value string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	b = append(b, '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return gjson.AppendJSONString(b, value)
}

func money(b []byte, name string, m gateway.Money) []byte { return field(b, name, m.String()) }

// wrapMetadata returns the providerMetadata object.
func wrapMetadata(m []byte) []byte {
	return append(append([]byte(`{"gateway":`), m...), '}')
}
