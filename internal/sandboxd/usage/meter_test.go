package usage

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// counters is a machine's Source; nil: it cannot be read.
type counters struct{ st *machine.Stats }

func (c counters) Stats(context.Context) (machine.Stats, error) {
	if c.st == nil {
		return machine.Stats{}, errors.New("gone")
	}
	return *c.st, nil
}

func TestMeter(t *testing.T) {
	const second = sandbox.Duration(time.Second)
	var now time.Duration
	read := func(m *Meter, st *machine.Stats) error {
		_, err := m.Read(t.Context(), counters{st}, func() time.Duration { return now })
		return err
	}
	expect := func(what string, got, want sandbox.Usage) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	var m Meter
	now = time.Hour // since the start of the host
	if err := read(&m, &machine.Stats{CPU: second}); err != nil {
		t.Fatal(err)
	}
	expect("it has not run", m.Total(), sandbox.Usage{ActiveCPU: second})
	m.Begin(now, sandbox.Usage{})
	now += 10 * time.Second
	if err := read(&m, &machine.Stats{CPU: 2 * second, IngressBytes: 5, MemoryPeak: 7}); err != nil {
		t.Fatal(err)
	}
	first := sandbox.Usage{ActiveCPU: 2 * second, WallTime: 10 * second, IngressBytes: 5, MemoryPeak: 7}
	expect("it runs", m.Total(), first)
	if u, ok := m.Unsaved(); !ok || u != first {
		t.Errorf("to be recorded is %+v, %v", u, ok)
	}
	m.Saved(first)
	if u, ok := m.Unsaved(); ok {
		t.Errorf("to be recorded is %+v", u)
	}

	// Another daemon adopts the machine; the network's counters have restarted at zero.
	var adopted Meter
	adopted.Begin(time.Hour, first)
	now += 5 * time.Second
	if err := read(&adopted, &machine.Stats{CPU: 3 * second, IngressBytes: 1, MemoryPeak: 6}); err != nil {
		t.Fatal(err)
	}
	second15 := sandbox.Usage{ActiveCPU: 3 * second, WallTime: 15 * second, IngressBytes: 6, MemoryPeak: 7}
	expect("it was adopted", adopted.Total(), second15)
	now += 5 * time.Second
	if err := read(&adopted, nil); err == nil {
		t.Error("counters of nothing were read")
	}
	expect("it cannot be asked", adopted.Total(), second15)
	second15.WallTime += 5 * second
	expect("as of now", adopted.At(now), second15)
	adopted.Last(now)
	expect("at its end", adopted.Total(), second15)
	if age := adopted.Age(now); age != 5*time.Second {
		t.Errorf("it was read %v ago", age)
	}
}
