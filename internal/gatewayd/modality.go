package gatewayd

import (
	"slices"
	"strings"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// lacks returns an error if a model cannot read a modality in the request: an image, a
// document, sound, a video. The catalogue decides; a model whose modalities it does not
// list is not excluded. Models that read images are assumed to read documents, because
// their providers convert pages to images.
func (c *call) lacks(m *gateway.Model) *hub.Error {
	if len(m.Input) == 0 || c.rt.kind != kindLanguage {
		return nil
	}
	for _, what := range c.modalities() {
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

// modalities returns the request's modalities other than text. It is called only where
// the result matters, because it decodes the whole request. For a request that cannot be
// decoded it returns none; decode reports the error.
func (c *call) modalities() []string {
	if c.looked {
		return c.media
	}
	c.looked = true
	if c.obj.marks&marksFile == 0 || c.decode() != nil {
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
		if !slices.Contains(c.media, what) {
			c.media = append(c.media, what)
		}
	}
	for i := range c.parsed.Prompt {
		for j := range c.parsed.Prompt[i].Parts {
			p := &c.parsed.Prompt[i].Parts[j]
			add(p)
			if p.Result != nil {
				for k := range p.Result.Output.Content {
					add(&p.Result.Output.Content[k])
				}
			}
		}
	}
	return c.media
}
