package guest

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

// The answers of a hostile guest are bounded and fit to show, and the client believes
// nothing important in them.
func TestIdentify_hostile(t *testing.T) {
	t.Parallel()
	req := IdentityRequest{Sandbox: "sbx_1", Hostname: "one"}
	asked := 0
	refuses := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusUnauthorized)
	})
	if _, err := refuses.Identify(t.Context(), req, "new"); cay.CodeOf(err) != cay.Unavailable || asked != 3 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	if got := *refuses.token.Load(); got != bearer("token") {
		t.Errorf("shows %q now", got)
	}
	lies := hostile(t, answer(`{"sandbox":"\u001b[31m","boot_id":"`+strings.Repeat("x", 5000)+`","problem":"\u202e"}`))
	id, err := lies.Identify(t.Context(), req, "new")
	if err != nil || strings.ContainsAny(id.Sandbox+id.Problem, "\x1b\u202e") || len(id.BootID) > 2*maxErrorText {
		t.Errorf("%q, %v", id, err)
	}
	if got := *lies.token.Load(); got != bearer("new") {
		t.Errorf("shows %q now", got)
	}
}

func TestQuiesce_hostile(t *testing.T) {
	t.Parallel()
	c := hostile(t, answer(`{"killed":-5,"named":[`+strings.Repeat(`{"pid":-1,"command":"\u001b"},`, 1000)+`{}]}`))
	q, err := c.Quiesce(t.Context(), time.Second)
	if err != nil || q.Killed != 0 || len(q.Named) != MaxKilledShown || strings.Contains(q.Named[0].Command, "\x1b") {
		t.Errorf("%+v, %v", q, err)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"hostname":"a","token_sha256":"` + HashToken("t") + `","owned":["/d"],"machine_id":"` + strings.Repeat("a", 32) + `"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil {
			if cay.CodeOf(err) != cay.Invalid {
				t.Errorf("%v has code %s", err, cay.CodeOf(err))
			}
			return
		}
		if strings.ContainsAny(c.Hostname, "\n \x00") || len(c.Hostname) > 63 || c.WorkDir[0] != '/' || c.Port == 0 {
			t.Errorf("%+v", c)
		}
		for _, dir := range c.Owned {
			if dir[0] != '/' {
				t.Errorf("owned: %q", dir)
			}
		}
	})
}
