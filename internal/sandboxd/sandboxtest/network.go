package sandboxtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/sandbox"
)

// secretValue must appear nowhere except in the machine.
const secretValue = "Bearer s3cr3t-n0b0dy-may-see"

// brokering returns a policy that holds a secret.
func brokering() sandbox.Network {
	return sandbox.Network{Allow: []sandbox.Domain{
		{Name: "api.example.com", Rules: []sandbox.Rule{{SetHeaders: map[string]string{"Authorization": secretValue}}}},
	}}
}

// wantRedacted fails if v contains the secret, or does not indicate that there is one.
func wantRedacted(t *testing.T, what string, v any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "s3cr3t") {
		t.Errorf("%s shows the secret: %s", what, b)
	}
	if !strings.Contains(string(b), sandbox.Redacted) {
		t.Errorf("%s does not show that there is a secret: %s", what, b)
	}
}

func testNetwork(t *testing.T, cfg Config) {
	t.Run("ModeFollowsLists", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{Network: sandbox.Network{AllowCIDRs: []string{"203.0.113.0/24"}}})
		if s.Network.Mode != sandbox.Custom {
			t.Errorf("the mode is %q, want custom", s.Network.Mode)
		}
		s, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{Network: &sandbox.Network{}})
		if err != nil || s.Network.Mode != sandbox.AllowAll {
			t.Errorf("the mode is %q, %v, want allow-all", s.Network.Mode, err)
		}
	})
	t.Run("SecretsAreWriteOnly", func(t *testing.T) {
		u := setup(t, cfg)
		p := sandbox.CreateParams{Network: brokering(), IdempotencyKey: "k"}
		s := u.create(p)
		wantRedacted(t, "create", s)
		wantRedacted(t, "create again", u.create(p))
		wantRedacted(t, "get", u.get(s.ID))
		page, err := u.List(u.ctx, sandbox.ListParams{})
		if err != nil {
			t.Fatal(err)
		}
		wantRedacted(t, "list", page)
		n := brokering()
		n.DenyCIDRs = []string{"203.0.113.9"}
		updated, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{Network: &n})
		if err != nil {
			t.Fatal(err)
		}
		wantRedacted(t, "update", updated)
		if n.Allow[0].Rules[0].SetHeaders["Authorization"] != secretValue {
			t.Error("the caller's own policy was changed")
		}
		// A redacted policy cannot be written back in place of the secret.
		_, err = u.Update(u.ctx, s.ID, sandbox.UpdateParams{Network: &updated.Network})
		checktest.Code(t, err, cay.Invalid)
		// Another secret makes another request.
		p.Network.Allow[0].Rules[0].SetHeaders["Authorization"] = "Bearer other"
		_, err = u.Create(u.ctx, p)
		checktest.Code(t, err, cay.Conflict)
		stopped, err := u.Stop(u.ctx, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		wantRedacted(t, "stop", stopped)
	})
	t.Run("OperatorsLimits", func(t *testing.T) {
		u := setup(t, cfg)
		if u.env.NetworkLimits.TotalBytes == 0 {
			t.Skip("the service has no limits to exceed")
		}
		most := u.env.NetworkLimits
		s := u.create(sandbox.CreateParams{Network: sandbox.Network{Limits: most}})
		if s.Network.Limits != most {
			t.Errorf("the limits are %+v, want %+v", s.Network.Limits, most)
		}
		for field, n := range map[string]sandbox.NetworkLimits{
			"connections":            {Connections: most.Connections + 1},
			"connections_per_second": {ConnectionsPerSecond: most.ConnectionsPerSecond + 1},
			"bytes_per_second":       {BytesPerSecond: most.BytesPerSecond + 1},
			"total_bytes":            {TotalBytes: most.TotalBytes + 1},
		} {
			_, err := u.Create(u.ctx, sandbox.CreateParams{Network: sandbox.Network{Limits: n}})
			checktest.Code(t, err, cay.Invalid)
			if !strings.Contains(err.Error(), field+" ") {
				t.Errorf("%q does not name %s", err, field)
			}
			_, err = u.Update(u.ctx, s.ID, sandbox.UpdateParams{Network: &sandbox.Network{Limits: n}})
			checktest.Code(t, err, cay.Invalid)
		}
	})
}

