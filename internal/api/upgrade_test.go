package api_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/wire"
)

func TestCheckUpgrade(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		connection []string
		upgrade    string
		body       string
		major      int
		code       cay.Code
	}{
		"OK":           {[]string{"Upgrade"}, wire.UpgradeStream, "", 1, ""},
		"in a list":    {[]string{"keep-alive", "close , UPGRADE"}, strings.ToUpper(wire.UpgradeStream), "", 1, ""},
		"HTTP/2":       {[]string{"Upgrade"}, wire.UpgradeStream, "", 2, cay.NotSupported},
		"no upgrade":   {[]string{"Upgrade"}, "", "", 1, cay.Invalid},
		"other":        {[]string{"Upgrade"}, "websocket", "", 1, cay.Invalid},
		"no token":     {nil, wire.UpgradeStream, "", 1, cay.Invalid},
		"part of word": {[]string{"Upgraded"}, wire.UpgradeStream, "", 1, cay.Invalid},
		"body":         {[]string{"Upgrade"}, wire.UpgradeStream, "x", 1, cay.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest("GET", "/", strings.NewReader(tt.body))
			r.ProtoMajor = tt.major
			r.Header = http.Header{"Connection": tt.connection, "Upgrade": {tt.upgrade}}
			if err := api.CheckUpgrade(r); cay.CodeOf(err) != tt.code {
				t.Errorf("the error is %v, want %q", err, tt.code)
			}
		})
	}
}
