package agent

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/seedtest"
)

// The log is compared with a model: all bytes ever written, and the bytes that must be
// readable. Readers here are never slow, so nothing waits.
func TestOutput_model(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		limits := Limits{CommandOutput: rapid.Int64Range(200, 5000).Draw(t, "limit"), AllOutput: 1 << 20, Running: 4, Stall: time.Hour}
		o := newOutputs(limits)
		l := o.newLog()
		var all []byte
		var kinds []guest.Kind
		readers := map[*outputReader]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				if l.closed {
					t.Skip("closed")
				}
				data := rapid.SliceOfN(rapid.Byte(), 1, 150).Draw(t, "data")
				kind := rapid.SampledFrom([]guest.Kind{guest.KindStdout, guest.KindStderr}).Draw(t, "kind")
				for r := range readers { // unread output would make the writer wait
					r.advance(l.end)
				}
				if !l.append(kind, bytes.Clone(data), rapid.Bool().Draw(t, "keep"), nil) {
					t.Fatal("refused")
				}
				all = append(all, data...)
				for range data {
					kinds = append(kinds, kind)
				}
			},
			"read": func(t *rapid.T) {
				cursor := rapid.Int64Range(0, int64(len(all))).Draw(t, "cursor")
				r, err := l.reader(cursor)
				if err != nil {
					t.Fatal(err)
				}
				defer r.close()
				start, _ := l.bounds()
				segs, truncated, err := r.read(context.Background(), false)
				if err != nil {
					t.Fatal(err)
				}
				if truncated != (cursor < start) {
					t.Fatalf("truncated %v at %d, kept from %d", truncated, cursor, start)
				}
				at := max(cursor, start)
				for _, s := range segs {
					if s.cursor != at || !bytes.Equal(s.data, all[at:at+int64(len(s.data))]) {
						t.Fatalf("at %d: segment of %d bytes at %d differs", at, len(s.data), s.cursor)
					}
					for i := range s.data {
						if kinds[at+int64(i)] != s.kind {
							t.Fatalf("at %d: stream %d", at, s.kind)
						}
					}
					at = s.end()
				}
				if at != int64(len(all)) {
					t.Fatalf("read up to %d of %d", at, len(all))
				}
			},
			"follow": func(t *rapid.T) {
				r, err := l.reader(l.end)
				if err != nil {
					t.Fatal(err)
				}
				readers[r] = true
			},
			"leave": func(t *rapid.T) {
				for r := range readers {
					r.close()
					delete(readers, r)
					return
				}
			},
			"close": func(t *rapid.T) {
				if !l.closed {
					l.drain()
					l.close()
				}
			},
			"beyond": func(t *rapid.T) {
				if _, err := l.reader(l.end + 1); err == nil {
					t.Fatal("a cursor beyond the end was taken")
				}
			},
			"": func(t *rapid.T) {
				if l.end != int64(len(all)) || l.size > limits.CommandOutput || o.total != l.size {
					t.Fatalf("end %d of %d, size %d of %d, total %d", l.end, len(all), l.size, limits.CommandOutput, o.total)
				}
				size := int64(0)
				for _, s := range l.segments {
					size += s.cost()
				}
				if size != l.size {
					t.Fatalf("counts %d, keeps %d", l.size, size)
				}
			},
		})
	})
}

func TestOutput_claims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutputs(Limits{CommandOutput: 1000, AllOutput: 1 << 20, Running: 4, Stall: 30 * time.Second})
		l := o.newLog()
		r, err := l.reader(0)
		if err != nil {
			t.Fatal(err)
		}
		wrote := make(chan int)
		abandon := make(chan struct{})
		go func() {
			for i := range 20 {
				if !l.append(guest.KindStdout, make([]byte, 300), true, abandon) {
					close(wrote)
					return
				}
				wrote <- i
			}
		}()
		expect := func(n int) {
			t.Helper()
			for range n {
				<-wrote
			}
			synctest.Wait()
			select {
			case <-wrote:
				t.Fatal("written over what a reader claims")
			default:
			}
		}
		expect(2) // 364 each: a third does not fit
		r.advance(300)
		expect(1)
		// Reading nothing for the time allowed loses the claim.
		start := time.Now()
		<-wrote
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("the claim was lost after %v", d)
		}
		for range 3 {
			<-wrote // without a claim nothing waits
		}
		synctest.Wait() // the next is written, too
		segs, truncated, err := r.read(t.Context(), true)
		if err != nil || !truncated || len(segs) != 2 {
			t.Fatalf("got %d segments, truncated %v, %v", len(segs), truncated, err)
		}
		// Reading gives it back.
		r.advance(segs[0].end())
		expect(2) // that segment, and another in place of the read one
		close(abandon)
		if _, ok := <-wrote; ok {
			t.Fatal("not abandoned")
		}
	})
}

