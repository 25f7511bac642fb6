package aisdk

import (
	"encoding/json"
	"math"
	"net/http"
	"regexp"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

var (
	imageSize   = regexp.MustCompile(`^[1-9][0-9]{0,4}x[1-9][0-9]{0,4}$`)
	imageAspect = regexp.MustCompile(`^[1-9][0-9]{0,4}:[1-9][0-9]{0,4}$`)
)

// maxImages is the maximum number of images in a request. A client requests all images at
// once; ReadImage does not split the request for a provider.
const maxImages = 256

// imageReader decodes calls of image models.
type imageReader struct{ fileReader }

// ReadImage decodes the request of an image model. Errors: see ReadCall.
func (*Format) ReadImage(head http.Header, body []byte) (*hub.ImageCall, error) {
	if _, err := Version(head); err != nil {
		return nil, err
	}
	c, r := new(hub.ImageCall), new(imageReader)
	r.members(r.open(body), "", func(name, path string, v gjson.Result) { r.member(c, name, path, v) })
	if c.Prompt == "" && len(c.Files) == 0 {
		r.missing("", "prompt")
	}
	if r.err != nil {
		return nil, r.err
	}
	c.Warnings = r.warnings
	return c, nil
}

func (r *imageReader) member(c *hub.ImageCall, name, path string, v gjson.Result) {
	switch name {
	case "prompt":
		c.Prompt = r.text(v, path)
	case "n":
		if n := r.integer(v, path, 1); n != nil && *n <= maxImages {
			c.N = *n
		} else {
			r.want(path, "a whole number from 1 to 256")
		}
	case "size":
		if c.Size = r.text(v, path); !imageSize.MatchString(c.Size) {
			r.want(path, "width and height, as in 1024x1024")
		}
	case "aspectRatio":
		if c.AspectRatio = r.text(v, path); !imageAspect.MatchString(c.AspectRatio) {
			r.want(path, "a ratio such as 16:9")
		}
	case "seed":
		c.Seed = r.integer(v, path, math.MinInt64)
	case "files":
		r.items(v, path, func(path string, v gjson.Result) { c.Files = append(c.Files, r.part(v, path)) })
	case "mask":
		mask := r.part(v, path)
		c.Mask = &mask
	case "providerOptions":
		c.Options = r.options(v, path)
	case "headers":
	default:
		r.unknown(path)
	}
}

// part decodes {type: file, mediaType, data} or {type: url, url}.
func (r *imageReader) part(v gjson.Result, path string) hub.File {
	if !v.IsObject() {
		r.want(path, "an object")
		return hub.File{}
	}
	if kind := v.Get("type").Str; kind != "file" && kind != "url" {
		r.want(join(path, "type"), `"file" or "url"`)
	}
	f, options := r.file(v, path)
	if f.URL != "" && f.MediaType == "application/pdf" { // a guess, and here a wrong one
		f.MediaType = "image/*"
	}
	if len(options) > 0 {
		r.unknown(join(path, "providerOptions"))
	}
	return *f
}

// WriteImage encodes the answer of an image model. r's warnings must include those of the
// call. Images with a URL are an error, because clients accept only bytes; the caller
// must fetch the images.
func (*Format) WriteImage(a hub.Answer, r *hub.ImageResult) ([]byte, error) {
	w := newAnswer(a)
	w.Call = nil
	size := 256
	for i := range r.Images {
		size += len(r.Images[i].Data)*4/3 + 8
	}
	dst := append(make([]byte, 0, size), `{"images":[`...)
	for i := range r.Images {
		if r.Images[i].URL != "" {
			return nil, &hub.Error{Kind: hub.UpstreamFailed, Message: "the provider answered with the address of an image, and AI SDK clients take images themselves only"}
		}
		dst = base64Text(item(dst), r.Images[i].Data)
	}
	dst = append(dst, ']')
	if r.Usage != nil {
		usage := *r.Usage
		usage.Fill()
		dst = append(key(dst, "usage"), '{')
		dst = count(dst, "inputTokens", usage.Input)
		dst = count(dst, "outputTokens", usage.Output)
		if usage.Input != nil && usage.Output != nil {
			dst = count(dst, "totalTokens", hub.N(*usage.Input+*usage.Output))
		}
		dst = append(dst, '}')
	}
	dst = w.imageWarnings(dst, r.Warnings)
	ours := w.ours()
	for i := range r.Images {
		if r.Images[i].RevisedPrompt != "" {
			ours = extend(ours, func(dst []byte) []byte { return revisedPrompts(dst, r.Images) })
			break
		}
	}
	return append(metadata(dst, imageOptions(r.Options), ours), '}'), nil
}

// imageOptions adds a list named images to the metadata of each provider; clients fail
// without it, because they join the lists of several requests.
func imageOptions(o hub.Options) hub.Options {
	var all hub.Options
	for provider, members := range o {
		all.SetRaw(provider, "images", json.RawMessage("[]"))
		for name, v := range members {
			if name != "images" || gjson.ParseBytes(v).IsArray() {
				all.SetRaw(provider, name, v)
			}
		}
	}
	return all
}

// revisedPrompts appends the member images, with one object per image.
func revisedPrompts(dst []byte, images []hub.Image) []byte {
	dst = append(key(dst, "images"), '[')
	for i := range images {
		dst = append(optional(append(item(dst), '{'), "revisedPrompt", images[i].RevisedPrompt), '}')
	}
	return append(dst, ']')
}

// imageWarnings appends the warnings. Version 2 has only one type of warning.
func (w *answer) imageWarnings(dst []byte, list []hub.Warning) []byte {
	if w.Version == "2" {
		plain := make([]hub.Warning, len(list))
		for i, warning := range list {
			plain[i] = hub.Warning{Kind: hub.WarnOther, Message: sentence(warning)}
		}
		list = plain
	}
	return w.warnings(dst, list)
}
