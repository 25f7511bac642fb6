package chat

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// For tests.
var Statuses = status

// WriteTimeout sets how long readers are waited for.
func (o *Options) WriteTimeout(d time.Duration) { o.writeTimeout = d }

// TestBodies tests that bodies are counted while they are held.
func TestBodies(t *testing.T) {
	var all bodies
	big := &counted{Reader: io.LimitReader(zeros{}, maxBodies-10), in: &all}
	if _, err := io.Copy(io.Discard, big); err != nil {
		t.Fatal(err)
	}
	small := &counted{Reader: strings.NewReader(strings.Repeat("x", 20)), in: &all}
	if _, err := io.ReadAll(small); !errors.Is(err, errFull) {
		t.Errorf("one more is read: %v", err)
	}
	small.release()
	big.release()
	if n := all.held.Load(); n != 0 {
		t.Errorf("%d bytes are held by nobody", n)
	}
	if _, err := io.ReadAll(&counted{Reader: strings.NewReader("x"), in: &all}); err != nil {
		t.Errorf("when there is room again: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
