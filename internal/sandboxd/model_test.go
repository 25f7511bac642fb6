package sandboxd_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// modelled is the model's state of a sandbox.
type modelled struct {
	status  sandbox.Status
	reason  sandbox.Reason
	expires time.Duration // on the model's clock
	timeout time.Duration
	asked   time.Duration // the timeout of each new session
}

// keyed is the request made with an idempotency key.
type keyed struct {
	request string
	made    *modelled
}

// TestModel performs random operations on sandboxes, including restarts, clock jumps and
// deaths of machines, and compares the engine's answers with a simple model.
func TestModel(t *testing.T) {
	checktest.Long(t)
	t.Parallel()
	seedtest.Check(t, func(rt *rapid.T) { runModel(&iteration{t, rt}, rt) })
}

// iteration is the testing.TB of one iteration: cleanups run at its end, and failures are
// reported to rapid.
type iteration struct {
	*testing.T
	rt *rapid.T
}

func (i *iteration) Cleanup(f func())                  { i.rt.Cleanup(f) }
func (i *iteration) Context() context.Context          { return i.rt.Context() }
func (i *iteration) Helper()                           { i.rt.Helper() }
func (i *iteration) Log(args ...any)                   { i.rt.Log(args...) }
func (i *iteration) Error(args ...any)                 { i.rt.Error(args...) }
func (i *iteration) Errorf(format string, args ...any) { i.rt.Errorf(format, args...) }
func (i *iteration) Fatal(args ...any)                 { i.rt.Fatal(args...) }
func (i *iteration) Fatalf(format string, args ...any) { i.rt.Fatalf(format, args...) }

func (i *iteration) TempDir() string {
	dir, err := os.MkdirTemp("", "cay-model-")
	if err != nil {
		i.rt.Fatal(err)
	}
	i.rt.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			i.rt.Error(err)
		}
	})
	return dir
}