// Bytes that find no room are lost if no writer may wait, and readers learn where.
func TestOutput_lost(t *testing.T) {
	o := newOutputs(Limits{CommandOutput: 1000, AllOutput: 1 << 20, Running: 4, Stall: time.Hour})
	l := o.newLog()
	r, err := l.reader(0)
	if err != nil {
		t.Fatal(err)
	}
	now := make(chan struct{})
	close(now)
	add := func(n int, want bool) {
		t.Helper()
		if got := l.append(guest.KindStdout, make([]byte, n), true, now); got != want {
			t.Fatalf("of %d bytes: kept %v, want %v", n, got, want)
		}
	}
	read := func(cursor int64, truncated bool, want ...int64) {
		t.Helper()
		segs, cut, err := r.read(t.Context(), false)
		if err != nil || cut != truncated || r.cursor != cursor || len(segs) != len(want) {
			t.Fatalf("at %d: truncated %v, %d segments, %v; want %d: %v, %d", r.cursor, cut, len(segs), err, cursor, truncated, len(want))
		}
		for i, s := range segs {
			if s.cursor != want[i] {
				t.Errorf("segment %d at %d, want %d", i, s.cursor, want[i])
			}
			r.advance(s.end())
		}
	}
	add(300, true)
	add(300, true)
	add(301, false)
	l.drain()
	l.close()
	read(0, false, 0, 300)
	read(901, true)
	read(901, false)
	// Children that a command leaves behind continue to write.
	claim := func(cursor int64) *outputReader {
		t.Helper()
		r, err := l.reader(cursor)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const more = 2 * drainSlack
	add(10, true)
	first := claim(0)
	add(more, false)
	first.close()
	add(20, true)
	r.close()
	r = claim(600)
	read(901, true, 901)
	read(911+more, true, 911+more)
	if _, end := l.bounds(); end != 931+more {
		t.Errorf("it ends at %d", end)
	}
	r.close()
	l.forget()
	add(10, false)
	if o.total != 0 || len(o.finished) != 0 {
		t.Errorf("of what is forgotten %d bytes are kept, %d logs", o.total, len(o.finished))
	}
}

// All commands together stay within the bound: output of finished commands goes first, of
// the longest finished first, and a command never loses its floor to other commands.
func TestOutput_all(t *testing.T) {
	o := newOutputs(Limits{CommandOutput: 4 << 20, AllOutput: 8 << 20, Running: 512, Stall: time.Hour})
	fill := func(l *outputLog, n int) {
		for range n {
			l.append(guest.KindStdout, make([]byte, 64<<10), true, nil)
		}
	}
	first, second, third := o.newLog(), o.newLog(), o.newLog()
	fill(first, 32)
	fill(second, 32)
	second.close()
	first.close()
	fill(third, 60)
	if second.size > 256<<10 || first.size < 2<<20 {
		t.Errorf("kept %d of the one that finished first, %d of the one after", second.size, first.size)
	}
	fourth := o.newLog()
	fill(fourth, 60)
	if o.total > o.limits.AllOutput {
		t.Errorf("kept %d in all", o.total)
	}
	if first.size != 0 || third.size < floor || fourth.size < floor {
		t.Errorf("kept %d, %d, %d", first.size, third.size, fourth.size)
	}
	// Claims on other commands' output do not stop a command that keeps little.
	for _, l := range []*outputLog{third, fourth} {
		if _, err := l.reader(l.start); err != nil {
			t.Fatal(err)
		}
	}
	small := o.newLog()
	if !small.append(guest.KindStdout, []byte("x"), false, nil) {
		t.Error("refused")
	}
	first.forget()
	if start, end := first.bounds(); start != end {
		t.Error("not forgotten")
	}
}

// Single bytes of alternating streams cost the most memory.
func TestOutput_smallWrites(t *testing.T) {
	o := newOutputs(Limits{CommandOutput: 1 << 20, AllOutput: 8 << 20, Running: 4, Stall: time.Hour})
	l := o.newLog()
	for i := range 200_000 {
		l.append(guest.Kind(2+i%2), []byte{byte(i)}, false, nil)
	}
	if kept := len(l.segments); kept > 1<<20/segmentCost {
		t.Errorf("kept %d segments", kept)
	}
	same := o.newLog()
	for i := range 10_000 {
		same.append(guest.KindStdout, []byte{byte(i)}, false, nil)
	}
	if len(same.segments) > 10 {
		t.Errorf("%d segments for 10000 bytes of one stream", len(same.segments))
	}
}

// Small writes share a segment and keep their times, however the clock is set.
func TestOutput_times(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutputs(Limits{CommandOutput: 1 << 20, AllOutput: 8 << 20, Running: 4, Stall: time.Hour})
		l := o.newLog()
		start := time.Now()
		for _, text := range []string{"a", "b", "c"} {
			l.append(guest.KindStdout, []byte(text), false, nil)
			time.Sleep(6 * time.Millisecond) // c is later than a by more than markEvery
		}
		time.Sleep(time.Minute)
		l.append(guest.KindStdout, []byte("later"), false, nil)
		l.append(guest.KindStderr, []byte("other"), true, nil)
		r, err := l.reader(0)
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		for cursor, want := range map[int64]string{
			0: "0:ab@0s 2:c@12ms 3:later@1m0.018s 8:other@1m0.018s",
			1: "1:b@0s 2:c@12ms 3:later@1m0.018s 8:other@1m0.018s",
			3: "3:later@1m0.018s 8:other@1m0.018s",
			5: "5:ter@1m0.018s 8:other@1m0.018s",
		} {
			r.advance(cursor)
			segs, _, err := r.read(t.Context(), false)
			if err != nil || len(segs) != 2 {
				t.Fatalf("%d segments, %v", len(segs), err)
			}
			var got []string
			for _, s := range segs {
				for _, part := range s.byTime() {
					got = append(got, fmt.Sprintf("%d:%s@%v", part.cursor, part.data, time.Duration(part.at-start.UnixNano())))
				}
			}
			if text := strings.Join(got, " "); text != want {
				t.Errorf("from %d: %s, want %s", cursor, text, want)
			}
		}
		if size := int64(len("abclater")+segmentCost+2*markCost) + int64(len("other")+segmentCost); l.size != size {
			t.Errorf("counts %d bytes, want %d", l.size, size)
		}
	})
}
