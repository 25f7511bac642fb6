package settings

import (
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/gatewayd/capture"
	"github.com/cayhq/cay/internal/gatewayd/guard"
)

// Capture configures the storage of request and answer bodies; it is off by default.
type Capture struct {
	Requests bool  `yaml:"requests"`
	Answers  bool  `yaml:"answers"`
	Spans    bool  `yaml:"spans"`  // puts the texts of requests and answers into the calls' spans, if spans are exported
	Keys     Texts `yaml:"keys"`   // ids; default: all
	Models   Texts `yaml:"models"` // patterns; default: all
	// Redact lists patterns to redact before storage: the same patterns as in guards,
	// with the action redact. Default: email, card, iban and key; an empty list redacts
	// nothing.
	Redact    *[]Pattern    `yaml:"redact"`
	Max       config.Size   `yaml:"max"`       // of each body; 256 KiB
	Retention time.Duration `yaml:"retention"` // 168h
	Quota     config.Size   `yaml:"quota"`     // of all; 1 GiB
}

// capture compiles the capture rules.
func (b *builder) capture() error {
	c := &b.file.Capture
	spans := c.Spans
	switch strings.ToUpper(b.first("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT")) {
	case "TRUE", "SPAN_ONLY", "SPAN_AND_EVENT": // the second and third are of its newer versions
		spans = true
	}
	if !c.Requests && !c.Answers && !spans {
		if len(c.Keys)+len(c.Models) > 0 || c.Redact != nil || c.Max != 0 || c.Retention != 0 || c.Quota != 0 {
			return cay.Errorf(cay.Invalid, "none of requests, answers and spans is true, so nothing is kept")
		}
		return nil
	}
	r := &capture.Rules{Requests: c.Requests, Answers: c.Answers, Spans: spans, Keys: c.Keys, Models: c.Models, Max: int64(c.Max), Quota: int64(c.Quota), Retention: c.Retention}
	if err := r.Check(); err != nil {
		return err
	}
	patterns := []guard.Pattern{{Preset: "email"}, {Preset: "card"}, {Preset: "iban"}, {Preset: "key"}}
	if c.Redact != nil {
		patterns = nil
		for i, p := range *c.Redact {
			if p.Action != "" && p.Action != "redact" {
				return at(cay.Errorf(cay.Invalid, "%q is not redact", p.Action), "redact", i, "action")
			}
			g := guard.Pattern{Name: p.Name, Preset: p.Preset, Regex: p.Regex, Words: p.Words}
			if _, err := guard.NewRedactor([]guard.Pattern{g}); err != nil {
				_, what, _ := strings.Cut(err.Error(), ": ") // without "redact[0]"
				return at(cay.Errorf(cay.Invalid, "%s", what), "redact", i)
			}
			patterns = append(patterns, g)
		}
	}
	var err error
	if r.Redact, err = guard.NewRedactor(patterns); err != nil {
		return err
	}
	b.snapshot.Capture = r
	return nil
}