// ports declares ports and returns them.
func (u *user) ports(ref string, ports ...sandbox.PortParams) []sandbox.Port {
	u.t.Helper()
	if ports == nil {
		ports = []sandbox.PortParams{}
	}
	s, err := u.Update(u.ctx, ref, sandbox.UpdateParams{Ports: ports})
	if err != nil {
		u.t.Fatalf("update ports: %v", err)
	}
	return s.Ports
}

func testPorts(t *testing.T, cfg Config) {
	t.Run("Labels", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{Ports: []sandbox.PortParams{{Port: 3000}, {Port: 80, Access: sandbox.Private}}})
		if len(s.Ports) != 2 || s.Ports[0].Port != 3000 || s.Ports[0].Access != sandbox.Public ||
			s.Ports[1].Port != 80 || s.Ports[1].Access != sandbox.Private {
			t.Fatalf("ports are %+v", s.Ports)
		}
		seen := make(map[string]bool)
		check := func(p sandbox.Port) {
			t.Helper()
			if !regexp.MustCompile(`^[a-z][a-z0-9]{19,62}$`).MatchString(p.Label) || !strings.Contains(p.URL, p.Label) || seen[p.Label] {
				t.Errorf("label %q, URL %q", p.Label, p.URL)
			}
			seen[p.Label] = true
		}
		check(s.Ports[0])
		check(s.Ports[1])
		if got := u.get(s.ID).Ports; fmt.Sprint(got) != fmt.Sprint(s.Ports) {
			t.Errorf("get shows %+v, create %+v", got, s.Ports)
		}

		// A port that stays keeps its label, in any order and with another access.
		got := u.ports(s.ID, sandbox.PortParams{Port: 80}, sandbox.PortParams{Port: 8080}, sandbox.PortParams{Port: 3000, Access: sandbox.Private})
		if len(got) != 3 || got[0].Label != s.Ports[1].Label || got[0].Access != sandbox.Public ||
			got[2].Label != s.Ports[0].Label || got[2].Access != sandbox.Private {
			t.Errorf("ports are %+v, were %+v", got, s.Ports)
		}
		check(got[1])
		// A port that is removed and declared again gets another label.
		if got := u.ports(s.ID); len(got) != 0 {
			t.Errorf("ports are %+v, want none", got)
		}
		check(u.ports(s.ID, sandbox.PortParams{Port: 80})[0])

		// A sandbox that has ended can be given ports, and keeps them.
		if _, err := u.Stop(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		if got := u.ports(s.ID, sandbox.PortParams{Port: 80}, sandbox.PortParams{Port: 81}); len(got) != 2 || !seen[got[0].Label] {
			t.Errorf("ports are %+v", got)
		}
	})
	t.Run("Invalid", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		many := make([]sandbox.PortParams, 65)
		for i := range many {
			many[i].Port = 3000 + i
		}
		for _, ports := range [][]sandbox.PortParams{
			{{Port: 0}}, {{Port: 65536}}, {{Port: -1}}, {{Port: 1}}, {{Port: 80, Access: "some"}}, {{Port: 80}, {Port: 80}}, many,
		} {
			_, err := u.Create(u.ctx, sandbox.CreateParams{Ports: ports})
			checktest.Code(t, err, cay.Invalid)
			_, err = u.Update(u.ctx, s.ID, sandbox.UpdateParams{Ports: ports})
			checktest.Code(t, err, cay.Invalid)
		}
		if got := u.ports(s.ID, many[:64]...); len(got) != 64 {
			t.Errorf("of 64 ports there are %d", len(got))
		}
		for _, port := range []int{0, -1, 1, 65536} {
			_, err := u.DialPort(u.ctx, s.ID, port)
			checktest.Code(t, err, cay.Invalid)
		}
	})
	t.Run("Link", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{Ports: []sandbox.PortParams{{Port: 80, Access: sandbox.Private}, {Port: 81}}})
		link, err := u.CreateLink(u.ctx, s.ID, 80, sandbox.LinkParams{TTL: minutes(5)})
		if err != nil {
			t.Fatal(err)
		}
		if link.Token == "" || link.URL != s.Ports[0].URL+"/?_cay_token="+link.Token {
			t.Errorf("link is %+v", link)
		}
		if u.env.Clock != nil {
			if left := link.ExpiresAt.Sub(u.env.Clock.Now()); left != 5*time.Minute {
				t.Errorf("it expires in %v", left)
			}
		}
		_, err = u.CreateLink(u.ctx, s.ID, 81, sandbox.LinkParams{})
		checktest.Code(t, err, cay.Conflict)
		_, err = u.CreateLink(u.ctx, s.ID, 82, sandbox.LinkParams{})
		checktest.Code(t, err, cay.NotFound)
		for _, ttl := range []sandbox.Duration{sandbox.Duration(time.Millisecond), -seconds(1), sandbox.Duration(31 * 24 * time.Hour)} {
			_, err = u.CreateLink(u.ctx, s.ID, 80, sandbox.LinkParams{TTL: ttl})
			checktest.Code(t, err, cay.Invalid)
		}
		_, err = u.CreateLink(u.ctx, "missing", 80, sandbox.LinkParams{})
		checktest.Code(t, err, cay.NotFound)
	})
	t.Run("Dial", func(t *testing.T) {
		u := setup(t, cfg)
		if u.env.Serve == nil {
			t.Skip("nothing can be made to serve a port")
		}
		s := u.create(sandbox.CreateParams{})
		port := u.env.Serve(t, u.Caller, s.ID)
		conn, err := u.DialPort(u.ctx, s.ID, port)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		// Small and large data, in both directions at once, and with a half-closed
		// connection.
		sent := strings.Repeat("0123456789abcdef", 1<<16)
		go func() {
			_, err := io.Copy(conn, strings.NewReader(sent))
			if err := errors.Join(err, conn.(interface{ CloseWrite() error }).CloseWrite()); err != nil {
				t.Errorf("send: %v", err)
			}
		}()
		if got, err := io.ReadAll(conn); err != nil || string(got) != sent {
			t.Errorf("got %d of %d bytes back, %v", len(got), len(sent), err)
		}

		const closed = 9 // never listened on: a port used before could be another test's by now
		_, err = u.DialPort(u.ctx, s.ID, closed)
		checktest.Code(t, err, cay.Unavailable)
		_, err = u.DialPort(u.ctx, "missing", port)
		checktest.Code(t, err, cay.NotFound)

		// The connection ends with the sandbox.
		open, err := u.DialPort(u.ctx, s.ID, port)
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		if _, err := u.Stop(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := open.Read(make([]byte, 1)); err == nil {
			t.Error("a connection outlived its sandbox")
		}
		_, err = u.DialPort(u.ctx, s.ID, port)
		checktest.Code(t, err, cay.Stopped)
	})
	t.Run("DialDeadline", func(t *testing.T) {
		u := setup(t, cfg)
		if u.env.Serve == nil {
			t.Skip("nothing can be made to serve a port")
		}
		s := u.create(sandbox.CreateParams{})
		conn, err := u.DialPort(u.ctx, s.ID, u.env.Serve(t, u.Caller, s.ID))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
			t.Fatal(err)
		}
		var timeout net.Error
		if _, err := conn.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("got %v, want a timeout", err)
		}
		// The connection remains usable.
		if err := conn.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if b := make([]byte, 1); checktest.Must(io.ReadFull(conn, b))(t) != 1 || b[0] != 'x' {
			t.Errorf("got %q", b)
		}
	})
	t.Run("Tenancy", func(t *testing.T) {
		t.Parallel()
		env := cfg.New(t)
		a, b := env.user(t, ProjectA), env.user(t, TeamB)
		s := a.create(sandbox.CreateParams{Ports: []sandbox.PortParams{{Port: 80, Access: sandbox.Private}}})
		_, err := b.CreateLink(b.ctx, s.ID, 80, sandbox.LinkParams{})
		checktest.Code(t, err, cay.NotFound)
		_, err = b.DialPort(b.ctx, s.ID, 80)
		checktest.Code(t, err, cay.NotFound)
		_, err = b.Flows(b.ctx, s.ID, sandbox.FlowParams{})
		checktest.Code(t, err, cay.NotFound)
		_, err = b.WatchFlows(b.ctx, s.ID, sandbox.FlowParams{})
		checktest.Code(t, err, cay.NotFound)
		_, err = b.Update(b.ctx, s.ID, sandbox.UpdateParams{Ports: []sandbox.PortParams{}})
		checktest.Code(t, err, cay.NotFound)
	})
}

