package fake_test

import (
	"errors"
	"testing"

	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/runtimetest"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestRuntime(t *testing.T) {
	runtimetest.Run(t, runtimetest.Config{
		New: func(t *testing.T, dir string) machine.Runtime { return newRuntime(t, dir) },
		Kill: func(t *testing.T, r machine.Runtime, id string) {
			if err := r.(*fake.Runtime).Kill(id, machine.Exit{Reason: sandbox.ReasonCrashed}); err != nil {
				t.Fatal(err)
			}
		},
	})
}

func newRuntime(t *testing.T, dir string) *fake.Runtime {
	r, err := fake.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestFailStart(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	want := errors.New("no luck")
	r.FailStart(func(machine.Spec) error { return want })
	spec := machine.Spec{ID: "m1", GuestConfig: []byte(`{"hostname":"m1","token_sha256":"` + guest.HashToken("secret") + `"}`)}
	if _, err := r.Start(t.Context(), spec); !errors.Is(err, want) {
		t.Fatalf("got %v", err)
	}
	if ids, err := r.List(t.Context()); err != nil || len(ids) != 0 {
		t.Fatalf("left behind: %q, %v", ids, err)
	}
	r.FailStart(nil)
	in, err := r.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}
