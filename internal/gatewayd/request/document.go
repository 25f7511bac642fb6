package request

import (
	"slices"
	"strings"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// Document is the request in the hub's form. Most calls never decode it.
type Document struct {
	Call       *hub.Call            // nil until it is decoded
	modalities []string             // besides text; see modalitiesOf
	looked     bool                 // for modalities
	files      map[string]*hub.File // fetched files by URL
}

// Decode decodes a request on the first call. key is the caller's, nil for a token.
func (d *Document) Decode(rq *Request, key *gateway.Key) *hub.Error {
	if d.Call != nil {
		return nil
	}
	parsed, err := rq.Route.Surface.ReadCall(rq.HTTP.Header, rq.Raw)
	if err != nil {
		return hub.AsError(err)
	}
	if rq.Capped(key) {
		parsed.MaxOutputTokens = &rq.MaxOutput
	}
	if rq.Options.Tier != "" {
		parsed.ServiceTier = rq.Options.Tier
	}
	for _, name := range rq.Options.Unknown {
		parsed.Warnings = append(parsed.Warnings, hub.Warning{Kind: hub.WarnUnsupported, Feature: "providerOptions.gateway." + name})
	}
	if rq.Options.AutoCache {
		markCache(parsed)
	}
	parsed.Stream = rq.Stream
	d.Call = parsed
	return nil
}

// markCache marks the end of the prompt's stable part, for providers that need an
// explicit cache marker.
func markCache(p *hub.Call) {
	for i := len(p.Prompt) - 1; i >= 0; i-- {
		if m := &p.Prompt[i]; m.Role == hub.System {
			if m.Options["anthropic"]["cacheControl"] == nil {
				m.Options.SetRaw("anthropic", "cacheControl", []byte(`{"type":"ephemeral"}`))
			}
			if m.Options["bedrock"]["cachePoint"] == nil {
				m.Options.SetRaw("bedrock", "cachePoint", []byte(`{"type":"default"}`))
			}
			return
		}
	}
}

// Lacks returns an error if a model cannot read a modality in the request: an image, a
// document, sound, a video. The catalogue decides; a model whose modalities it does not
// list is not excluded. Models that read images are assumed to read documents, because
// their providers convert pages to images.
func (d *Document) Lacks(m *gateway.Model, rq *Request, key *gateway.Key) *hub.Error {
	if len(m.Input) == 0 || rq.Route.Kind != KindLanguage {
		return nil
	}
	for _, what := range d.modalitiesOf(rq, key) {
		if slices.Contains(m.Input, what) || what == "file" && (slices.Contains(m.Input, "image") || slices.Contains(m.Input, "pdf")) {
			continue
		}
		return &hub.Error{Kind: hub.BadRequest, Code: "modality_not_supported", Param: "model", Model: m.ID,
			Message: "the model " + m.ID + " reads " + strings.Join(m.Input, ", ") + ", and the request has " + modalityNames[what] +
				"; ask for another one (the operator can correct what it reads: models, input)"}
	}
	return nil
}

var modalityNames = map[string]string{"image": "an image", "audio": "sound", "video": "a video", "file": "a document"}

// modalitiesOf returns a request's modalities other than text. It is called only where
// the result matters, because it decodes the whole request. For a request that cannot be
// decoded it returns none; Decode reports the error.
func (d *Document) modalitiesOf(rq *Request, key *gateway.Key) []string {
	if d.looked {
		return d.modalities
	}
	d.looked = true
	if rq.Object.Marks&scan.File == 0 || d.Decode(rq, key) != nil {
		return nil
	}
	add := func(p *hub.Part) {
		if p.Kind != hub.FilePart || p.File == nil {
			return
		}
		what, _, _ := strings.Cut(p.File.MediaType, "/")
		switch what {
		case "image", "audio", "video":
		case "application":
			what = "file"
		default: // text, or unknown
			return
		}
		if !slices.Contains(d.modalities, what) {
			d.modalities = append(d.modalities, what)
		}
	}
	for i := range d.Call.Prompt {
		for j := range d.Call.Prompt[i].Parts {
			p := &d.Call.Prompt[i].Parts[j]
			add(p)
			if p.Result != nil {
				for k := range p.Result.Output.Content {
					add(&p.Result.Output.Content[k])
				}
			}
		}
	}
	return d.modalities
}
