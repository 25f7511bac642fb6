package sandboxd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/sandbox"
)

// wantCut fails unless a connection is closed by the other side.
func wantCut(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection goes on")
	}
}

func wantGone(t *testing.T, err error) {
	t.Helper()
	checktest.Code(t, err, cay.Stopped)
	if !sandboxd.IsGone(err) {
		t.Errorf("%v does not count as gone", err)
	}
}

func TestPreview(t *testing.T) {
	t.Run("Dials", func(t *testing.T) {
		t.Parallel()
		h, _ := startFake(t)
		ctx := defaultCaller(t)
		port := sandboxtest.ServeEcho(t)
		s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Ports: []sandbox.PortParams{{Port: port, Access: sandbox.Private}}}))(t)
		for range 2 { // once from the database, once from memory
			target := checktest.Must(h.Preview(t.Context(), s.Ports[0].Label))(t) // a context without a caller: the label admits
			if target.SandboxID != s.ID || target.Port != port || target.Access != sandbox.Private {
				t.Errorf("target is %+v", target)
			}
			conn := checktest.Must(target.Dial(t.Context()))(t)
			sandboxtest.Talk(t, conn)
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
		// The label outlives the daemon's restart, its connections do not.
		target := checktest.Must(h.Preview(t.Context(), s.Ports[0].Label))(t)
		conn := checktest.Must(target.Dial(t.Context()))(t)
		defer conn.Close()
		h.Restart(t)
		wantCut(t, conn)
		if target.Context.Err() == nil {
			t.Error("what was known before the restart still counts")
		}
		target = checktest.Must(h.Preview(t.Context(), s.Ports[0].Label))(t)
		again := checktest.Must(target.Dial(t.Context()))(t)
		defer again.Close()
		sandboxtest.Talk(t, again)
	})
	t.Run("NothingListens", func(t *testing.T) {
		t.Parallel()
		h, _ := startFake(t)
		s := checktest.Must(h.Create(defaultCaller(t), sandbox.CreateParams{Ports: []sandbox.PortParams{{Port: 9}}}))(t)
		target := checktest.Must(h.Preview(t.Context(), s.Ports[0].Label))(t)
		_, err := target.Dial(t.Context())
		checktest.Code(t, err, cay.Unavailable)
	})
	t.Run("Unknown", func(t *testing.T) {
		t.Parallel()
		h, _ := startFake(t)
		for _, label := range []string{"", "x", "p" + strings.Repeat("0", 23), strings.Repeat("é", 12)} {
			_, err := h.Preview(t.Context(), label)
			checktest.Code(t, err, cay.NotFound)
			_, err = h.CheckLink(t.Context(), label, "1.x")
			checktest.Code(t, err, cay.NotFound)
		}
	})
	t.Run("Ends", func(t *testing.T) {
		t.Parallel()
		h, _ := startFake(t)
		ctx := defaultCaller(t)
		s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Ports: []sandbox.PortParams{{Port: 80}}}))(t)
		label := s.Ports[0].Label
		checktest.Must(h.Preview(t.Context(), label))(t)
		checktest.Must(h.Pause(ctx, s.ID))(t)
		_, err := h.Preview(t.Context(), label)
		checktest.Code(t, err, cay.Conflict)
		checktest.Must(h.Resume(ctx, s.ID, sandbox.ResumeParams{}))(t)
		checktest.Must(h.Preview(t.Context(), label))(t)

		checktest.Must(h.Engine.Stop(ctx, s.ID))(t)
		_, err = h.Preview(t.Context(), label)
		if checktest.Code(t, err, cay.Stopped); sandboxd.IsGone(err) {
			t.Error("a sandbox that is there counts as gone")
		}
		if err := h.Delete(ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		_, err = h.Preview(t.Context(), label)
		wantGone(t, err)

		// A sandbox that is deleted while it runs.
		s = checktest.Must(h.Create(ctx, sandbox.CreateParams{Ports: []sandbox.PortParams{{Port: 80}}}))(t)
		checktest.Must(h.Preview(t.Context(), s.Ports[0].Label))(t)
		if err := h.Delete(ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		h.Restart(t)
		_, err = h.Preview(t.Context(), s.Ports[0].Label)
		wantGone(t, err)
	})
	t.Run("FollowsUpdates", func(t *testing.T) {
		t.Parallel()
		h, _ := startFake(t)
		ctx := defaultCaller(t)
		kept, removed, closed := sandboxtest.ServeEcho(t), sandboxtest.ServeEcho(t), sandboxtest.ServeEcho(t)
		s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Ports: []sandbox.PortParams{{Port: kept}, {Port: removed}, {Port: closed}}}))(t)
		var targets []*sandboxd.PreviewTarget
		var conns []net.Conn
		for _, p := range s.Ports {
			target := checktest.Must(h.Preview(t.Context(), p.Label))(t)
			conn := checktest.Must(target.Dial(t.Context()))(t)
			defer conn.Close()
			targets, conns = append(targets, target), append(conns, conn)
		}
		checktest.Must(h.Update(ctx, s.ID, sandbox.UpdateParams{
			Ports: []sandbox.PortParams{{Port: kept}, {Port: closed, Access: sandbox.Private}, {Port: 7}},
		}))(t)
		sandboxtest.Talk(t, conns[0])
		wantCut(t, conns[1])
		wantCut(t, conns[2])
		if targets[0].Context.Err() != nil || targets[1].Context.Err() == nil || targets[2].Context.Err() == nil {
			t.Error("the wrong targets have ended")
		}
		_, err := targets[1].Dial(t.Context())
		wantGone(t, err)
		_, err = h.Preview(t.Context(), s.Ports[1].Label)
		wantGone(t, err)
		if now := checktest.Must(h.Preview(t.Context(), s.Ports[2].Label))(t); now.Access != sandbox.Private {
			t.Error("it is still public")
		}
	})
	t.Run("WaitsForAStart", func(t *testing.T) {
		t.Parallel()
		h, rt := startFake(t)
		for _, fail := range []bool{false, true} {
			inserted := make(chan struct{}, 2)
			h.Reached(func(point string) {
				if point == "inserted" {
					inserted <- struct{}{}
				}
			})
			unblock := h.Images.Block()
			rt.FailStart(func(machine.Spec) error {
				if fail {
					return cay.Errorf(cay.NoSpace, "no room")
				}
				return nil
			})
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := h.Create(defaultCaller(t), sandbox.CreateParams{Name: fmt.Sprintf("fails-%v", fail), Ports: []sandbox.PortParams{{Port: 80}}})
				if (err != nil) != fail {
					t.Errorf("create: %v", err)
				}
			})
			<-inserted
			s := checktest.Must(h.Get(defaultCaller(t), fmt.Sprintf("fails-%v", fail)))(t)
			brief, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := h.Preview(brief, s.Ports[0].Label)
			checktest.Code(t, err, cay.Canceled)
			wg.Go(func() {
				_, err := h.Preview(t.Context(), s.Ports[0].Label)
				if want := map[bool]cay.Code{true: cay.Stopped}[fail]; cay.CodeOf(err) != want {
					t.Errorf("got %v, want %q", err, want)
				}
			})
			unblock()
			wg.Wait()
		}
	})
	t.Run("Bounded", func(t *testing.T) {
		t.Parallel()
		h, _ := startFake(t, func(c *sandboxd.Config) { c.Limits.ConnsPerSandbox = 2 })
		ctx := defaultCaller(t)
		port := sandboxtest.ServeEcho(t)
		s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Ports: []sandbox.PortParams{{Port: port}}}))(t)
		target := checktest.Must(h.Preview(t.Context(), s.Ports[0].Label))(t)
		one := checktest.Must(target.Dial(t.Context()))(t)
		two := checktest.Must(h.DialPort(ctx, s.ID, port))(t)
		defer two.Close()
		_, err := target.Dial(t.Context())
		checktest.Code(t, err, cay.QuotaExceeded)
		_, err = h.DialPort(ctx, s.ID, port)
		checktest.Code(t, err, cay.QuotaExceeded)
		one.Close()
		one.Close() // closing twice counts once
		three := checktest.Must(target.Dial(t.Context()))(t)
		defer three.Close()
		_, err = target.Dial(t.Context())
		checktest.Code(t, err, cay.QuotaExceeded)
	})
	t.Run("IsActivity", func(t *testing.T) {
		t.Parallel()
		h, _ := startFake(t)
		ctx := defaultCaller(t)
		port := sandboxtest.ServeEcho(t)
		s := checktest.Must(h.Create(ctx, sandbox.CreateParams{
			Timeout: minutes(60), IdleTimeout: minutes(1), Ports: []sandbox.PortParams{{Port: port}},
		}))(t)
		target := checktest.Must(h.Preview(t.Context(), s.Ports[0].Label))(t)
		conn := checktest.Must(target.Dial(t.Context()))(t)
		for range 3 {
			h.Clock.Advance(time.Minute)
			h.Clock.AwaitTimer(t, time.Minute) // found active, and checked again
		}
		h.Clock.Advance(20 * time.Second)
		conn.Close()
		ended := awaitEnd(t, h, s.ID, func() {
			h.Clock.Advance(40 * time.Second)
			h.Clock.AwaitTimer(t, 20*time.Second) // counted from the close of the connection
			h.Clock.Advance(20 * time.Second)
		})
		wantStatus(t, ended, sandbox.Stopped, sandbox.ReasonIdle)
	})
}

