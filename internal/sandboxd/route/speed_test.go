package route_test

import (
	"context"
	"io"
	"testing"

	"github.com/cayhq/cay/sandbox"
)

// The wire must not be the bottleneck of moving files: go test -bench Transfer.
func BenchmarkTransfer(b *testing.B) {
	const size = 100 << 20
	_, rec, srv := dialRecorder(b)
	c := sandbox.NewClient(sandbox.ClientOptions{URL: srv.URL, Token: "admin"}) // with the transport users get
	rec.read = func(sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error) {
		return io.NopCloser(io.LimitReader(sameBytes{}, size)), someFile(size), nil
	}
	rec.write = func(_ context.Context, r io.Reader) error {
		_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, make([]byte, 256<<10))
		return err
	}
	b.Run("upload", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if _, err := c.WriteFile(b.Context(), "s", "/a", io.LimitReader(sameBytes{}, size), sandbox.WriteParams{Size: size}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("upload of unknown size", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if _, err := c.WriteFile(b.Context(), "s", "/a", io.LimitReader(sameBytes{}, size), sandbox.WriteParams{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("download", func(b *testing.B) {
		b.SetBytes(size)
		buf := make([]byte, 256<<10)
		for b.Loop() {
			r, _, err := c.ReadFile(b.Context(), "s", "/a", sandbox.ReadParams{})
			if err != nil {
				b.Fatal(err)
			}
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, buf)
			if n != size || err != nil {
				b.Fatal(n, err)
			}
			r.Close()
		}
	})
	b.Run("output", func(b *testing.B) {
		b.SetBytes(size)
		line := make([]byte, 32<<10)
		for i := range line {
			line[i] = "a line of some log, <b>html</b>\n"[i%32]
		}
		rec.output = func(ctx context.Context) (sandbox.Output, error) {
			events := make([]sandbox.Event, 0, size/len(line)+1)
			for at := 0; at < size; at += len(line) {
				events = append(events, sandbox.Event{Stream: sandbox.Stdout, Cursor: int64(at), Data: line})
			}
			return newEvents(ctx, append(events, sandbox.Event{Exit: exited().Exit})...), nil
		}
		for b.Loop() {
			out, err := c.Output(b.Context(), "s", "c", sandbox.OutputParams{Follow: true})
			if err != nil {
				b.Fatal(err)
			}
			for {
				if _, err := out.Next(); err == io.EOF {
					break
				} else if err != nil {
					b.Fatal(err)
				}
			}
			out.Close()
		}
	})
}

// sameBytes reads at no cost: whatever the buffer holds.
type sameBytes struct{}

func (sameBytes) Read(p []byte) (int, error) { return len(p), nil }