// flow returns the n-th flow's record.
func flow(n int64, verdict sandbox.Verdict) sandbox.Flow {
	return sandbox.Flow{
		Seq: n, Time: time.UnixMilli(1_700_000_000_000 + n).UTC(), Protocol: "tls", Name: fmt.Sprintf("n%d.example.com", n),
		Address: "203.0.113.7:443", Port: 443, Verdict: verdict, Rule: `allow "*.example.com"`, IngressBytes: 10 * n, EgressBytes: n,
	}
}

func seqs(flows []sandbox.Flow) (all []int64) {
	for _, f := range flows {
		all = append(all, f.Seq)
	}
	return all
}

func testFlows(t *testing.T, cfg Config) {
	setup := func(t *testing.T) *user {
		u := setup(t, cfg)
		if u.env.Flow == nil {
			t.Skip("no flows can be made up")
		}
		return u
	}
	list := func(u *user, ref string, p sandbox.FlowParams) *sandbox.Page[sandbox.Flow] {
		u.t.Helper()
		page, err := u.Flows(u.ctx, ref, p)
		if err != nil {
			u.t.Fatalf("flows: %v", err)
		}
		return page
	}
	t.Run("List", func(t *testing.T) {
		u := setup(t)
		s := u.create(sandbox.CreateParams{})
		if page := list(u, s.ID, sandbox.FlowParams{}); len(page.Items) != 0 || page.Next != "" {
			t.Errorf("a new sandbox has flows: %+v", page)
		}
		for n := range int64(6) {
			f := flow(n+1, sandbox.Allowed)
			if n%2 == 1 {
				f.Verdict, f.Reason = sandbox.Denied, "No."
			}
			u.env.Flow(t, s.SessionID, f)
		}
		// A flow just reported is listed at once.
		all := list(u, s.ID, sandbox.FlowParams{}).Items
		if fmt.Sprint(seqs(all)) != "[1 2 3 4 5 6]" || all[0] != flow(1, sandbox.Allowed) {
			t.Fatalf("flows are %+v", all)
		}
		first := list(u, s.ID, sandbox.FlowParams{Limit: 4})
		rest := list(u, s.ID, sandbox.FlowParams{Limit: 4, After: 4})
		if fmt.Sprint(seqs(first.Items), seqs(rest.Items)) != "[1 2 3 4] [5 6]" || first.Next != "4" || rest.Next != "" {
			t.Errorf("pages are %v, %q, then %v, %q", seqs(first.Items), first.Next, seqs(rest.Items), rest.Next)
		}
		if denied := list(u, s.ID, sandbox.FlowParams{Verdict: sandbox.Denied}); fmt.Sprint(seqs(denied.Items)) != "[2 4 6]" {
			t.Errorf("denied are %v", seqs(denied.Items))
		}
		for _, p := range []sandbox.FlowParams{{Verdict: "some"}, {After: -1}, {Limit: -1}, {Limit: 1001}} {
			_, err := u.Flows(u.ctx, s.ID, p)
			checktest.Code(t, err, cay.Invalid)
		}
	})
	t.Run("ClosedTakesThePlaceOfOpen", func(t *testing.T) {
		u := setup(t)
		s := u.create(sandbox.CreateParams{})
		for n := range int64(2) {
			open := flow(n+1, sandbox.Allowed)
			open.Open = true
			u.env.Flow(t, s.SessionID, open)
		}
		if all := list(u, s.ID, sandbox.FlowParams{}).Items; len(all) != 2 || !all[0].Open || !all[1].Open {
			t.Fatalf("flows are %+v", all)
		}
		u.env.Flow(t, s.SessionID, flow(1, sandbox.Allowed))
		if all := list(u, s.ID, sandbox.FlowParams{}).Items; len(all) != 2 || all[0].Open || !all[1].Open {
			t.Fatalf("flows are %+v", all)
		}
		// The flow log outlives the sandbox's session, its connections do not.
		if _, err := u.Stop(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		if all := list(u, s.ID, sandbox.FlowParams{}).Items; len(all) != 2 || all[1].Open {
			t.Fatalf("flows are %+v", all)
		}
		if err := u.Delete(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		_, err := u.Flows(u.ctx, s.ID, sandbox.FlowParams{})
		checktest.Code(t, err, cay.NotFound)
	})
	t.Run("KeepsTheNewest", func(t *testing.T) {
		u := setup(t)
		s := u.create(sandbox.CreateParams{})
		for n := range int64(2500) {
			u.env.Flow(t, s.SessionID, flow(n+1, sandbox.Denied))
		}
		all := list(u, s.ID, sandbox.FlowParams{Limit: 1000})
		if len(all.Items) != 1000 || all.Items[0].Seq != 1501 || all.Items[999].Seq != 2500 || all.Next != "" {
			t.Errorf("%d are kept, from %d, next %q", len(all.Items), all.Items[0].Seq, all.Next)
		}
	})
	t.Run("Watch", func(t *testing.T) {
		u := setup(t)
		s := u.create(sandbox.CreateParams{})
		for n := range int64(3) {
			u.env.Flow(t, s.SessionID, flow(n+1, sandbox.Denied))
		}
		w, err := u.WatchFlows(u.ctx, s.ID, sandbox.FlowParams{After: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		want := func(seq int64, open bool) {
			t.Helper()
			if f, err := w.Next(); err != nil || f.Seq != seq || f.Open != open {
				t.Fatalf("got %d, open %v, %v, want %d, %v", f.Seq, f.Open, err, seq, open)
			}
		}
		want(2, false)
		want(3, false)
		open := flow(4, sandbox.Allowed)
		open.Open = true
		u.env.Flow(t, s.SessionID, open)
		want(4, true)
		u.env.Flow(t, s.SessionID, flow(5, sandbox.Denied))
		want(5, false)
		u.env.Flow(t, s.SessionID, flow(4, sandbox.Allowed))
		want(4, false)

		denied, err := u.WatchFlows(u.ctx, s.ID, sandbox.FlowParams{Verdict: sandbox.Allowed})
		if err != nil {
			t.Fatal(err)
		}
		defer denied.Close()
		u.env.Flow(t, s.SessionID, flow(6, sandbox.Denied))
		u.env.Flow(t, s.SessionID, flow(7, sandbox.Allowed))
		for _, seq := range []int64{4, 7} {
			if f, err := denied.Next(); err != nil || f.Seq != seq {
				t.Fatalf("got %d, %v, want %d", f.Seq, err, seq)
			}
		}
		if _, err := u.Stop(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		want(6, false)
		want(7, false)
		if _, err := w.Next(); err != io.EOF {
			t.Errorf("after the end: %v, want EOF", err)
		}
		// The log of a sandbox that has ended can be watched; the watch ends.
		late, err := u.WatchFlows(u.ctx, s.ID, sandbox.FlowParams{After: 5})
		if err != nil {
			t.Fatal(err)
		}
		defer late.Close()
		for _, seq := range []int64{6, 7} {
			if f, err := late.Next(); err != nil || f.Seq != seq {
				t.Fatalf("got %d, %v, want %d", f.Seq, err, seq)
			}
		}
		if _, err := late.Next(); err != io.EOF {
			t.Errorf("after the end: %v, want EOF", err)
		}
		_, err = u.WatchFlows(u.ctx, s.ID, sandbox.FlowParams{Limit: 5})
		checktest.Code(t, err, cay.Invalid)
	})
	t.Run("WatchCloses", func(t *testing.T) {
		u := setup(t)
		s := u.create(sandbox.CreateParams{})
		w, err := u.WatchFlows(u.ctx, s.ID, sandbox.FlowParams{})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := w.Next()
			done <- err
		}()
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		checktest.Code(t, <-done, cay.Canceled)
	})
}
