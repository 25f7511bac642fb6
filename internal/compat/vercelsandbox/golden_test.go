package vercelsandbox

import (
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
)

// Every route: reviewers see each change of the API.
func TestRoutes(t *testing.T) {
	mux := api.NewMux(callers{})
	Routes(mux, Config{})
	golden(t, "routes.txt", []byte(strings.Join(mux.Routes(), "\n")+"\n"))
}

// The complete answers of the protocol.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		name  string
		story func(t *testing.T, s *script)
	}{
		{"sandbox", sandboxStory},
		{"snapshots", snapshotStory},
		{"drives", driveStory},
		{"v1", v1Story},
		{"errors", errorStory},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t).script(sandboxtest.ProjectA.TokenID)
			c.story(t, s)
			golden(t, c.name+".txt", s.out.Bytes())
		})
	}
}

const named = "/api/v2/sandboxes/"

func sandboxStory(t *testing.T, s *script) {
	s.step(t, "POST", "/api/v3/sandboxes", `{"projectId":"prj_a","name":"box","ports":[3000,8080],"timeout":600000,"resources":{"vcpus":4},
		"env":{"A":"1"},"tags":{"env":"test"},"region":"sfo1","failoverRegions":["iad1","cle1"],"networkId":"net_1","snapshotExpiration":0,
		"keepLastSnapshots":{"count":3,"expiration":604800000},"__interactive":true,"__other":[1],"more":null,
		"networkPolicy":{"allow":{"api.example.com":[{"transform":[{"headers":{"authorization":"secret"}}]}]},"subnets":{"deny":["10.0.0.0/8"]}}}`)
	s.step(t, "GET", named+"box?projectId=prj_a", "")
	s.step(t, "GET", named+"box?projectId=prj_a&__includeSystemRoutes=true", "")
	sid := s.step(t, "GET", named+"box?projectId=name-prj_a&resume=true", "").text("session.id")
	s.step(t, "GET", named+"sessions/"+sid, "")
	s.Clock.Advance(5 * time.Second)
	s.step(t, "POST", named+"sessions/"+sid+"/extend-timeout", `{"duration":60000}`)
	s.step(t, "POST", named+"sessions/"+sid+"/network-policy", `{"mode":"deny-all"}`)
	s.step(t, "POST", named+"sessions/"+sid+"/stop", "")
	s.step(t, "POST", named+"sessions/"+sid+"/stop", "{}")
	s.step(t, "PATCH", named+"box?projectId=prj_a", `{"resources":{"vcpus":2,"memory":4096},"timeout":30000,"persistent":false,"env":{},"tags":{},
		"ports":[],"networkId":null,"keepLastSnapshots":null,"snapshotExpiration":86400000,"failoverRegions":[],"networkPolicy":{"mode":"allow-all"}}`)
	s.Clock.Advance(time.Second)
	s.step(t, "GET", named+"box?projectId=prj_a&resume=true", "")
	s.step(t, "GET", "/api/v2/sandboxes?project=prj_a&limit=1", "")
	s.step(t, "GET", named+"sessions?project=prj_a&name=box&sortOrder=asc&limit=1", "")
	s.step(t, "GET", named+"sessions?project=prj_a", "")
	s.step(t, "POST", named+"box/fork?projectId=prj_a", `{"name":"copy","tags":{"of":"box"},"__interactive":true}`)
	s.step(t, "DELETE", named+"copy?projectId=prj_a", "")
}

func snapshotStory(t *testing.T, s *script) {
	s.step(t, "POST", "/api/v2/sandboxes", `{"projectId":"prj_a","name":"box","runtime":"node22","persistent":false}`)
	a := s.must(t, s.token, "GET", named+"box", "")
	first := s.step(t, "POST", named+"sessions/"+a.text("session.id")+"/snapshot", `{"expiration":86400000}`).text("snapshot.id")
	s.Clock.Advance(time.Second)
	a = s.must(t, s.token, "GET", named+"box?resume=true", "")
	s.step(t, "POST", "/v3/sandboxes/sessions/"+a.text("session.id")+"/snapshot", "")
	s.step(t, "GET", named+"snapshots?project=prj_a&name=box&limit=1", "")
	s.step(t, "GET", named+"snapshots?project=prj_a&sortOrder=asc", "")
	s.step(t, "GET", named+"snapshots/tree?project=prj_a&snapshotId="+first+"&sortOrder=asc&limit=1", "")
	s.step(t, "GET", named+"snapshots/"+first, "")
	s.step(t, "DELETE", named+"snapshots/"+first, "")
	s.step(t, "GET", named+"snapshots/"+first, "")
	s.step(t, "DELETE", named+"box?deleteOrphanSnapshots=true", "")
	s.step(t, "GET", named+"snapshots?project=prj_a", "")
}

