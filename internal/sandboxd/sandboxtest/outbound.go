package sandboxtest

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/sandbox"
)

// testOutbound checks the offers that an egress handler gets, and the effects of its
// answers.
func testOutbound(t *testing.T, cfg Config) {
	setup := func(t *testing.T) (*user, *sandbox.Sandbox) {
		u := setup(t, cfg)
		if u.env.Outbound == nil {
			t.Skip("no connections can be made up")
		}
		return u, u.create(sandbox.CreateParams{Network: sandbox.Network{Mode: sandbox.DenyAll, Handled: []string{"*.example.com"}}})
	}
	offer := sandbox.Outbound{Protocol: "tls", Name: "api.example.com", Address: "203.0.113.7:443"}
	type outcome struct {
		as  sandbox.Handling
		err error
	}
	// offered offers a connection, and returns it as the handler w receives it.
	offered := func(u *user, s *sandbox.Sandbox, w sandbox.OutboundWatch) (o sandbox.Outbound, program net.Conn, done chan outcome) {
		u.t.Helper()
		program, ours := net.Pipe()
		u.t.Cleanup(func() { program.Close() })
		done = make(chan outcome, 1)
		go func() {
			as, err := u.env.Outbound(u.t, s.SessionID, offer, ours)
			done <- outcome{as, err}
		}()
		o, err := w.Next()
		if err != nil {
			u.t.Fatal(err)
		}
		want := offer
		want.ID = o.ID
		if o != want || o.ID == "" {
			u.t.Errorf("offered %+v, want %+v", o, offer)
		}
		return o, program, done
	}
	handle := func(u *user, s *sandbox.Sandbox) sandbox.OutboundWatch {
		u.t.Helper()
		w, err := u.HandleOutbound(u.ctx, s.ID)
		if err != nil {
			u.t.Fatal(err)
		}
		u.t.Cleanup(func() { w.Close() })
		return w
	}
	t.Run("Policy", func(t *testing.T) {
		u, s := setup(t)
		if got := s.Network.Handled; len(got) != 1 || got[0] != "*.example.com" {
			t.Errorf("the sandbox's handled names are %q", got)
		}
		for _, names := range [][]string{{""}, {"a b"}, {strings.Repeat("a", 254)}, make([]string, 257)} {
			_, err := u.Create(u.ctx, sandbox.CreateParams{Network: sandbox.Network{Handled: names}})
			checktest.Code(t, err, cay.Invalid)
		}
	})
	t.Run("Take", func(t *testing.T) {
		u, s := setup(t)
		w := handle(u, s)
		o, program, done := offered(u, s, w)
		conn, err := u.TakeOutbound(u.ctx, s.ID, o.ID, sandbox.HandlePlain)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if got := <-done; got.as != sandbox.HandlePlain || got.err != nil {
			t.Errorf("answered %+v", got)
		}
		go io.WriteString(program, "ping")
		b := make([]byte, 4)
		if _, err := io.ReadFull(conn, b); err != nil || string(b) != "ping" {
			t.Errorf("got %q, %v", b, err)
		}
		_, err = u.TakeOutbound(u.ctx, s.ID, o.ID, sandbox.HandleRaw)
		checktest.Code(t, err, cay.NotFound)
		checktest.Code(t, u.DeclineOutbound(u.ctx, s.ID, o.ID, sandbox.HandlePass), cay.NotFound)
	})
	t.Run("Decline", func(t *testing.T) {
		u, s := setup(t)
		w := handle(u, s)
		for _, as := range []sandbox.Handling{sandbox.HandlePass, sandbox.HandleRefuse} {
			o, _, done := offered(u, s, w)
			checktest.Code(t, u.DeclineOutbound(u.ctx, s.ID, o.ID, sandbox.HandleRaw), cay.Invalid)
			_, err := u.TakeOutbound(u.ctx, s.ID, o.ID, as)
			checktest.Code(t, err, cay.Invalid)
			if err := u.DeclineOutbound(u.ctx, s.ID, o.ID, as); err != nil {
				t.Error(err)
			}
			if got := <-done; got.as != as || got.err != nil {
				t.Errorf("answered %+v, want %s", got, as)
			}
		}
	})
	t.Run("NoHandler", func(t *testing.T) {
		u, s := setup(t)
		if _, err := u.env.Outbound(t, s.SessionID, offer, nil); err == nil {
			t.Error("a connection was answered without a handler")
		}
		w := handle(u, s)
		_, _, done := offered(u, s, w)
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if got := <-done; got.err == nil {
			t.Errorf("the handler has gone, and the answer is %+v", got)
		}
	})
	t.Run("Replaced", func(t *testing.T) {
		u, s := setup(t)
		before := handle(u, s)
		w := handle(u, s)
		_, err := before.Next()
		checktest.Code(t, err, cay.AlreadyExists)
		o, _, done := offered(u, s, w)
		if err := u.DeclineOutbound(u.ctx, s.ID, o.ID, sandbox.HandlePass); err != nil {
			t.Error(err)
		}
		<-done
	})
	t.Run("Stopped", func(t *testing.T) {
		u, s := setup(t)
		w := handle(u, s)
		if _, err := u.Stop(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("after the stop: %v", err)
		}
		_, err := u.HandleOutbound(u.ctx, s.ID)
		checktest.Code(t, err, cay.Stopped)
	})
	t.Run("Tenancy", func(t *testing.T) {
		t.Parallel()
		env := cfg.New(t)
		a, b := env.user(t, ProjectA), env.user(t, TeamB)
		s := a.create(sandbox.CreateParams{})
		_, err := b.HandleOutbound(b.ctx, s.ID)
		checktest.Code(t, err, cay.NotFound)
		_, err = b.TakeOutbound(b.ctx, s.ID, "1", sandbox.HandleRaw)
		checktest.Code(t, err, cay.NotFound)
		checktest.Code(t, b.DeclineOutbound(b.ctx, s.ID, "1", sandbox.HandlePass), cay.NotFound)
	})
}