func TestLink(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t)
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{
		Ports: []sandbox.PortParams{{Port: 80, Access: sandbox.Private}, {Port: 81, Access: sandbox.Private}},
	}))(t)
	label := s.Ports[0].Label
	link := checktest.Must(h.CreateLink(ctx, s.ID, 80, sandbox.LinkParams{TTL: minutes(10)}))(t)
	check := func(ok bool, label, token string) {
		t.Helper()
		expires, err := h.CheckLink(t.Context(), label, token)
		if ok && (err != nil || !expires.Equal(link.ExpiresAt)) {
			t.Errorf("it expires at %v, %v, want %v", expires, err, link.ExpiresAt)
		}
		if !ok {
			checktest.Code(t, err, cay.Unauthenticated)
		}
	}
	check(true, label, link.Token)
	checktest.Must(h.Preview(t.Context(), label))(t)
	check(true, label, link.Token) // from memory
	check(false, s.Ports[1].Label, link.Token)
	until, mac, _ := strings.Cut(link.Token, ".")
	for _, forged := range []string{
		"", ".", "x", until, until + ".", "." + mac, "z" + until + "." + mac, "-" + link.Token, link.Token + "A", link.Token[:len(link.Token)-1],
		strings.ToUpper(link.Token), "+" + link.Token, "0" + link.Token, until + "." + strings.Repeat("A", len(mac)),
	} {
		check(false, label, forged)
	}
	// The token is signed with the installation's key.
	h.Restart(t)
	check(true, label, link.Token)
	old := h.Config.Secrets
	h.Config.Secrets = checktest.Must(secret.Open(filepath.Join(t.TempDir(), "key")))(t)
	h.Restart(t)
	check(false, label, link.Token)
	h.Config.Secrets = old
	h.Restart(t)

	// A link ends when the access has changed and changed back, and when the label is
	// new.
	ports := func(ports ...sandbox.PortParams) []sandbox.Port {
		t.Helper()
		return checktest.Must(h.Update(ctx, s.ID, sandbox.UpdateParams{Ports: append([]sandbox.PortParams{}, ports...)}))(t).Ports
	}
	private := sandbox.PortParams{Port: 80, Access: sandbox.Private}
	ports(private)
	check(true, label, link.Token)
	ports(sandbox.PortParams{Port: 80})
	check(false, label, link.Token)
	ports(private)
	check(false, label, link.Token)
	link = checktest.Must(h.CreateLink(ctx, s.ID, 80, sandbox.LinkParams{TTL: minutes(10)}))(t)
	check(true, label, link.Token)
	checktest.Must(h.Engine.Stop(ctx, s.ID))(t)
	check(true, label, link.Token)
	h.Clock.Advance(10*time.Minute - time.Millisecond)
	check(true, label, link.Token)
	h.Clock.Advance(time.Millisecond)
	check(false, label, link.Token)

	link = checktest.Must(h.CreateLink(ctx, s.ID, 80, sandbox.LinkParams{}))(t)
	if left := link.ExpiresAt.Sub(h.Clock.Now()); left != time.Hour {
		t.Errorf("by default it expires in %v", left)
	}
	ports()
	check2 := func(token string) {
		t.Helper()
		_, err := h.CheckLink(t.Context(), label, token)
		wantGone(t, err)
	}
	check2(link.Token)
	check(false, ports(private)[0].Label, link.Token)
}

