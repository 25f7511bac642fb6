package fake_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

func TestSmoke(t *testing.T) {
	ctx := t.Context()
	r, err := fake.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in, err := r.Start(ctx, sandboxd.Spec{ID: "m1", GuestConfig: []byte(`{"hostname":"m1","workdir":"/work","token_sha256":"` + guest.HashToken("secret") + `"}`)})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Destroy(context.Background())
	c := guest.NewClient(in.DialGuest, "secret")
	defer c.CloseIdleConnections()
	o, err := c.Exec(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo hi; echo err >&2; pwd; exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		ev, err := o.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v %s", ev, ev.Data)
	}
	if _, err := c.WriteFile(ctx, "a/b", strings.NewReader("hello"), sandbox.WriteParams{Parents: true}); err != nil {
		t.Fatal(err)
	}
	rc, info, err := c.ReadFile(ctx, "/work/a/b", sandbox.ReadParams{Offset: 1})
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(rc)
	t.Logf("%s %v %+v", data, err, info)
	h, err := c.Health(ctx)
	t.Log(h, err)
}

func BenchmarkExec(b *testing.B) {
	r, _ := fake.New(b.TempDir())
	in, err := r.Start(b.Context(), sandboxd.Spec{ID: "m1", GuestConfig: []byte(`{"hostname":"m1","workdir":"/work","token_sha256":"` + guest.HashToken("secret") + `"}`)})
	if err != nil {
		b.Fatal(err)
	}
	defer in.Destroy(context.Background())
	c := guest.NewClient(in.DialGuest, "secret")
	for b.Loop() {
		o, err := c.Exec(b.Context(), sandbox.CommandParams{Argv: []string{"true"}})
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = o.Next()
		}
		if err != io.EOF {
			b.Fatal(err)
		}
	}
}