func runModel(t testing.TB, rt *rapid.T) {
	const quota = 4
	h, machines := startFake(t)
	h.Accounts.Set(account.DefaultTeam, account.Quota{Sandboxes: quota})
	ctx := defaultCaller(t)
	model := make(map[string]*modelled) // by name
	keys := make(map[string]keyed)
	var now time.Duration
	fail := rt.Fatalf

	live := func() (n int) {
		for _, m := range model {
			if !m.status.Final() {
				n++
			}
		}
		return n
	}
	pick := func() (string, *modelled) {
		if len(model) == 0 {
			rt.Skip("there is no sandbox")
		}
		name := rapid.SampledFrom(slices.Sorted(maps.Keys(model))).Draw(rt, "name")
		return name, model[name]
	}
	// expect compares an error with the model's.
	expect := func(what string, err error, want cay.Code) bool {
		if cay.CodeOf(err) != want {
			fail("%s: got %v (%s), want %q", what, err, cay.CodeOf(err), want)
		}
		return want == ""
	}
	// unless returns the error code of a call that needs one of the statuses ok.
	unless := func(m *modelled, ok ...sandbox.Status) cay.Code {
		switch {
		case slices.Contains(ok, m.status):
			return ""
		case m.status.Final():
			return cay.Stopped
		}
		return cay.Conflict
	}

	// wake returns the error code of a call that resumes a sandbox.
	wake := func(m *modelled) cay.Code {
		switch {
		case m.status == sandbox.Paused:
			return cay.Conflict
		case m.status.Final() && live() >= quota:
			return cay.QuotaExceeded
		}
		return ""
	}
	woken := func(m *modelled) {
		if m.status.Final() {
			*m = modelled{status: sandbox.Running, expires: now + m.asked, timeout: m.asked, asked: m.asked}
		}
	}

	rt.Repeat(map[string]func(*rapid.T){
		"create": func(rt *rapid.T) {
			name := fmt.Sprintf("n%d", rapid.IntRange(0, 6).Draw(rt, "n"))
			timeout := time.Duration(rapid.IntRange(1, 10).Draw(rt, "minutes")) * time.Minute
			key := rapid.SampledFrom([]string{"", "", "k1", "k2"}).Draw(rt, "key")
			p := sandbox.CreateParams{Name: name, Timeout: sandbox.Duration(timeout), IdempotencyKey: key}
			s, err := h.Create(ctx, p)
			request := fmt.Sprint(name, timeout)
			known := keys[key]
			switch {
			case known.made != nil && known.request != request:
				expect("another request with the same key", err, cay.Conflict)
			case known.made != nil && model[name] != known.made:
				expect("a key whose sandbox was deleted", err, cay.Conflict)
			case known.made != nil:
				if expect("the same key", err, "") && s.Name != name {
					fail("the key of %s returned %s", name, s.Name)
				}
			case live() >= quota:
				expect("create over the quota", err, cay.QuotaExceeded)
			case model[name] != nil:
				expect("create with a taken name", err, cay.AlreadyExists)
			default:
				expect("create", err, "")
				model[name] = &modelled{status: sandbox.Running, expires: now + timeout, timeout: timeout, asked: timeout}
				if key != "" {
					keys[key] = keyed{request, model[name]}
				}
			}
		},
		"use": func(rt *rapid.T) {
			name, m := pick()
			_, err := h.Stat(ctx, name, ".", false)
			if expect("stat", err, wake(m)) {
				woken(m)
			}
		},
		"stop": func(rt *rapid.T) {
			name, m := pick()
			_, err := h.Engine.Stop(ctx, name)
			expect("stop", err, "")
			if !m.status.Final() {
				m.status, m.reason = sandbox.Stopped, sandbox.ReasonRequested
			}
		},
		"delete": func(rt *rapid.T) {
			name, _ := pick()
			expect("delete", h.Delete(ctx, name), "")
			delete(model, name)
		},
		"pause": func(rt *rapid.T) {
			name, m := pick()
			_, err := h.Pause(ctx, name)
			if expect("pause", err, unless(m, sandbox.Running)) {
				m.status = sandbox.Paused
			}
		},
		"resume": func(rt *rapid.T) {
			name, m := pick()
			_, err := h.Resume(ctx, name, sandbox.ResumeParams{})
			if m.status == sandbox.Paused {
				expect("resume", err, "")
				m.status = sandbox.Running
			} else if expect("resume", err, wake(m)) {
				woken(m)
			}
		},
		"extend": func(rt *rapid.T) {
			name, m := pick()
			_, err := h.Extend(ctx, name, minutes(1))
			if expect("extend", err, unless(m, sandbox.Running, sandbox.Paused)) {
				m.expires, m.timeout = m.expires+time.Minute, m.timeout+time.Minute
			}
		},
		"die": func(rt *rapid.T) {
			name, m := pick()
			if m.status != sandbox.Running {
				rt.Skip("it does not run")
			}
			reason := rapid.SampledFrom([]sandbox.Reason{sandbox.ReasonOOM, sandbox.ReasonCrashed, sandbox.ReasonExited}).Draw(rt, "reason")
			s, err := h.Get(ctx, name)
			expect("get", err, "")
			awaitEnd(t, h, s.ID, func() { expect("kill", machines.Kill(s.SessionID, machine.Exit{Reason: reason}), "") })
			m.status, m.reason = sandbox.Failed, reason
		},
		"dieWhileDown": func(rt *rapid.T) {
			name, m := pick()
			if m.status.Final() {
				rt.Skip("it has ended")
			}
			s, err := h.Get(ctx, name)
			expect("get", err, "")
			h.Engine.Close()
			expect("kill", machines.Kill(s.SessionID, machine.Exit{Reason: sandbox.ReasonCrashed}), "")
			h.Restart(t)
			m.status, m.reason = sandbox.Failed, sandbox.ReasonLost
		},
		"restart": func(rt *rapid.T) { h.Restart(t) },
		"jump": func(rt *rapid.T) {
			h.Clock.Jump(time.Duration(rapid.IntRange(-60, 60).Draw(rt, "minutes")) * time.Minute)
		},
		"pass": func(rt *rapid.T) {
			d := time.Duration(rapid.IntRange(1, 120).Draw(rt, "seconds")) * time.Second
			now += d
			points := make(chan string, 1000)
			h.Engine.Reached(func(p string) { points <- p })
			h.Clock.Advance(d)
			for _, m := range model {
				if !m.status.Final() && m.expires <= now {
					m.status, m.reason = sandbox.Stopped, sandbox.ReasonTimeout
					await(t, points, "ended")
				}
			}
		},
		"": func(rt *rapid.T) {
			page, err := h.List(ctx, sandbox.ListParams{Limit: 200})
			expect("list", err, "")
			if len(page.Items) != len(model) {
				fail("%d sandboxes, want %d", len(page.Items), len(model))
			}
			running := 0
			for _, s := range page.Items {
				m := model[s.Name]
				if m == nil || s.Status != m.status || s.Reason != m.reason || time.Duration(s.Timeout) != m.timeout {
					fail("sandbox %s is %s (%s) with timeout %v, want %+v", s.Name, s.Status, s.Reason, s.Timeout, m)
				}
				if !s.Status.Final() {
					running++
					if left := s.ExpiresAt.Sub(h.Clock.Now()); left != m.expires-now {
						fail("sandbox %s has %v left, want %v", s.Name, left, m.expires-now)
					}
				}
			}
			left, err := machines.List(ctx)
			expect("list machines", err, "")
			if len(left) != running {
				fail("%d machines for %d sandboxes", len(left), running)
			}
		},
	})
}
