package request

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func TestOptions_Headers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before     Options
		user, tags string
		wantUser   string
		wantTags   []string
	}{
		"none":          {Options{User: "a", Tags: []string{"x"}}, "", "", "a", []string{"x"}},
		"both":          {Options{}, "al+ice%40x", "a%2Cb, c", "al ice@x", []string{"a,b", "c"}},
		"options first": {Options{User: "a", Tags: []string{"x"}}, "b", "y", "a", []string{"x", "y"}},
	} {
		o := tt.before
		if err := o.readHeaders(http.Header{userHeader: {tt.user}, tagsHeader: {tt.tags}}); err != nil || o.User != tt.wantUser || !slices.Equal(o.Tags, tt.wantTags) {
			t.Errorf("%s: %q, %q, %v", name, o.User, o.Tags, err)
		}
	}
	for name, h := range map[string]http.Header{
		"an escape": {userHeader: {"%x"}},
		"long":      {userHeader: {strings.Repeat("x", MaxText+1)}},
		"tag":       {tagsHeader: {"a,,b"}},
		"many":      {tagsHeader: {strings.Repeat("a,", maxTexts) + "a"}},
	} {
		if err := new(Options).readHeaders(h); err == nil || err.Kind != hub.BadRequest || !strings.HasPrefix(err.Param, "X-Cay-") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
