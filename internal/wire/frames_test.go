package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay/internal/wire"
)

// onlyRead is a connection that reads from r, and discards writes.
type onlyRead struct {
	io.Reader
	io.Writer
}

func (onlyRead) Close() error { return nil }

func framesOf(r io.Reader) *wire.FrameConn { return wire.NewFrameConn(onlyRead{r, io.Discard}, nil) }

func TestFrameConn(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	a, b := wire.NewFrameConn(near, near), wire.NewFrameConn(far, far)
	sent := strings.Repeat("0123456789", 30_000) // several frames
	go func() {
		_, err := io.WriteString(a, sent)
		if _, werr := a.Write(nil); werr != nil { // is no end
			err = werr
		}
		if err = errors.Join(err, a.CloseWrite()); err != nil {
			t.Error(err)
		}
		if _, err := a.Write([]byte("x")); err == nil {
			t.Error("something was written after the end")
		}
	}()
	got, err := io.ReadAll(b)
	if err != nil || string(got) != sent {
		t.Fatalf("got %d bytes, %v", len(got), err)
	}
	if _, err := b.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
	// The other direction still works.
	go func() {
		if _, err := b.Write([]byte("back")); err != nil {
			t.Error(err)
		}
		b.Close()
	}()
	got, err = io.ReadAll(a)
	if string(got) != "back" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %q, %v, want the end of a connection that broke", got, err)
	}
}

func TestFrameConn_Reads(t *testing.T) {
	t.Parallel()
	const stream = "\x00\x00\x00\x03abc\x00\x00\x00\x01d\x00\x00\x00\x00after"
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(stream), "bytes": iotest.OneByteReader(strings.NewReader(stream)), "early EOF": iotest.DataErrReader(strings.NewReader(stream)),
	} {
		if got, err := io.ReadAll(framesOf(r)); string(got) != "abcd" || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for name, cut := range map[string]string{"nothing": "", "in a head": stream[:2], "in a frame": stream[:6], "between frames": stream[:7]} {
		if _, err := io.ReadAll(framesOf(strings.NewReader(cut))); err != io.ErrUnexpectedEOF {
			t.Errorf("cut %s: %v", name, err)
		}
	}
	if _, err := io.ReadAll(framesOf(strings.NewReader("GET / HTTP/1.1\r\n"))); err == nil || err == io.ErrUnexpectedEOF {
		t.Errorf("another protocol: %v", err)
	}
}

// Bytes read before a deadline are not lost.
func TestFrameConn_Deadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := wire.NewFrameConn(near, near)
		for _, part := range []string{"\x00\x00", "\x00\x02", "h", "i"} {
			go func() {
				if _, err := io.WriteString(far, part); err != nil {
					t.Error(err)
				}
			}()
			if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 2)
			n, err := c.Read(b)
			want := strings.Trim(part, "\x00\x02")
			if string(b[:n]) != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("after %q: got %q, %v", part, b[:n], err)
			}
		}
	})
	plain := framesOf(strings.NewReader(""))
	if plain.SetDeadline(time.Time{}) == nil || plain.SetReadDeadline(time.Time{}) == nil || plain.SetWriteDeadline(time.Time{}) == nil {
		t.Error("a deadline was set that nobody keeps")
	}
	if plain.LocalAddr() == nil || plain.RemoteAddr() == nil {
		t.Error("it has no address")
	}
}

// For any input, reading ends, returns no more than the input has, and returns
// the same however the input is divided.
func FuzzFrameConn(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x03abc\x00\x00\x00\x00"))
	f.Add([]byte("\x00\x00\x00\x03ab"))
	f.Add([]byte("\xff\xff\xff\xffabc"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		whole, err := io.ReadAll(framesOf(bytes.NewReader(stream)))
		pieces, perr := io.ReadAll(framesOf(iotest.OneByteReader(bytes.NewReader(stream))))
		if !bytes.Equal(whole, pieces) || (err == nil) != (perr == nil) {
			t.Fatalf("%q, %v read at once, %q, %v in pieces", whole, err, pieces, perr)
		}
		if len(whole) > len(stream) || err == nil && len(whole)+4 > len(stream) {
			t.Fatalf("%d bytes of %d, %v", len(whole), len(stream), err)
		}
		var sent bytes.Buffer
		c := wire.NewFrameConn(onlyRead{bytes.NewReader(nil), &sent}, nil)
		if _, err := c.Write(stream); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if back, err := io.ReadAll(framesOf(&sent)); err != nil || !bytes.Equal(back, stream) {
			t.Fatalf("%q came back as %q, %v", stream, back, err)
		}
	})
}

func BenchmarkFrameConn(b *testing.B) {
	frame := append(binary.BigEndian.AppendUint32(nil, 64<<10), make([]byte, 64<<10)...)
	c := framesOf(repeated{frame, new(int)})
	buf := make([]byte, 32<<10)
	b.SetBytes(64 << 10)
	for b.Loop() {
		if _, err := io.CopyBuffer(io.Discard, io.LimitReader(struct{ io.Reader }{c}, 64<<10), buf); err != nil {
			b.Fatal(err)
		}
	}
}

// repeated repeats b.
type repeated struct {
	b  []byte
	at *int
}

func (e repeated) Read(p []byte) (int, error) {
	n := copy(p, e.b[*e.at:])
	*e.at = (*e.at + n) % len(e.b)
	return n, nil
}
