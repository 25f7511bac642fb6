package chatcompletions

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// maxImages is the maximum number of images per call.
const maxImages = 10

// ReadImageCall decodes an images request (POST /v1/images/generations).
func ReadImageCall(body []byte) (*hub.ImageCall, error) {
	root := gjson.ParseBytes(body)
	if !valid(body) || !root.IsObject() {
		return nil, wrong("", "the body must be a JSON object")
	}
	c := new(hub.ImageCall)
	r := &callReader{call: new(hub.Call)}
	root.ForEach(func(key, v gjson.Result) bool {
		switch name := key.Str; {
		case v.Type == gjson.Null:
		case name == "model":
		case name == "prompt":
			c.Prompt = r.text(name, v)
		case name == "n":
			c.N = *r.int(name, v)
			if c.N < 1 || c.N > maxImages {
				r.fail(name, "must be 1 to %d", maxImages)
			}
		case name == "size":
			if size := r.text(name, v); size != "auto" {
				c.Size = size
			}
		case name == "seed":
			c.Seed = r.int(name, v)
		case name == "user":
			c.User = r.text(name, v)
		case name == "response_format":
			if v.Str != "url" && v.Str != "b64_json" {
				r.fail(name, "must be url or b64_json")
			}
		case name == "stream":
			if r.bool(name, v) {
				r.fail(name, "must be false: images are not streamed")
			}
		case name == "providerOptions":
			r.providerOptions(v)
		case imageOptions[name] != "":
			c.Options.SetRaw("openai", imageOptions[name], json.RawMessage(v.Raw))
		default:
			r.warn(hub.WarnUnsupported, name, "")
		}
		return r.err == nil
	})
	if r.err == nil && c.Prompt == "" {
		r.fail("prompt", "is missing or empty")
	}
	if r.err != nil {
		return nil, r.err
	}
	c.Options.Merge(r.call.Options)
	c.Warnings = r.call.Warnings
	return c, nil
}

// imageOptions maps members that only OpenAI knows to their names in the AI SDK.
var imageOptions = map[string]string{
	"quality": "quality", "background": "background", "output_format": "outputFormat", "output_compression": "outputCompression",
	"style": "style", "moderation": "moderation",
}

// WriteImageResult encodes images, in base64 unless the provider gave URLs.
func WriteImageResult(a hub.Answer, r *hub.ImageResult) []byte {
	var b buffer
	b.add("{")
	b.int("created", created(r.Response.Created))
	b.open("data", '[')
	for i := range r.Images {
		image := &r.Images[i]
		b.next()
		b.add("{")
		if image.URL != "" {
			b.text("url", image.URL)
		} else {
			b.key("b64_json")
			b.base64(image.Data)
		}
		if image.RevisedPrompt != "" {
			b.text("revised_prompt", image.RevisedPrompt)
		}
		b.close('}')
	}
	b.close(']')
	if u := r.Usage; u != nil {
		b.open("usage", '{')
		b.int("input_tokens", hub.Count(u.Input))
		b.int("output_tokens", hub.Count(u.Output))
		b.int("total_tokens", hub.Count(u.Input)+hub.Count(u.Output))
		b.close('}')
	}
	if metadata := metadataOf(&a); metadata != nil {
		b.open("providerMetadata", '{')
		b.raw("gateway", metadata)
		b.close('}')
	}
	b.close('}')
	return b
}

// WriteImageCall encodes an images call; the path is /images/generations. Input images
// are refused, because they need another API.
func WriteImageCall(c *hub.ImageCall, t *hub.Target) (*hub.Outgoing, []hub.Warning, error) {
	if len(c.Files) > 0 || c.Mask != nil {
		e := wrong("files", "%s of %s makes images of a prompt alone; it cannot change images", t.Model, t.Provider)
		e.Provider = t.Provider
		return nil, nil, e
	}
	w := &callWriter{c: &hub.Call{}, t: t}
	b := &w.b
	b.add("{")
	b.text("model", t.Model)
	b.text("prompt", c.Prompt)
	if c.N > 0 {
		b.int("n", c.N)
	}
	if c.Size != "" {
		b.text("size", c.Size)
	}
	if c.AspectRatio != "" {
		w.unsupported("aspectRatio")
	}
	if c.Seed != nil {
		if t.Is(OpenAI) {
			w.unsupported("seed")
		} else {
			b.int("seed", *c.Seed)
		}
	}
	if c.User != "" && !t.Is(NoUser) {
		b.text("user", c.User)
	}
	// Newer models always answer in base64 and reject the parameter.
	if !strings.HasPrefix(t.Model, "gpt-image") && !strings.HasPrefix(t.Model, "chatgpt-image") {
		b.text("response_format", "b64_json")
	}
	w.extra(c.Options)
	b.close('}')
	return &hub.Outgoing{Path: "/images/generations", Body: w.b}, w.warnings, nil
}

// ReadImageResult decodes images.
func ReadImageResult(t *hub.Target, body []byte) (*hub.ImageResult, error) {
	root := gjson.ParseBytes(body)
	if err := checkAnswer(t, body, root); err != nil {
		return nil, err
	}
	r := new(hub.ImageResult)
	if n := root.Get("created"); n.Num > 0 && n.Num < 1<<40 {
		r.Response.Created = time.Unix(n.Int(), 0).UTC()
	}
	mediaType := ""
	if f := root.Get("output_format").Str; f != "" {
		mediaType = "image/" + f
	}
	for _, v := range list(root.Get("data")).Array() {
		image := hub.Image{URL: v.Get("url").Str, RevisedPrompt: v.Get("revised_prompt").Str}
		if data := v.Get("b64_json").Str; data != "" {
			raw, err := decodeBase64(data)
			if err != nil {
				return nil, nonsense(t, "one of its images is no base64")
			}
			image.Data, image.URL = raw, ""
			if image.MediaType = mediaType; mediaType == "" {
				image.MediaType = sniff(raw, "")
			}
		}
		if image.Data == nil && image.URL == "" {
			return nil, nonsense(t, "one of its images is none")
		}
		r.Images = append(r.Images, image)
	}
	if len(r.Images) == 0 {
		return nil, nonsense(t, "it answered with no images")
	}
	if u := root.Get("usage"); u.IsObject() {
		r.Usage = &hub.Usage{Input: count(u.Get("input_tokens")), Output: count(u.Get("output_tokens")), Raw: json.RawMessage(u.Raw)}
		r.Usage.Fill()
	}
	return r, nil
}
