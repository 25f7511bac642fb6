package api

import (
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/cayhq/cay"
)

const (
	formType = "application/x-www-form-urlencoded"
	maxForm  = 16 << 10 // bytes
)

// ReadForm returns the request's body, a form in which each name occurs at most
// once. Errors: invalid, too_large beyond 16 KiB, deadline_exceeded.
func ReadForm(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	ct := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(ct); err != nil || media != formType {
		return nil, cay.Errorf(cay.Invalid, "the content type is %q", ct).WithHint("send the body as %s", formType)
	}
	body := watchBody(w, r)
	body.setDeadline(time.Now().Add(bodyTimeout))
	b, err := io.ReadAll(http.MaxBytesReader(w, body, maxForm))
	if err != nil {
		return nil, bodyError(err)
	}
	values, err := url.ParseQuery(string(b))
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the request body is not a form") // err may quote it
	}
	for name, v := range values {
		if len(v) > 1 {
			return nil, cay.Errorf(cay.Invalid, "field %.64q is there twice", name)
		}
	}
	return values, nil
}