// The secret of a policy reaches the machine and nothing else: neither the database, nor
// the log, nor other files on disk.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const value = "s3cr3t-n0b0dy-may-see"
	policy := func(value string) sandbox.Network {
		return sandbox.Network{Allow: []sandbox.Domain{{Name: "api.example.com", Rules: []sandbox.Rule{{SetHeaders: map[string]string{"X-Key": value}}}}}}
	}
	log := &checktest.Log{}
	rt, err := fake.New(filepath.Join(t.TempDir(), "machines"))
	if err != nil {
		t.Fatal(err)
	}
	setting := &settings{Runtime: rt}
	h := sandboxtest.Start(t, setting, func(c *sandboxd.Config) { c.Logger = debugLog(log) })
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Network: policy(value + "-1"), IdempotencyKey: "k"}))(t)
	machineHas := func(want string) {
		t.Helper()
		n := checktest.Must(rt.Network(s.SessionID))(t)
		if n.Mode != sandbox.Custom || len(n.Allow) != 1 || n.Allow[0].Rules[0].SetHeaders["X-Key"] != want {
			t.Errorf("the machine has the policy %s with the secret %q", n, n.Allow[0].Rules[0].SetHeaders["X-Key"])
		}
	}
	machineHas(value + "-1")
	update := func(n sandbox.Network) error {
		_, err := h.Update(ctx, s.ID, sandbox.UpdateParams{Network: &n})
		return err
	}
	if err := update(policy(value + "-2")); err != nil {
		t.Fatal(err)
	}
	machineHas(value + "-2")
	h.Restart(t)
	machineHas(value + "-2")
	// A policy that the machine refuses leaves the previous one, including its secret.
	setting.fail.Store(true)
	if err := update(policy(value + "-3")); err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("update: %v", err)
	}
	setting.fail.Store(false)
	machineHas(value + "-2")
	h.Restart(t)
	machineHas(value + "-2")

	// Without the key the sandbox cannot be resumed: its policy is not guessed. With the
	// key it can be again.
	old := h.Config.Secrets
	h.Config.Secrets = checktest.Must(secret.Open(filepath.Join(t.TempDir(), "key")))(t)
	h.Restart(t)
	_, err = h.Stat(ctx, s.ID, ".", false)
	checktest.Code(t, err, cay.Unavailable)
	h.Config.Secrets = old
	h.Restart(t)
	machineHas(value + "-2")
	if !strings.Contains(log.String(), "does not open") {
		t.Error("the log does not say why the sandbox was not recovered")
	}

	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(h.Config.DB.Path() + suffix)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "s3cr3t") {
			t.Errorf("the secret is in the database, %q", suffix)
		}
	}
	if strings.Contains(log.String(), "s3cr3t") {
		t.Error("the secret is in the log")
	}
}

func debugLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// settings is a Runtime whose machines refuse policies on request.
type settings struct {
	machine.Runtime
	fail atomic.Bool
}

type settingsInstance struct {
	machine.Instance
	rt *settings
}

func (r *settings) wrap(i machine.Instance, err error) (machine.Instance, error) {
	if err != nil {
		return nil, err
	}
	return settingsInstance{i, r}, nil
}

func (r *settings) Start(ctx context.Context, s machine.Spec) (machine.Instance, error) {
	return r.wrap(r.Runtime.Start(ctx, s))
}

func (r *settings) Adopt(ctx context.Context, id string) (machine.Instance, error) {
	return r.wrap(r.Runtime.Adopt(ctx, id))
}

func (i settingsInstance) SetNetwork(n sandbox.Network) error {
	if i.rt.fail.Load() {
		return errors.New("the machine takes no policy")
	}
	return i.Instance.SetNetwork(n)
}

// A flow log continues after a restart: written records remain, open ones are closed, and
// numbers are not used twice.
func TestFlows_Restart(t *testing.T) {
	t.Parallel()
	h, rt := startFake(t)
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
	report := func(seq int64, open bool) {
		t.Helper()
		if err := rt.Flow(s.SessionID, sandbox.Flow{Seq: seq, Time: h.Clock.Now(), Protocol: "tcp", Verdict: sandbox.Allowed, Rule: "mode allow-all", Open: open}); err != nil {
			t.Fatal(err)
		}
	}
	report(1, false)
	report(2, true)
	w := checktest.Must(h.WatchFlows(ctx, s.ID, sandbox.FlowParams{After: 2}))(t)
	h.Restart(t)
	_, err := w.Next()
	checktest.Code(t, err, cay.Unavailable)
	report(1, true)
	flows := checktest.Must(h.Flows(ctx, s.ID, sandbox.FlowParams{}))(t).Items
	if len(flows) != 3 || flows[0].Open || flows[1].Open || !flows[2].Open || flows[2].Seq <= 2 {
		t.Fatalf("flows are %+v", flows)
	}
	// A lost sandbox leaves its log.
	report(2, true)
	h.Engine.Close()
	if err := rt.Kill(s.SessionID, machine.Exit{Reason: sandbox.ReasonCrashed}); err != nil {
		t.Fatal(err)
	}
	h.Restart(t)
	flows = checktest.Must(h.Flows(ctx, s.ID, sandbox.FlowParams{}))(t).Items
	if len(flows) != 4 || flows[2].Open || flows[3].Open {
		t.Fatalf("flows are %+v", flows)
	}
}

