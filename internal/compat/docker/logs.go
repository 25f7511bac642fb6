package docker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay/sandbox"
)

// logParams is the query of a request for logs.
type logParams struct {
	stdout, stderr, follow bool
	tail                   int // lines; negative: all
	since, until           time.Time
	stamps                 bool
}

// timed reports whether the request needs the times of lines.
func (p *logParams) timed() bool { return p.stamps || !p.since.IsZero() || !p.until.IsZero() }

func logQuery(r *http.Request) (p logParams, err error) {
	q := r.URL.Query()
	p = logParams{follow: flag(r, "follow"), tail: -1, stamps: flag(r, "timestamps")}
	if p.stdout, p.stderr = wanted(r); !p.stdout && !p.stderr {
		return p, failf(http.StatusBadRequest, "Bad parameters: you must choose at least one stream")
	}
	if t := q.Get("tail"); t != "" && t != "all" {
		if p.tail, err = strconv.Atoi(t); err != nil || p.tail < 0 {
			return p, failf(http.StatusBadRequest, "invalid tail %q: it is a number of lines, or all", t)
		}
	}
	if p.since, err = logTime(q, "since"); err != nil {
		return p, err
	}
	p.until, err = logTime(q, "until")
	return p, err
}

// logTime reads a time in seconds since 1970, with up to nine digits after the point. Zero
// and nothing mean no time.
func logTime(q url.Values, name string) (time.Time, error) {
	text := q.Get(name)
	whole, fraction, _ := strings.Cut(text, ".")
	if text == "" {
		return time.Time{}, nil
	}
	seconds, err := strconv.ParseInt(whole, 10, 64)
	nanos, err2 := int64(0), error(nil)
	if fraction != "" {
		nanos, err2 = strconv.ParseInt((fraction + "000000000")[:9], 10, 64)
	}
	if err != nil || err2 != nil || len(fraction) > 9 || nanos < 0 || seconds < 0 || seconds > math.MaxInt32*8 {
		return time.Time{}, failf(http.StatusBadRequest, "invalid %s %q: it is a time in seconds since 1970", name, text)
	}
	if seconds == 0 && nanos == 0 {
		return time.Time{}, nil
	}
	return time.Unix(seconds, nanos).UTC(), nil
}

func (s *Server) handleLogs(w http.ResponseWriter, r *http.Request, c *container) error {
	p, err := logQuery(r)
	if err != nil {
		return err
	}
	if c.State.Command == "" {
		w.Header().Set("Content-Type", streamType(c.Spec.Tty))
		w.WriteHeader(http.StatusOK)
		return nil
	}
	follow := p.follow && c.running()
	v := s.lives.of(c.ID)
	defer v.reading()()
	ctx := r.Context()
	if follow && !p.until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, p.until)
		defer cancel()
		// Lines from before that time are sent, even if it has passed.
		follow = ctx.Err() == nil
		if !follow {
			ctx = r.Context()
		}
	}
	out, err := s.output(ctx, c, sandbox.OutputParams{Follow: follow && p.tail < 0, Times: p.timed()})
	if err != nil {
		return err
	}
	defer func() { out.Close() }()
	w.Header().Set("Content-Type", streamType(c.Spec.Tty))
	w.WriteHeader(http.StatusOK)
	to := &logSink{
		sink:   sink{w: w, raw: c.Spec.Tty, stdout: p.stdout, stderr: p.stderr, flush: http.NewResponseController(w).Flush},
		params: p, started: c.State.Started,
	}
	broken := func(err error) error {
		if ctx.Err() == context.DeadlineExceeded && r.Context().Err() == nil {
			return nil // the time of until has come
		}
		return s.broken(err)
	}
	if p.tail >= 0 {
		last := lastLines{lines: p.tail, stdout: p.stdout, stderr: p.stderr}
		cursor, err := last.read(out)
		if err != nil {
			return broken(err)
		}
		for _, ev := range last.events() {
			if err := to.put(ev); err != nil {
				return broken(err)
			}
		}
		if !follow {
			return nil
		}
		out.Close()
		next, err := s.output(ctx, c, sandbox.OutputParams{Follow: true, Cursor: cursor, Times: p.timed()})
		if err != nil {
			return broken(err)
		}
		out = next
	}
	return broken(to.copy(out))
}

