package vercelworkflow

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// The answer to a health check reaches whoever reads it, before it was written or after; a
// health check of another project has the same name and nothing in common with it.
func TestChecks(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for i, reads := range []string{
		"/v3/runs/wrun_hc_01M8BS0000000000000000000A/stream/", // the 5.0 line
		"/v2/stream/", // the 4.7 line
	} {
		name := "__health_check__01M8BS0000000000000000000" + fmt.Sprint(i)
		early := make(chan string, 1)
		go func() {
			_, b := s.do("GET", serverBase+reads+name, nil)
			early <- string(b)
		}()
		writes := serverBase + "/v2/runs/wrun_hc_01M8BS0000000000000000000A/stream/" + name
		for _, part := range []string{`{"healthy":`, `true}`} {
			if resp, b := s.do("PUT", writes, []byte(part)); resp.StatusCode != http.StatusNoContent {
				t.Fatalf("PUT: %s %s", resp.Status, b)
			}
		}
		for range 2 { // closing again is no error
			if resp, b := s.do("PUT", writes, nil, "X-Stream-Done", "true"); resp.StatusCode != http.StatusNoContent {
				t.Fatalf("close: %s %s", resp.Status, b)
			}
		}
		_, late := s.do("GET", serverBase+reads+name, nil)
		for _, got := range []string{<-early, string(late)} {
			if got != `{"healthy":true}` {
				t.Errorf("%s reads %q", reads, got)
			}
		}
		if resp, b := s.do("PUT", writes, []byte("more"), "Authorization", "Bearer prj_b"); resp.StatusCode != http.StatusNoContent {
			t.Errorf("another project: %s %s", resp.Status, b)
		}
		if _, b := s.do("GET", serverBase+reads+name, nil); string(b) != `{"healthy":true}` {
			t.Errorf("after another project has written, it reads %q", b)
		}
	}
	long := strings.Repeat("x", maxCheck+1)
	if resp, _ := s.do("PUT", serverBase+"/v2/stream/__health_check__long", []byte(long)); resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a long answer: %s", resp.Status)
	}
}

// The newest answers are kept.
func TestChecks_bound(t *testing.T) {
	var c checks
	for i := range 2 * maxChecks {
		if err := c.write("prj_a", fmt.Sprint(i), [][]byte{{1}}, true); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.held) != maxChecks {
		t.Errorf("%d answers are kept, want %d", len(c.held), maxChecks)
	}
	if b, err := c.read(t.Context(), "prj_a", fmt.Sprint(2*maxChecks-1)); err != nil || len(b) != 1 {
		t.Errorf("the newest answer is %v, %v", b, err)
	}
}
