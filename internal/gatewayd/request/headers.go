package request

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// These headers say for whom and for what purpose a request is made, for clients that
// cannot put options into the body, such as gateway.Transport. Values are query-escaped,
// tags are separated by commas. A user in the body's options takes precedence; tags are
// combined.
const (
	userHeader = "X-Cay-User"
	tagsHeader = "X-Cay-Tags"
)

// readHeaders adds the options in headers to those of the body.
func (o *Options) readHeaders(h http.Header) *hub.Error {
	if v := h.Get(userHeader); v != "" && o.User == "" {
		user, err := url.QueryUnescape(v)
		if err != nil || len(user) > MaxText {
			return wrongHeader(userHeader, "a query-escaped text of at most "+strconv.Itoa(MaxText)+" bytes")
		}
		o.User = user
	}
	v := h.Get(tagsHeader)
	if v == "" {
		return nil
	}
	for part := range strings.SplitSeq(v, ",") {
		tag, err := url.QueryUnescape(strings.TrimSpace(part))
		if err != nil || tag == "" || len(tag) > MaxText || len(o.Tags) == maxTexts {
			return wrongHeader(tagsHeader, "query-escaped texts of at most "+strconv.Itoa(MaxText)+" bytes with commas between, at most "+strconv.Itoa(maxTexts)+" with those of the body")
		}
		o.Tags = append(o.Tags, tag)
	}
	return nil
}

func wrongHeader(name, want string) *hub.Error {
	return &hub.Error{Kind: hub.BadRequest, Param: name, Message: "the header " + strings.ToLower(name) + " must be " + want}
}
