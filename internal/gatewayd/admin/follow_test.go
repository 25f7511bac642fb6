package admin_test

import (
	"bufio"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
)

// A follower sees the requests that end from then on, only those of its team and project,
// and can resume after any request.
func TestManager_FollowRequests(t *testing.T) {
	t.Parallel()
	overEach(t, func(t *testing.T, m managed) {
		record := func(team, project string, status gateway.RequestStatus) string {
			r := &gateway.Request{
				CreatedAt: time.Now(), TeamID: team, ProjectID: project, KeyID: "k", Surface: "messages", Kind: "language", Model: "b", Status: status, Attempts: []gateway.Attempt{},
			}
			checktest.OK(t, m.book.Record(r))
			return r.ID
		}
		first := record(account.DefaultTeam, "prj_two", gateway.Succeeded)
		follow := func(who string, f gateway.RequestFilter, after string) func() string {
			svc, ctx := m.as(who)
			ctx, cancel := context.WithCancel(ctx)
			next, stop := iter.Pull2(svc.FollowRequests(ctx, f, after))
			t.Cleanup(func() {
				cancel()
				stop()
			})
			return func() string {
				r, err, ok := next()
				if err != nil || !ok {
					t.Fatalf("it ends with %v", err)
				}
				return r.ID
			}
		}
		team, project := follow("team", gateway.RequestFilter{}, first), follow("project", gateway.RequestFilter{Status: gateway.Failed}, first)
		var all []string
		record("team_other", "prj_x", gateway.Failed)
		all = append(all, record(account.DefaultTeam, account.DefaultProject, gateway.Failed))
		all = append(all, record(account.DefaultTeam, "prj_two", gateway.Succeeded))
		all = append(all, record(account.DefaultTeam, "prj_two", gateway.Failed))
		var got []string
		for range all {
			got = append(got, team())
		}
		if !slices.Equal(got, all) {
			t.Errorf("a team sees %v, want %v", got, all)
		}
		if id := project(); id != all[2] {
			t.Errorf("a project sees %s, want %s", id, all[2])
		}
		for who, want := range map[string]cay.Code{"team": cay.Invalid, "nobody": cay.Unauthenticated} {
			svc, ctx := m.as(who)
			if who == "nobody" {
				if _, ok := svc.(*gateway.Client); !ok {
					continue // there is no caller without a token
				}
			}
			n := 0
			for _, err := range svc.FollowRequests(ctx, gateway.RequestFilter{Status: "odd"}, "") {
				checktest.Code(t, err, want)
				n++
			}
			if n != 1 {
				t.Errorf("%s: an error is yielded %d times", who, n)
			}
		}
		// Closing the book's feeds ends the followers, so that a stopping server does not
		// wait for them.
		svc, ctx := m.as("team")
		ctx, cancel := context.WithCancel(ctx)
		next, stop := iter.Pull2(svc.FollowRequests(ctx, gateway.RequestFilter{}, all[1]))
		defer stop()
		defer cancel()
		if r, err, _ := next(); err != nil || r.ID != all[2] {
			t.Fatalf("after %s comes %s, %v", all[1], r.ID, err)
		}
		m.book.EndFeeds()
		if _, ok := svc.(*gateway.Client); ok { // the client reconnects and waits for another daemon
			return
		}
		_, err, _ := next()
		checktest.Code(t, err, cay.Unavailable)
	})
}

// A client whose connection breaks resumes after the last request it received.
func TestClient_FollowRequests_Again(t *testing.T) {
	t.Parallel()
	var after []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		after = append(after, r.Header.Get("Last-Event-ID"))
		w.Header().Set("Content-Type", "text/event-stream")
		switch len(after) {
		case 1:
			w.Write([]byte("\n: hello\n\nid: gen_1\ndata: {\"id\":\"gen_1\"}\n\nid: gen_2\ndata: {\"id\":\"gen_2\"}\n\nid: gen_3\ndata: {\"id\""))
		case 2:
			w.Write([]byte("data: {\"id\":\"gen_3\"}\n\n"))
		default:
			w.Write([]byte("event: error\ndata: {\"error\":{\"code\":\"permission_denied\",\"message\":\"no more\"}}\n\n"))
		}
	}))
	t.Cleanup(srv.Close)
	c := gateway.Client{URL: srv.URL, Token: "t", HTTPClient: srv.Client()}
	var got []string
	var last error
	for r, err := range c.FollowRequests(t.Context(), gateway.RequestFilter{}, "") {
		if last = err; err == nil {
			got = append(got, r.ID)
		}
	}
	if strings.Join(got, " ") != "gen_1 gen_2 gen_3" || strings.Join(after, ",") != ",gen_2,gen_3" || cay.CodeOf(last) != cay.PermissionDenied {
		t.Errorf("got %v, asked after %q, ended with %v", got, after, last)
	}
}

// The events can be parsed by a browser's EventSource.
func TestRoutes_RequestEvents(t *testing.T) {
	t.Parallel()
	overEach(t, func(t *testing.T, m managed) {
		srv := httptest.NewServer(m.mux)
		t.Cleanup(srv.Close)
		r := &gateway.Request{TeamID: account.DefaultTeam, ProjectID: "prj_two", Model: "a\nb", Status: gateway.Refused}
		checktest.OK(t, m.book.Record(r))
		first := r.ID
		r.ID = ""
		checktest.OK(t, m.book.Record(r))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+"/v1/gateway/requests/events", nil)
		checktest.OK(t, err)
		req.Header.Set("Authorization", "Bearer admin")
		req.Header.Set("Last-Event-ID", first)
		resp, err := srv.Client().Do(req)
		checktest.OK(t, err)
		defer resp.Body.Close()
		if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream" {
			t.Errorf("content type %q", ct)
		}
		in := bufio.NewReader(resp.Body)
		var lines [3]string
		for i := range lines {
			lines[i], err = in.ReadString('\n')
			checktest.OK(t, err)
		}
		data, ok := strings.CutPrefix(lines[1], "data: ")
		var got gateway.Request
		if lines[0] != "id: "+r.ID+"\n" || !ok || json.Unmarshal([]byte(data), &got) != nil || got.Model != "a\nb" || lines[2] != "\n" || !strings.Contains(data, `"attempts":[]`) {
			t.Errorf("the event is %q", lines)
		}
	})
}
