package vercelworkflow

import (
	"fmt"
	"reflect"
	"testing"
)

// A run is answered with the same from memory, where its frames are kept, and from the
// database.
func TestEvents_kept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	paths := func() (all []string) {
		base := serverBase + "/v4/runs/" + testRun + "/events"
		for _, q := range []string{"?returnAll=true", "?returnAll=true&limit=2", "?limit=3", "?sortOrder=desc&limit=4", "?remoteRefBehavior=lazy",
			"?cursor=eid:evnt_00000000000000000000000004", "/evnt_00000000000000000000000003"} {
			all = append(all, base+q)
		}
		return append(all, serverBase+"/v4/events?runId="+testRun+"&correlationId=step_1")
	}()
	type answer struct {
		metas  []map[string]any
		bodies []string
	}
	read := func(s *service) (all []answer) {
		for _, path := range paths {
			resp, b := s.do("GET", path, nil)
			if resp.StatusCode != 200 {
				t.Fatalf("%s: %s %s", path, resp.Status, b)
			}
			metas, bodies := s.frames(b)
			all = append(all, answer{metas, bodies})
		}
		return all
	}
	s, stop := openService(t, dir)
	s.T = t
	s.begin()
	for i := range 3 {
		step := fmt.Sprint("step_", i)
		for _, f := range []map[string]any{
			{"eventType": "step_started", "correlationId": step, "stepName": "s", "ownerMessageId": "msg"},
			{"eventType": "step_retrying", "correlationId": step},
			{"eventType": "step_started", "correlationId": step},
			{"eventType": "step_completed", "correlationId": step},
		} {
			f["specVersion"] = 7
			body := ""
			if f["stepName"] != nil || f["eventType"] == "step_completed" {
				body = "devl" + step
			}
			if status, o := s.post(f, body); status != 200 {
				t.Fatalf("%v: %d %v", f, status, o)
			}
			read(s)
		}
	}
	// delta is the log in the answer to an event, as @cayhq/world asks for it.
	delta := func(s *service) []any {
		status, o := s.post(map[string]any{"eventType": "run_started", "specVersion": 7, "sinceCursor": "eid:evnt_00000000000000000000000000"}, "")
		events, _ := o["events"].([]any)
		if status != 200 || len(events) != 2+3*5 {
			t.Fatalf("run_started again: %d %v", status, o)
		}
		return events
	}
	kept, first, again := read(s), delta(s), delta(s)
	stop()
	s, stop = openService(t, dir)
	defer stop()
	stored, after := read(s), delta(s)
	if !reflect.DeepEqual(first, again) || !reflect.DeepEqual(first, after) {
		t.Errorf("the log behind an event is\n%v\nthen\n%v\nafter a restart\n%v", first, again, after)
	}
	for i := range paths {
		if !reflect.DeepEqual(kept[i], stored[i]) {
			t.Errorf("%s: from memory\n%v\nfrom the database\n%v", paths[i], kept[i], stored[i])
		}
	}
}
