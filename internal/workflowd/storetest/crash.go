package storetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/internal/workflowd"
)

// crashRuns is the number of runs in each group of Write.
const crashRuns = 5

// Write commits groups until it is killed, and reports each stored group on w. Every
// group appends one step to each of its runs and a chunk to a stream of the first run,
// and moves a hook from one run to another. Write continues from the stored state. Crash
// checks the state that Write leaves.
func Write(ctx context.Context, s workflowd.Store, w io.Writer) error {
	var logs []*history.Log
	for i := range crashRuns {
		l := history.NewLog(history.Run{ID: fmt.Sprintf("wrun_%026d", i), Workflow: "order"})
		if r, err := s.Run(ctx, l.Run.ID); err == nil {
			events, err := s.Events(ctx, l.Run.ID, 1, 0)
			if err != nil {
				return err
			}
			if l, err = history.LoadLog(*r, events); err != nil {
				return err
			}
		}
		logs = append(logs, l)
	}
	for {
		first := logs[0]
		n := groups(first)
		var r workflowd.Records
		for _, l := range logs {
			events := []history.Event{step(fmt.Sprintf("step_a.%d", n))}
			if n == 0 {
				events = []history.Event{created()}
			}
			if l == logs[n%crashRuns] && n > 0 {
				for o := range l.AllOpen() {
					events = append(events, history.Event{Type: history.HookDisposed, ID: o.ID})
				}
				events = append(events, hook(fmt.Sprintf("hook_%d", n), fmt.Sprint("token ", n)))
			}
			var stored []history.Event
			for _, e := range events {
				e.At = time.Now().UnixMilli()
				if _, err := l.Apply(&e); err != nil {
					return err
				}
				stored = append(stored, e)
			}
			r.Logs = append(r.Logs, workflowd.Log{Run: &l.Run, Events: stored})
		}
		chunk := history.Chunk{Index: n, Data: []byte(fmt.Sprint(n))}
		r.Chunks = []workflowd.StreamChunks{{Run: first.Run.ID, Stream: "out", Chunks: []history.Chunk{chunk}}}
		r.Blobs = []workflowd.Blob{{Run: first.Run.ID, Name: fmt.Sprint("blob ", chunk.Index), Data: chunk.Data}}
		if chunk.Index%10 != 0 {
			r.Blobs = nil
		}
		// The query makes the store reorganise its data during the commit.
		asked := make(chan error, 1)
		go func() {
			var err error
			if n%4 == 0 {
				_, err = s.Runs(ctx, history.Query{})
			}
			asked <- err
		}()
		err := s.Commit(ctx, &workflowd.Group{Settle: func() workflowd.Records { return r }})
		if err := errors.Join(err, <-asked); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "stored %d\n", chunk.Index); err != nil {
			return err
		}
	}
}

// groups returns the number of groups in a run's log: the first group created the run,
// and each later one added a step.
func groups(l *history.Log) (n int64) {
	if l.Run.Events == 0 {
		return 0
	}
	for n = 1; l.State(fmt.Sprintf("step_a.%d", n)) == history.StepDone; n++ {
	}
	return n
}

// Crash kills a process that calls Write at random moments, rounds times, and checks the
// store each time: groups that were reported as stored must be complete, and every other
// group complete or absent. start makes the command that opens the same store and calls
// Write on its standard output; open opens the store in this process and closes it when
// the test ends or close is called.
func Crash(t *testing.T, rounds int, start func() *exec.Cmd, open func() workflowd.Store) {
	random := seedtest.Rand(t)
	for round := range rounds {
		cmd := start()
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The kill comes after a number of groups, so that slow and fast machines get
		// equally far.
		stop := 1 + random.IntN(150)
		said := int64(-1)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if _, err := fmt.Sscanf(lines.Text(), "stored %d", &said); err != nil {
				t.Errorf("the process said %q", lines.Text())
			}
			if stop--; stop == 0 {
				break
			}
		}
		if stop > 0 {
			t.Errorf("the process ended by itself")
		}
		// The kill comes not right after a commit, but at a random moment in the next
		// groups.
		kill := time.AfterFunc(time.Duration(random.IntN(2000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
		for lines.Scan() { // reports that were written before the kill
			if _, err := fmt.Sscanf(lines.Text(), "stored %d", &said); err != nil {
				break // the last line is cut off
			}
		}
		_ = cmd.Wait()
		kill.Stop()
		if stderr.Len() > 0 {
			t.Errorf("the process said: %s", &stderr)
		}
		s := open()
		inspect(t, s, said)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Fatalf("in round %d", round+1)
		}
	}
}

// inspect checks that Write left whole groups, at least all up to said.
func inspect(t *testing.T, s workflowd.Store, said int64) {
	t.Helper()
	ctx := t.Context()
	var first int64
	tokens := map[string]bool{}
	for i := range crashRuns {
		r, err := s.Run(ctx, fmt.Sprintf("wrun_%026d", i))
		if err != nil {
			t.Fatal(err)
		}
		events, err := s.Events(ctx, r.ID, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		l, err := history.LoadLog(*r, events)
		if err != nil {
			t.Fatal(err)
		}
		if r.Events != int64(len(events)) {
			t.Errorf("run %s has %d events, and says %d", r.ID, len(events), r.Events)
		}
		n := groups(l)
		if i == 0 {
			first = n
		}
		if n != first || n < said+1 {
			t.Errorf("run %s has seen %d groups, the first %d; %d were stored", r.ID, n, first, said+1)
		}
		for o := range l.AllOpen() {
			tokens[o.Token] = true
			if h, err := s.Hook(ctx, "", o.Token); err != nil || h.Run != r.ID || h.ID != o.ID {
				t.Errorf("hook %s of %s: %+v, %v", o.ID, r.ID, h, err)
			}
		}
		if i > 0 {
			continue
		}
		for from := int64(0); from < n; {
			chunks, info, err := s.Chunks(ctx, r.ID, "out", from, 1000)
			if err != nil || len(chunks) == 0 || info.Chunks != n || chunks[0].Index != from {
				t.Fatalf("stream %+v, %d chunks from %d, %v; want %d", info, len(chunks), from, err, n)
			}
			from += int64(len(chunks))
		}
		for at := int64(0); at < n; at += 10 {
			if _, err := s.Blob(ctx, r.ID, fmt.Sprint("blob ", at)); err != nil {
				t.Errorf("payload %d: %v", at, err)
			}
		}
	}
	page, err := s.Hooks(ctx, "", "", "", 100)
	if err != nil || len(page.Items) != len(tokens) {
		t.Errorf("%d hooks (%v), want %d", len(page.Items), err, len(tokens))
	}
}
