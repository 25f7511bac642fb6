package sandboxd_test

import (
	"sync"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// A sandbox has at most the privileges that the daemon allows, in each of its sessions, also
// after the daemon's setting has changed; and restricted sandboxes take no machine of a pool.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	p := fullPool(t, 1)
	var (
		mu   sync.Mutex
		last machine.Spec
	)
	p.rt.FailStart(func(s machine.Spec) error {
		mu.Lock()
		defer mu.Unlock()
		if s.Network.Mode != sandbox.DenyAll { // not a pool's
			last = s
		}
		return nil
	})
	restricted := func(want bool) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if last.Restricted != want {
			t.Errorf("the machine is restricted: %t, want %t", last.Restricted, want)
		}
		last = machine.Spec{}
	}
	create := func(name string, privileges sandbox.Privileges) *sandbox.Sandbox {
		t.Helper()
		s, err := p.Create(p.ctx, sandbox.CreateParams{Name: name, Privileges: privileges, Tags: map[string]string{"a": "b"}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	less := create("less", sandbox.RestrictedPrivileges)
	restricted(true)
	if less.Privileges != sandbox.RestrictedPrivileges {
		t.Errorf("its privileges are %q", less.Privileges)
	}
	again := func() {
		t.Helper()
		for _, name := range []string{"less", "more"} {
			if _, err := p.Stop(p.ctx, name); err != nil && cay.CodeOf(err) != cay.Stopped {
				t.Fatal(err)
			}
		}
		s, err := p.Resume(p.ctx, "less", sandbox.ResumeParams{})
		if err != nil {
			t.Fatal(err)
		}
		restricted(true)
		if s.Privileges != sandbox.RestrictedPrivileges {
			t.Errorf("its privileges are %q after it was resumed", s.Privileges)
		}
	}
	if s := create("more", sandbox.FullPrivileges); s.Privileges != "" {
		t.Errorf("its privileges are %q", s.Privileges)
	}
	again()
	if _, err := p.Resume(p.ctx, "more", sandbox.ResumeParams{}); err != nil {
		t.Fatal(err)
	}
	restricted(false)

	p.Config.Restricted = true
	p.Restart(t)
	again()
	if _, err := p.Resume(p.ctx, "more", sandbox.ResumeParams{}); err != nil {
		t.Fatal(err)
	}
	restricted(true)
	if _, err := p.Create(p.ctx, sandbox.CreateParams{Privileges: sandbox.FullPrivileges}); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("more than the daemon allows: %v, want invalid", err)
	}
	if err := (sandbox.CreateParams{Privileges: "all"}).Validate(); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("unknown privileges: %v, want invalid", err)
	}
}
