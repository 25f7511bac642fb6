package image_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/sandbox"
)

func TestCompose(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put := func(ref string, members ...member) *sandbox.Image {
		t.Helper()
		img, err := s.Import(t.Context(), ref, bytes.NewReader(tarOf(t, members...)), nil)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	base := put("base", file("etc/motd", "hi"), file("etc/hostname", "base"), file("usr/bin/tool", "old"))
	runtime := put("runtime", file("bin/node", "node"))
	layer := tarOf(t, file("etc/.wh.motd", ""), file("usr/bin/tool", "new"), file("proc/x", ""),
		file("etc/cay/identity.json", "{}"), file("etc/cay/trust/extra.pem", "pem"), file("etc/machine-id", "0123"), file("vercel/runtimes/node24/x", ""))
	c := image.Composition{
		Base: base.Digest, Runtime: "node24", RuntimeDigest: runtime.Digest, Origin: "snapshot snap_1",
		Layer:  func(_ context.Context, w io.Writer) error { _, err := w.Write(layer); return err },
		Config: sandbox.ImageConfig{Env: []string{"A=b"}, User: "web", WorkDir: "/srv", Cmd: []string{"node"}},
	}
	img, err := s.Compose(t.Context(), "mine:1", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if img.Source != image.SourceSnapshot || !slices.Equal(img.Config.Env, c.Config.Env) || img.Config.User != "web" || img.Config.WorkDir != "/srv" {
		t.Errorf("got %+v", img)
	}
	got := contents(t, s, "mine:1")
	for name, want := range map[string]string{
		"/usr/bin/tool": "new", "/etc/hostname": "base", "/vercel/runtimes/node24/bin/node": "node", "/etc/cay/trust/extra.pem": "pem",
	} {
		if string(got[name].Data) != want {
			t.Errorf("%s is %q, want %q", name, got[name].Data, want)
		}
	}
	for _, name := range []string{"/etc/motd", "/proc/x", "/etc/cay/identity.json", "/etc/machine-id", "/vercel/runtimes/node24/x"} {
		if _, ok := got[name]; ok {
			t.Errorf("%s is there", name)
		}
	}
	again, err := s.Compose(t.Context(), "mine:1", c, nil)
	if err != nil || again.Digest != img.Digest {
		t.Errorf("again: %+v, %v", again, err)
	}
}

// An image based on an image with a language runtime has the runtime, too.
func TestCompose_Twice(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put := func(ref string, members ...member) *sandbox.Image {
		t.Helper()
		img, err := s.Import(t.Context(), ref, bytes.NewReader(tarOf(t, members...)), nil)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	base, runtime := put("base", file("etc/hostname", "base")), put("runtime", file("bin/node", "node"))
	layer := func(members ...member) func(context.Context, io.Writer) error {
		return func(_ context.Context, w io.Writer) error { _, err := w.Write(tarOf(t, members...)); return err }
	}
	first, err := s.Compose(t.Context(), "first", image.Composition{
		Base: base.Digest, Runtime: "node24", RuntimeDigest: runtime.Digest, Layer: layer(file("app/a", "a")),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Compose(t.Context(), "second", image.Composition{Base: first.Digest, Layer: layer(file("app/b", "b"))}, nil); err != nil {
		t.Fatal(err)
	}
	got := contents(t, s, "second")
	for name, want := range map[string]string{"/vercel/runtimes/node24/bin/node": "node", "/app/a": "a", "/app/b": "b"} {
		if string(got[name].Data) != want {
			t.Errorf("%s is %q, want %q", name, got[name].Data, want)
		}
	}
}

// An incomplete image gets no name.
func TestCompose_Errors(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	base, err := s.Import(t.Context(), "base", bytes.NewReader(tarOf(t, file("a", "a"))), nil)
	if err != nil {
		t.Fatal(err)
	}
	layer := tarOf(t, file("b", "b"))
	write := func(b []byte, err error) func(context.Context, io.Writer) error {
		return func(_ context.Context, w io.Writer) error {
			_, werr := w.Write(b)
			return errors.Join(err, werr)
		}
	}
	missing := "sha256:" + string(bytes.Repeat([]byte("0"), 64))
	for _, tt := range []struct {
		name, ref string
		c         image.Composition
		code      cay.Code
	}{
		{"no base", "x", image.Composition{Base: missing, Layer: write(layer, nil)}, cay.NotFound},
		{"no runtime", "x", image.Composition{Base: base.Digest, Runtime: "node24", RuntimeDigest: missing, Layer: write(layer, nil)}, cay.NotFound},
		{"a layer that cannot be read", "x", image.Composition{Base: base.Digest, Layer: write(layer[:600], cay.Errorf(cay.Conflict, "damaged"))}, cay.Conflict},
		{"a layer that fails at its end", "x", image.Composition{Base: base.Digest, Layer: write(layer, cay.Errorf(cay.Conflict, "damaged"))}, cay.Conflict},
		{"no archive", "x", image.Composition{Base: base.Digest, Layer: write(bytes.Repeat([]byte("x"), 4096), nil)}, cay.Invalid},
		{"one of our names", "debian", image.Composition{Base: base.Digest, Layer: write(layer, nil)}, cay.Invalid},
		{"a digest", base.Digest, image.Composition{Base: base.Digest, Layer: write(layer, nil)}, cay.Invalid},
	} {
		if _, err := s.Compose(t.Context(), tt.ref, tt.c, nil); cay.CodeOf(err) != tt.code {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.code)
		}
		if _, err := s.Get(t.Context(), "x"); cay.CodeOf(err) != cay.NotFound {
			t.Errorf("%s: an image was named: %v", tt.name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = s.Compose(ctx, "x", image.Composition{Base: base.Digest, Layer: func(ctx context.Context, _ io.Writer) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}}, nil)
	if cay.CodeOf(err) != cay.Canceled {
		t.Errorf("given up: %v", err)
	}
}