func BenchmarkPreview(b *testing.B) {
	h, _ := startFake(b)
	s := checktest.Must(h.Create(defaultCaller(b), sandbox.CreateParams{Ports: []sandbox.PortParams{{Port: 80}}}))(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := h.Preview(b.Context(), s.Ports[0].Label); err != nil {
			b.Fatal(err)
		}
	}
}

// Concurrent updates leave previews as the last one sets them; failed updates change
// nothing.
func TestPreview_Updates(t *testing.T) {
	t.Parallel()
	var setting *settings
	h, _ := startFake(t, func(c *sandboxd.Config) {
		setting = &settings{Runtime: c.Runtime}
		c.Runtime = setting
	})
	ctx := defaultCaller(t)
	public, private := []sandbox.PortParams{{Port: 80}}, []sandbox.PortParams{{Port: 80, Access: sandbox.Private}}
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Ports: private}))(t)
	label := s.Ports[0].Label
	agree := func() {
		t.Helper()
		target := checktest.Must(h.Preview(t.Context(), label))(t)
		if want := checktest.Must(h.Get(ctx, s.ID))(t).Ports[0].Access; target.Access != want {
			t.Fatalf("the preview is %s, the port %s", target.Access, want)
		}
	}
	for range 50 {
		var wg sync.WaitGroup
		for _, ports := range [][]sandbox.PortParams{public, private, public} {
			wg.Go(func() {
				if _, err := h.Update(ctx, s.ID, sandbox.UpdateParams{Ports: ports}); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if _, err := h.Preview(t.Context(), label); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		agree()
	}

	checktest.Must(h.Update(ctx, s.ID, sandbox.UpdateParams{Ports: private}))(t)
	agree()
	setting.fail.Store(true)
	for _, ports := range [][]sandbox.PortParams{public, {}, {{Port: 81}}} {
		if _, err := h.Update(ctx, s.ID, sandbox.UpdateParams{Ports: ports, Network: &sandbox.Network{Mode: sandbox.DenyAll}}); err == nil {
			t.Fatal("the update succeeded")
		}
		got := checktest.Must(h.Get(ctx, s.ID))(t)
		if len(got.Ports) != 1 || got.Ports[0] != (sandbox.Port{Port: 80, Access: sandbox.Private, Label: label, URL: s.Ports[0].URL}) || got.Network.Mode != sandbox.AllowAll {
			t.Fatalf("after an update that failed the sandbox has %+v, %+v", got.Ports, got.Network)
		}
		agree()
		link := checktest.Must(h.CreateLink(ctx, s.ID, 80, sandbox.LinkParams{}))(t)
		if _, err := h.CheckLink(t.Context(), label, link.Token); err != nil {
			t.Error(err)
		}
	}
	setting.fail.Store(false)
}