func driveStory(t *testing.T, s *script) {
	s.step(t, "POST", named+"drives/data", `{"projectId":"prj_a","maxSizeBytes":20000000,"region":"fra1"}`)
	s.step(t, "POST", named+"drives/data", `{"projectId":"prj_a"}`)
	s.must(t, s.token, "POST", "/api/v3/sandboxes", `{"projectId":"prj_a","name":"box","mounts":{"/data":{"drive":"data"}}}`)
	s.step(t, "GET", named+"box", "")
	s.step(t, "GET", named+"drives/data?projectId=prj_a", "")
	s.step(t, "DELETE", named+"drives/data?projectId=prj_a", "")
	s.step(t, "POST", named+"drives/data/fork?projectId=prj_a", `{"name":"copy"}`)
	s.step(t, "GET", named+"drives?projectId=prj_a&sortBy=name&sortOrder=asc", "")
	s.step(t, "GET", named+"drives?projectId=prj_a&namePrefix=co&limit=1", "")
	s.step(t, "DELETE", named+"drives/copy?projectId=prj_a", "")
}

func v1Story(t *testing.T, s *script) {
	id := s.step(t, "POST", "/api/v1/sandboxes", `{"projectId":"prj_a","ports":[3000],"runtime":"node24","__interactive":true,"name":"no"}`).text("sandbox.id")
	s.step(t, "GET", "/api/v1/sandboxes/"+id, "")
	s.step(t, "GET", "//v1/sandboxes/"+id+"?__includeSystemRoutes=true", "")
	s.step(t, "GET", "/api/v1/sandboxes?project=prj_a", "")
	s.step(t, "POST", "/api/v1/sandboxes/"+id+"/extend-timeout", `{"duration":60000}`)
	s.step(t, "POST", "/api/v1/sandboxes/"+id+"/network-policy", `{"mode":"custom","allowedDomains":["example.com"]}`)
	snap := s.step(t, "POST", "/api/v1/sandboxes/"+id+"/snapshot", "").text("snapshot.id")
	s.step(t, "POST", "/api/v1/sandboxes/"+id+"/stop", "")
	s.step(t, "GET", "/api/v1/sandboxes/snapshots?project=prj_a", "")
	s.step(t, "GET", "/api/v1/sandboxes/snapshots/"+snap, "")
	s.step(t, "DELETE", "/api/v1/sandboxes/snapshots/"+snap, "")
}

func errorStory(t *testing.T, s *script) {
	s.must(t, s.token, "POST", "/api/v3/sandboxes", `{"projectId":"prj_a","name":"box","persistent":false}`)
	sid := s.must(t, s.token, "GET", named+"box", "").text("session.id")
	for _, body := range []string{
		`{"name":"box"}`, `{"projectId":"prj_b"}`, `{"timeout":999}`, `{"timeout":1.5}`, `{"timeout":999999999999}`, `{"resources":{"vcpus":3}}`,
		`{"ports":[0]}`, `{"ports":[3000,3000]}`, `{"runtime":"node24","image":"alpine"}`, `{"runtime":"ruby"}`, `{"image":"vercel/sandbox/arch"}`,
		`{"image":"missing"}`, `{"source":{"type":"zip"}}`, `{"source":{"type":"snapshot"}}`, `{"source":{"type":"snapshot","snapshotId":"snap_00000000000000000000"}}`,
		`{"region":"x","failoverRegions":["x"]}`, `{"region":"a,b"}`, `{"networkPolicy":"none"}`, `{"keepLastSnapshots":{"count":0}}`,
		`{"mounts":{"/data":{"drive":"none"}}}`, `{"name":"drives"}`, `[]`, `{"env":{"A":1}}`, `{`,
	} {
		s.step(t, "POST", "/api/v3/sandboxes", body)
	}
	s.step(t, "GET", named+"nobody", "")
	s.step(t, "GET", named+"sessions/ses_00000000000000000000", "")
	s.step(t, "GET", named+"box?projectId=prj_none", "")
	s.step(t, "GET", named+"box?teamId=team_b", "")
	s.step(t, "GET", "/api/v2/sandboxes?sortBy=size", "")
	s.step(t, "GET", "/api/v2/sandboxes?limit=0", "")
	s.step(t, "GET", "/api/v2/sandboxes?cursor=x", "")
	s.step(t, "GET", named+"snapshots/tree", "")
	s.step(t, "GET", named+"snapshots/snap_00000000000000000000", "")
	s.step(t, "GET", named+"drives/none", "")
	s.step(t, "POST", named+"box/rename", "")
	s.step(t, "PATCH", named+"box", `{"currentSnapshotId":"snap_00000000000000000000"}`)
	s.step(t, "POST", named+"sessions/"+sid+"/extend-timeout", `{"duration":999}`)
	s.step(t, "POST", named+"sessions/"+sid+"/extend-timeout", `{"duration":432000000}`)
	s.step(t, "POST", named+"sessions/"+sid+"/network-policy", "")
	s.must(t, s.token, "POST", named+"sessions/"+sid+"/stop", "")
	s.step(t, "POST", named+"sessions/"+sid+"/extend-timeout", `{"duration":60000}`)
	s.step(t, "POST", named+"sessions/"+sid+"/network-policy", `{"mode":"deny-all"}`)
	s.step(t, "POST", named+"sessions/"+sid+"/snapshot", "")
	s.step(t, "GET", "/api/v9/user", "")
}
