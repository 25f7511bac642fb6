package aisdk

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// fileReader decodes files.
type fileReader struct{ walker }

// file decodes a file part, in the form of any version:
//
//	file, reasoning-file        data is a string (2, 3) or tagged (4)
//	media                       data is a string (2)
//	file-data, image-data       data is a string (3)
//	file-url, image-url         url (3)
//	file-id, image-file-id      fileId, a string or an object (3)
func (r *fileReader) file(v gjson.Result, path string) (*hub.File, hub.Options) {
	f := new(hub.File)
	var options hub.Options
	given := false
	r.members(v, path, func(name, path string, v gjson.Result) {
		switch name {
		case "type":
		case "mediaType":
			f.MediaType = r.name(v, path)
		case "filename":
			f.Name = r.text(v, path)
		case "data":
			given = true
			r.data(f, v, path)
		case "url":
			given = true
			r.fileURL(f, r.text(v, path), path)
		case "fileId":
			given = true
			r.fileID(f, v, path)
		case "providerOptions":
			options = r.options(v, path)
		default:
			r.unknown(path)
		}
	})
	if !given {
		r.missing(path, "data")
	}
	if kind := v.Get("type").Str; f.MediaType == "" && strings.HasPrefix(kind, "image-") {
		f.MediaType = "image/*"
	}
	r.mediaType(f, path)
	return f, options
}

// data decodes the data of a file: a string in version 2 and 3, or an object that names
// its form.
func (r *fileReader) data(f *hub.File, v gjson.Result, path string) {
	if v.Type == gjson.String {
		r.fileString(f, v.Str, path)
		return
	}
	kind := v.Get("type").Str
	given := false
	r.members(v, path, func(name, path string, v gjson.Result) {
		if name != kind {
			if name != "type" && name != "originalUrl" {
				r.unknown(path)
			}
			return
		}
		given = true
		switch kind {
		case "data":
			r.fileData(f, r.text(v, path), path)
		case "url":
			r.fileURL(f, r.text(v, path), path)
		case "reference":
			r.reference(f, v, path)
		case "text":
			if f.Text = r.name(v, path); f.MediaType == "" {
				f.MediaType = "text/plain"
			}
		}
	})
	switch {
	case kind != "data" && kind != "url" && kind != "reference" && kind != "text":
		r.want(join(path, "type"), `"data", "url", "reference" or "text"`)
	case !given:
		r.missing(path, kind)
	}
}

// fileString decodes a string of version 2 or 3, whose clients send bytes as a data URL:
// a URL, an OpenAI file id, or base64.
func (r *fileReader) fileString(f *hub.File, s, path string) {
	switch {
	case strings.HasPrefix(s, "file-"): // never base64, which has no - here
		f.Reference = map[string]string{"openai": s}
	case strings.HasPrefix(s, "data:"), strings.Contains(s, "://"):
		r.fileURL(f, s, path)
	default:
		r.base64(f, s, path)
	}
}

// fileData decodes base64, or a data URL where base64 is expected.
func (r *fileReader) fileData(f *hub.File, s, path string) {
	if strings.HasPrefix(s, "data:") {
		r.dataURL(f, s, path)
		return
	}
	r.base64(f, s, path)
}

// base64 accepts both alphabets, with or without padding.
func (r *fileReader) base64(f *hub.File, s, path string) {
	s = strings.TrimRight(s, "=")
	encoding := base64.RawStdEncoding
	if strings.ContainsAny(s, "-_") {
		encoding = base64.RawURLEncoding
	}
	data, err := encoding.DecodeString(s)
	if err != nil || len(data) == 0 {
		r.want(path, "base64 of at least one byte, or a URL")
		return
	}
	f.Data = data
}

func (r *fileReader) fileURL(f *hub.File, s, path string) {
	if strings.HasPrefix(s, "data:") {
		r.dataURL(f, s, path)
		return
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		r.want(path, "a URL that begins with http:, https: or data:")
		return
	}
	f.URL = s
}

// dataURL decodes data:<type>[;parameters][;base64],<data>, see RFC 2397.
func (r *fileReader) dataURL(f *hub.File, s, path string) {
	head, body, ok := strings.Cut(strings.TrimPrefix(s, "data:"), ",")
	if !ok {
		r.want(path, "a data URL, which has a comma before its data")
		return
	}
	head, isBase64 := strings.CutSuffix(head, ";base64")
	if mediaType, _, _ := strings.Cut(head, ";"); mediaType != "" && !isFull(f.MediaType) {
		f.MediaType = mediaType
	}
	if isBase64 {
		if strings.ContainsRune(body, '%') {
			body, _ = url.PathUnescape(body) // the base64 decoder reports invalid data
		}
		r.base64(f, body, path)
		return
	}
	text, err := url.PathUnescape(body)
	if err != nil || text == "" {
		r.want(path, "a data URL with data that is escaped as in a URL")
		return
	}
	f.Data = []byte(text)
}

// fileID decodes the id of an uploaded file. If the id is a string, it does not name the
// provider; among the AI SDK's providers of that version, only OpenAI takes a string.
func (r *fileReader) fileID(f *hub.File, v gjson.Result, path string) {
	if v.Type == gjson.String {
		f.Reference = map[string]string{"openai": r.name(v, path)}
		return
	}
	r.reference(f, v, path)
}

func (r *fileReader) reference(f *hub.File, v gjson.Result, path string) {
	ids := make(map[string]string)
	r.members(v, path, func(provider, path string, v gjson.Result) { ids[provider] = r.name(v, path) })
	if len(ids) == 0 {
		r.want(path, "an object with the id of the file by provider")
	}
	f.Reference = ids
}

// isFull reports whether a media type has a specific subtype.
func isFull(mediaType string) bool {
	_, second, ok := strings.Cut(mediaType, "/")
	return ok && second != "" && second != "*"
}

// mediaType fills in a missing media type from the data, or the file name. "image" and
// "image/*" mean the same.
func (r *fileReader) mediaType(f *hub.File, at string) {
	if r.err != nil || isFull(f.MediaType) {
		return
	}
	first, _, _ := strings.Cut(f.MediaType, "/")
	if first == "*" {
		first = ""
	}
	found := ""
	if len(f.Data) > 0 {
		found, _, _ = strings.Cut(http.DetectContentType(f.Data), ";")
	} else if f.URL != "" {
		found = typeOfURL(f.URL)
	}
	switch {
	case found != "" && found != "application/octet-stream" && (first == "" || strings.HasPrefix(found, first+"/")):
		f.MediaType = found
	case first != "":
		f.MediaType = first + "/*"
	case f.Reference != nil:
		f.MediaType = "application/octet-stream" // its provider knows
	case f.URL != "":
		f.MediaType = "application/pdf" // PDF is the type of documents that providers take by URL
	default:
		r.missing(at, "mediaType")
	}
}

// types maps file name extensions to media types of files that models take. The operating
// system's table would make answers depend on the machine.
var types = map[string]string{
	".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp",
	".pdf": "application/pdf", ".txt": "text/plain", ".md": "text/markdown", ".csv": "text/csv", ".html": "text/html", ".json": "application/json",
	".mp3": "audio/mpeg", ".wav": "audio/wav", ".mp4": "video/mp4", ".webm": "video/webm",
}

func typeOfURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	return types[strings.ToLower(path.Ext(u.Path))]
}