// broken ends an answer that has begun by closing its connection, so that a client
// does not take what it has for all.
func (s *Server) broken(err error) error {
	if err != nil && err != errUnwanted && err != errPast {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// logSink is a sink of the lines within some time, with their times before them if the
// client wants those.
type logSink struct {
	sink
	params  logParams
	started time.Time // of the container; the time of output that was kept without times
	past    bool      // a line was written after params.until
	open    [2]struct {
		inside bool // a line has begun whose end has not come
		left   bool // it is left out
	}
}

// errPast is returned when no wanted line can follow.
var errPast = errors.New("all later lines are from after the last wanted time")

// stampFormat is RFC 3339 with all digits, as docker writes times.
const stampFormat = "2006-01-02T15:04:05.000000000Z07:00"

func (k *logSink) copy(out sandbox.Output) error {
	for {
		ev, err := out.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := k.put(ev); err != nil {
			return err
		}
	}
}

func (k *logSink) put(ev sandbox.Event) error {
	if !k.params.timed() {
		return k.sink.put(ev.Stream, ev.Data)
	}
	if ev.Time.IsZero() {
		ev.Time = k.started
	}
	line := &k.open[0]
	if ev.Stream == sandbox.Stderr {
		line = &k.open[1]
	}
	var text []byte
	for part := range bytes.Lines(ev.Data) {
		if !line.inside {
			past := !k.params.until.IsZero() && ev.Time.After(k.params.until)
			k.past = k.past || past
			line.left = past || ev.Time.Before(k.params.since)
			if k.params.stamps && !line.left {
				text = append(ev.Time.UTC().AppendFormat(text, stampFormat), ' ')
			}
		}
		line.inside = !bytes.HasSuffix(part, []byte("\n"))
		if !line.left {
			text = append(text, part...)
		}
	}
	if err := k.sink.put(ev.Stream, text); err != nil {
		return err
	}
	for _, l := range k.open {
		if l.inside && !l.left {
			return nil // a wanted line goes on
		}
	}
	if k.past {
		return errPast
	}
	return nil
}

// lastLines keeps the last lines of an output. The daemon bounds what it keeps of
// an output, and thereby what this holds.
type lastLines struct {
	lines          int
	stdout, stderr bool
	kept           []sandbox.Event // each a line, or the rest of one
}

// read reads all there is and returns the cursor after it.
func (l *lastLines) read(out sandbox.Output) (cursor int64, err error) {
	for {
		ev, err := out.Next()
		if err != nil {
			if err == io.EOF {
				return cursor, nil
			}
			return cursor, err
		}
		if len(ev.Data) == 0 {
			continue
		}
		cursor = ev.Cursor + int64(len(ev.Data))
		if ev.Stream == sandbox.Stderr && !l.stderr || ev.Stream == sandbox.Stdout && !l.stdout {
			continue
		}
		for line := range bytes.Lines(bytes.Clone(ev.Data)) {
			l.add(sandbox.Event{Stream: ev.Stream, Data: line, Time: ev.Time})
		}
	}
}

func (l *lastLines) add(ev sandbox.Event) {
	// The rest of a line that came in pieces belongs to it.
	for i := len(l.kept) - 1; i >= 0; i-- {
		if k := &l.kept[i]; k.Stream == ev.Stream {
			if !bytes.HasSuffix(k.Data, []byte("\n")) {
				k.Data = append(k.Data[:len(k.Data):len(k.Data)], ev.Data...)
				return
			}
			break
		}
	}
	l.kept = append(l.kept, ev)
	if len(l.kept) > 2*l.lines+64 {
		l.kept = append(l.kept[:0], l.kept[len(l.kept)-l.lines:]...)
	}
}

func (l *lastLines) events() []sandbox.Event { return l.kept[max(0, len(l.kept)-l.lines):] }
