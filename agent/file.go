package agent

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/cayhq/cay"
)

func (f *File) check() error {
	given := 0
	for _, yes := range []bool{len(f.Data) > 0, f.URL != "", len(f.Reference) > 0} {
		if yes {
			given++
		}
	}
	if given != 1 {
		return cay.Errorf(cay.Invalid, "the file %.64q has %d of data, URL and reference, and must have one", f.Name, given)
	}
	return nil
}

// tagged returns the data of a file in the form of version 4 of the specification.
func (f *File) tagged() (json.RawMessage, error) {
	switch {
	case f.URL != "":
		return json.Marshal(struct {
			Type string `json:"type"`
			URL  string `json:"url"`
		}{"url", f.URL})
	case len(f.Reference) > 0:
		return json.Marshal(struct {
			Type      string            `json:"type"`
			Reference map[string]string `json:"reference"`
		}{"reference", f.Reference})
	}
	return json.Marshal(struct {
		Type string `json:"type"`
		Data []byte `json:"data"`
	}{"data", f.Data})
}

// readFile reads a file in the form of any version: tagged data, or a string that
// is a URL, a data URL or base64.
func (p *Part) readFile(w *partJSON) error {
	f := &File{MediaType: w.MediaType, Name: w.Filename}
	p.File = f
	data := bytes.TrimSpace(w.Data)
	switch {
	case len(data) == 0 || string(data) == "null":
		if w.URL == "" {
			return cay.Errorf(cay.Invalid, "the file %.64q has no data", w.Filename)
		}
		if err := f.readString(w.URL); err != nil {
			return err
		}
	case data[0] == '"':
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		if err := f.readString(s); err != nil {
			return err
		}
	default:
		if err := f.readTagged(data); err != nil {
			return err
		}
	}
	if f.MediaType == "" && len(f.Data) > 0 {
		f.MediaType, _, _ = strings.Cut(http.DetectContentType(f.Data), ";")
	}
	return f.check()
}

func (f *File) readTagged(data []byte) error {
	var w struct {
		Type      string            `json:"type"`
		Data      string            `json:"data"`
		URL       string            `json:"url"`
		Reference map[string]string `json:"reference"`
		Text      string            `json:"text"`
	}
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	switch w.Type {
	case "data":
		if strings.HasPrefix(w.Data, "data:") {
			return f.readString(w.Data)
		}
		return f.readBase64(w.Data)
	case "url":
		return f.readString(w.URL)
	case "reference":
		f.Reference = w.Reference
	case "text":
		f.Data = []byte(w.Text)
		if f.MediaType == "" {
			f.MediaType = "text/plain"
		}
	default:
		return cay.Errorf(cay.Invalid, "the data of the file %.64q has the type %.64q, not data, url, reference or text", f.Name, w.Type)
	}
	return nil
}

// readString reads a URL, a data URL, or base64.
func (f *File) readString(s string) error {
	rest, isData := strings.CutPrefix(s, "data:")
	if !isData {
		if !strings.Contains(s, "://") {
			return f.readBase64(s)
		}
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return cay.Errorf(cay.Invalid, "the URL of the file %.64q does not begin with http:, https: or data:", f.Name)
		}
		f.URL = s
		return nil
	}
	head, body, ok := strings.Cut(rest, ",")
	if !ok {
		return cay.Errorf(cay.Invalid, "the data URL of the file %.64q has no comma", f.Name)
	}
	head, isBase64 := strings.CutSuffix(head, ";base64")
	if mediaType, _, _ := strings.Cut(head, ";"); mediaType != "" && (f.MediaType == "" || strings.HasSuffix(f.MediaType, "/*")) {
		f.MediaType = mediaType
	}
	if !isBase64 || strings.ContainsRune(body, '%') {
		plain, err := url.PathUnescape(body)
		if err != nil {
			return cay.Errorf(cay.Invalid, "the data URL of the file %.64q is not escaped as URLs are", f.Name)
		}
		body = plain
	}
	if isBase64 {
		return f.readBase64(body)
	}
	f.Data = []byte(body)
	return nil
}

// readBase64 accepts both alphabets, with padding and without.
func (f *File) readBase64(s string) error {
	s = strings.TrimRight(s, "=")
	encoding := base64.RawStdEncoding
	if strings.ContainsAny(s, "-_") {
		encoding = base64.RawURLEncoding
	}
	data, err := encoding.DecodeString(s)
	if err != nil {
		return cay.Errorf(cay.Invalid, "the data of the file %.64q is no base64", f.Name)
	}
	f.Data = data
	return nil
}

// readID reads the id of a file that was uploaded. A string does not name the
// provider: among the AI SDK's providers of that version, only OpenAI accepts a
// string.
func (f *File) readID(id json.RawMessage) error {
	if id[0] != '"' {
		return json.Unmarshal(id, &f.Reference)
	}
	var s string
	err := json.Unmarshal(id, &s)
	f.Reference = map[string]string{"openai": s}
	return err
}
