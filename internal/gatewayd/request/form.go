package request

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"unicode/utf8"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Part is a field of a form.
type Part struct {
	Name   string
	Header map[string][]string
	Data   []byte
}

const maxFormParts = 64

// ReadForm reads the parts of a form.
func ReadForm(body []byte, boundary string) (parts []Part, bad *hub.Error) {
	wrong := func(what string) *hub.Error {
		return &hub.Error{Kind: hub.BadRequest, Code: "invalid_form", Message: "the body is no form: " + what}
	}
	r := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		p, err := r.NextRawPart()
		if err == io.EOF {
			return parts, nil
		}
		if err != nil {
			return nil, wrong("it does not end, or a part of it is wrong")
		}
		if len(parts) == maxFormParts {
			return nil, wrong(fmt.Sprintf("it has more than %d parts", maxFormParts))
		}
		data, err := io.ReadAll(p) // at most as large as the body
		if err != nil {
			return nil, wrong("it does not end")
		}
		parts = append(parts, Part{p.FormName(), p.Header, data})
	}
}

// WriteForm encodes the form with another model name.
func WriteForm(parts []Part, model string) (body []byte, contentType string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, p := range parts {
		into, err := w.CreatePart(p.Header)
		if err != nil { // a bytes.Buffer cannot fail
			panic("request: " + err.Error())
		}
		if p.Name == "model" {
			p.Data = []byte(model)
		}
		_, _ = into.Write(p.Data)
	}
	_ = w.Close()
	return b.Bytes(), w.FormDataContentType()
}

// FileName returns the file name of a field, "" for a text field.
func (p *Part) FileName() string {
	for name, values := range p.Header {
		if name != "Content-Disposition" {
			continue
		}
		for _, v := range values {
			_, params, err := mime.ParseMediaType(v)
			if err != nil || !utf8.ValidString(params["filename"]) {
				return v // malformed: guard the whole header
			}
			if params["filename"] != "" {
				return params["filename"]
			}
		}
	}
	return ""
}
