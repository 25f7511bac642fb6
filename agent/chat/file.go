package chat

import (
	"encoding/base64"
	"net/url"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
)

// file converts a file.
func file(typ agent.PartType, p *UIPart, at string) (*agent.Part, error) {
	if err := checkOptions(p.ProviderMetadata, at); err != nil {
		return nil, err
	}
	f := &agent.File{MediaType: p.MediaType, Name: p.Filename}
	scheme, rest, _ := strings.Cut(p.URL, ":")
	switch scheme = strings.ToLower(scheme); {
	case len(p.ProviderReference) > 0:
		f.Reference = p.ProviderReference
	case scheme == "http" || scheme == "https":
		if u, err := url.Parse(p.URL); err != nil || u.Host == "" {
			return nil, cay.Errorf(cay.Invalid, "%s.url is no URL", at)
		}
		f.URL = p.URL
	case scheme == "data":
		mediaType, data, err := decodeDataURL(rest)
		if err != nil {
			return nil, cay.Errorf(cay.Invalid, "%s.url: %w", at, err)
		}
		if len(data) == 0 {
			return nil, cay.Errorf(cay.Invalid, "%s is an empty file", at)
		}
		f.Data = data
		if f.MediaType == "" {
			f.MediaType = mediaType
		}
	default:
		return nil, cay.Errorf(cay.Invalid, "%s.url is neither http, https nor data", at)
	}
	if f.MediaType == "" {
		return nil, cay.Errorf(cay.Invalid, "%s has no mediaType", at)
	}
	return &agent.Part{Type: typ, File: f, Options: p.ProviderMetadata}, nil
}

// decodeDataURL reads the part after "data:" (RFC 2397). It accepts base64 with
// and without padding, in both alphabets, as browsers and the AI SDK do.
func decodeDataURL(s string) (mediaType string, data []byte, err error) {
	head, body, ok := strings.Cut(s, ",")
	if !ok {
		return "", nil, cay.Errorf(cay.Invalid, "a data URL without a comma")
	}
	mediaType, _, _ = strings.Cut(head, ";")
	text, err := url.PathUnescape(body)
	if err != nil {
		return "", nil, cay.Errorf(cay.Invalid, "a data URL whose escapes are wrong")
	}
	if !strings.HasSuffix(strings.ToLower(head), ";base64") {
		return mediaType, []byte(text), nil
	}
	text = strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(text), "=")
	data, err = base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return "", nil, cay.Errorf(cay.Invalid, "a data URL whose base64 is wrong")
	}
	return mediaType, data, nil
}
