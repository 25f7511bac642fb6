package vercelworkflow

import (
	"encoding/json"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Analytics list runs and all that their logs have, without payloads and tokens.
func TestAnalytics(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.begin()
	for _, f := range []map[string]any{
		{"eventType": "step_created", "correlationId": "step_1", "stepName": "s"},
		{"eventType": "step_started", "correlationId": "step_1"},
		{"eventType": "step_completed", "correlationId": "step_1"},
		{"eventType": "wait_created", "correlationId": "wait_1", "resumeAt": time.Now().Add(time.Hour).UTC()},
		{"eventType": "hook_created", "correlationId": "hook_1", "hookToken": "secret-token"},
		{"eventType": "hook_received", "correlationId": "hook_1"},
		{"eventType": "attr_set", "correlationId": "attr_1", "changes": []any{map[string]any{"key": "city", "value": "Oslo"}, map[string]any{"key": "country", "value": "Norway"}}},
	} {
		f["specVersion"] = 7
		body := ""
		switch f["eventType"] {
		case "step_created", "step_completed", "hook_received":
			body = "devlsecret-payload"
		}
		if status, o := s.post(f, body); status != http.StatusOK {
			t.Fatalf("%v: %d %v", f, status, o)
		}
	}
	const run = "/v2/analytics/runs/" + testRun
	ids := func(path string) []string {
		t.Helper()
		resp, b := s.do("GET", serverBase+path, nil)
		if resp.StatusCode != http.StatusOK || strings.Contains(string(b), "secret-") {
			t.Fatalf("%s: %s %q", path, resp.Status, b)
		}
		var p struct {
			Data []map[string]any `cbor:"data"`
		}
		if err := decoding.Unmarshal(b, &p); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		var ids []string
		for _, o := range p.Data {
			for _, name := range []string{"stepId", "waitId", "hookId", "eventType", "runId"} {
				if id, ok := o[name].(string); ok {
					state, _ := o["status"].(string)
					ids = append(ids, strings.TrimSuffix(id+" "+state, " "))
					break
				}
			}
		}
		return ids
	}
	oslo, rome := url.QueryEscape(`{"city":"Oslo"}`), url.QueryEscape(`{"city":"Rome"}`)
	for path, want := range map[string]string{
		"/v2/analytics/runs?limit=10&sortOrder=desc":                                         testRun + " running",
		"/v2/analytics/runs?status=completed":                                                "",
		"/v2/analytics/runs?attributes=" + oslo:                                              testRun + " running",
		"/v2/analytics/runs?attributes=" + rome:                                              "",
		"/v2/analytics/runs?startTime=2020-01-01T00:00:00.000Z&endTime=2020-01-02T00:00:00Z": "",
		"/v2/analytics/runs?startTime=2020-01-01T00:00:00.000Z&endTime=2200-01-02T00:00:00Z": testRun + " running",
		run + "/steps":                                  "step_1 completed",
		run + "/waits":                                  "wait_1 waiting",
		run + "/waits?status=completed":                 "",
		"/v2/analytics/hooks?runId=" + testRun:          "hook_1 received",
		run + "/events?correlationId=step_1":            "step_created,step_started,step_completed",
		run + "/events?eventType=hook_created":          "hook_created",
		run + "/events?limit=2":                         "run_created,run_started",
		run + "/events?limit=2&sortOrder=desc&cursor=1": "hook_received,hook_created",
	} {
		if got := strings.Join(ids(path), ","); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	attributes := func(path string) []any {
		t.Helper()
		resp, b := s.do("GET", serverBase+"/v2/analytics/attributes"+path, nil)
		var p struct {
			Data []map[string]any `cbor:"data"`
		}
		if err := decoding.Unmarshal(b, &p); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %v %q", path, resp.Status, err, b)
		}
		var all []any
		for _, o := range p.Data {
			if _, ok := o["firstSeenAt"].(time.Time); !ok || o["lastSeenAt"] != o["firstSeenAt"] {
				t.Errorf("%s: %v", path, o)
			}
			all = append(all, o["key"], o["runCount"])
		}
		return all
	}
	for path, want := range map[string][]any{
		"": {"city", uint64(1), "country", uint64(1)}, "?limit=1": {"city", uint64(1)}, "?sortOrder=desc&limit=1": {"country", uint64(1)},
		"?cursor=1": {"country", uint64(1)}, "?workflowName=other": nil, "?startTime=2020-01-01T00:00:00Z&endTime=2020-01-02T00:00:00Z": nil,
	} {
		if got := attributes(path); !reflect.DeepEqual(got, want) {
			t.Errorf("attributes%s: %v, want %v", path, got, want)
		}
	}
	row := func(path string) map[string]any {
		t.Helper()
		resp, b := s.do("GET", serverBase+path, nil)
		var o map[string]any
		if err := decoding.Unmarshal(b, &o); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %v %q", path, resp.Status, err, b)
		}
		return o
	}
	if o := row(run); o["status"] != "running" || o["workflowName"] != "workflow//./w//f" {
		t.Errorf("the run is %v", o)
	}
	if o := row(run + "/steps/step_1"); o["stepName"] != "s" || o["attempt"] == nil || o["completedAt"] == nil {
		t.Errorf("the step is %v", o)
	}
	if o := row("/v2/analytics/hooks/hook_1?runId=" + testRun); o["receivedAt"] == nil {
		t.Errorf("the hook is %v", o)
	}
	first := "evnt_00000000000000000000000001"
	if o := row(run + "/events/" + first); o["eventType"] != "run_created" || o["deploymentId"] != "dpl_1" {
		t.Errorf("the first event is %v", o)
	}
	asked, err := json.Marshal(map[string]any{"eventIds": []string{first, "evnt_00000000000000000000009999"}})
	if err != nil {
		t.Fatal(err)
	}
	var many []map[string]any
	if resp, b := s.do("POST", serverBase+run+"/events/get-many", asked, "Content-Type", "application/json"); decoding.Unmarshal(b, &many) != nil || len(many) != 1 {
		t.Errorf("of two ids: %s %q", resp.Status, b)
	}
	for path, want := range map[string]int{
		run + "/steps/step_9":               404,
		"/v2/analytics/hooks":               400,
		"/v2/analytics/runs?startTime=soon": 400,
		"/v2/analytics/runs?attributes=%7B": 400,
		run + "/events?limit=x":             400,
	} {
		if resp, b := s.do("GET", serverBase+path, nil); resp.StatusCode != want {
			t.Errorf("%s: %s %q, want %d", path, resp.Status, b, want)
		}
	}
}
