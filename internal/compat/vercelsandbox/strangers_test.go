package vercelsandbox

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// Objects of another team or project cannot be used, by any route and however
// they are named: in the path, the query or the body.
func TestStrangers(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	cmd, err := w.Start(w.ctx, w.sandbox.ID, sandbox.CommandParams{Argv: []string{"echo", "said"}})
	if err == nil {
		_, err = w.Wait(w.ctx, w.sandbox.ID, cmd.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	box := w.must(t, tokenA, "POST", "/api/v3/sandboxes", `{"name":"box"}`)
	snap := w.must(t, tokenA, "POST", named+"sessions/"+box.text("session.id")+"/snapshot", "").text("snapshot.id")
	w.must(t, tokenA, "POST", named+"drives/data", "{}")
	drive, err := w.GetDrive(w.ctx, "data")
	if err != nil {
		t.Fatal(err)
	}
	theirs := strings.NewReplacer(
		"ses_00000000000000000000", w.sandbox.SessionID, "sbx_00000000000000000000", w.sandbox.ID, "cmd_00000000000000000000", cmd.ID,
		"snap_00000000000000000000", snap, "/drives/nothing", "/drives/"+drive.ID, "/sandboxes/nothing", "/sandboxes/"+w.sandbox.ID,
		"/projects/nothing", "/projects/prj_a", "/teams/nothing", "/teams/team_a",
	)
	bodies := []string{
		`{"source":{"type":"snapshot","snapshotId":"` + snap + `"}}`,
		`{"mounts":{"/data":{"drive":"` + drive.ID + `"}}}`,
		`{"projectId":"prj_a"}`, `{"projectId":"name-prj_a"}`,
	}
	before := w.must(t, tokenA, "GET", "/api/v2/sandboxes", "").body
	for _, token := range []string{sandboxtest.ProjectB.TokenID, sandboxtest.ProjectA2.TokenID} {
		refused := func(method, path, body string) {
			t.Helper()
			if a := w.service.do(t, token, method, path, body); a.status != http.StatusNotFound && a.status != http.StatusForbidden {
				t.Errorf("%s: %s %s %s: %d %s", token, method, path, body, a.status, a.body)
			}
		}
		for _, p := range paths(t) {
			path := theirs.Replace(p[1])
			if strings.HasSuffix(path, "/interactive") && p[0] == "GET" {
				continue // has tickets
			}
			if path == p[1] || p[0] == "POST" && strings.HasSuffix(path, "/drives/"+drive.ID) {
				continue // belongs to no team; creates a drive of that name
			}
			if strings.HasSuffix(path, "/teams/team_a") && token == sandboxtest.ProjectA2.TokenID {
				continue // its own
			}
			body := `{"duration":1000,"command":"true","path":"x","signal":9,"name":"mine"}`
			if strings.HasSuffix(path, "/network-policy") {
				body = `{"mode":"deny-all"}`
			}
			refused(p[0], path, body)
		}
		for _, body := range bodies {
			refused("POST", "/api/v3/sandboxes", body)
			if !strings.Contains(body, "mounts") { // the older protocol knows no mounts
				refused("POST", "/api/v1/sandboxes", body)
			}
		}
		mine := w.must(t, token, "POST", "/api/v3/sandboxes", `{"name":"mine"}`)
		refused("PATCH", named+"mine", `{"currentSnapshotId":"`+snap+`"}`)
		refused("PATCH", named+"mine", `{"mounts":{"/data":{"drive":"`+drive.ID+`"}}}`)
		refused("POST", named+"mine/fork", `{"mounts":{"/data":{"drive":"`+drive.ID+`"}}}`)
		refused("GET", named+"sessions?name="+w.sandbox.ID, "")
		refused("GET", named+"snapshots/tree?snapshotId="+snap, "")
		own := named + "sessions/" + mine.text("session.id")
		refused("GET", own+"/cmd/"+cmd.ID, "")
		refused("GET", own+"/cmd/"+cmd.ID+"/logs", "")
		refused("POST", own+"/cmd/"+cmd.ID+"/kill", `{"signal":9}`)
		if a := w.must(t, token, "GET", named+"snapshots?name="+w.sandbox.ID, ""); a.at("pagination.count") != float64(0) {
			t.Errorf("%s: snapshots of another's sandbox: %s", token, a.body)
		}
	}
	if after := w.must(t, tokenA, "GET", "/api/v2/sandboxes", "").body; string(after) != string(before) {
		t.Errorf("strangers have changed\n%s to\n%s", before, after)
	}
}
