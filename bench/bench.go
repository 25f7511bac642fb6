// Package bench measures cay as its users use it: a daemon in a process of its
// own, called over HTTP. It measures other programs that do the same work on the
// same machine in the same minute.
//
// A Suite is a list of probes. A Probe is an operation whose samples fill one or
// several Rows, and Subjects are the programs that carry it out: cay first, then
// its opponents. Run takes the samples, and WriteTable and WriteJSON print them.
// Budgets are printed, never asserted.
//
// To add a suite: write a constructor like NewSandboxSuite that returns its
// probes, and list it in cmd/cay-bench.
package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cayhq/cay"
)

// Cay is the name of the subject that is not an opponent.
const Cay = "cay"

// Suite is a set of probes over something that was set up for them.
type Suite struct {
	Name   string
	Probes []Probe
	// Close frees the resources of the probes.
	Close func() error
}

// Has reports whether a row of the suite is the named one or a part of it.
func (s *Suite) Has(name string) bool {
	return slices.ContainsFunc(s.Probes, func(p Probe) bool {
		return slices.ContainsFunc(p.Rows, func(r Row) bool { return within(r.Name, name) })
	})
}

// Row is one line of results.
type Row struct {
	// Name is in snake case. "a.b" is a part of the row "a".
	Name string
	// Unit of the values: "ms", "s", "MB" (a million bytes), or a rate such as
	// "MB/s" and "requests/s".
	Unit string
	// Budget is the target for the median. 0 means none.
	Budget float64
}

// Rate reports whether larger values are better.
func (r Row) Rate() bool { return strings.HasSuffix(r.Unit, "/s") }

// Probe is work to measure.
type Probe struct {
	Rows     []Row // the rows that a sample has values for, in order
	N        int   // samples, unless the user asks for another number
	Warmup   int   // samples before those, which do not count
	Subjects []Subject
}

// Subject does the work of a probe.
type Subject struct {
	Name string // Cay or an opponent
	// Skip says why the subject is not measured. Empty means that it is.
	Skip string
	// Open prepares the common state of all samples. n is the number of samples
	// to come.
	Open func(ctx context.Context, n int) (*Session, error)
}

// Session is a subject ready to be measured.
type Session struct {
	// Sample does the work once and returns a value for each of the probe's
	// rows. Rows that the subject cannot measure separately may be left out at
	// the end.
	Sample func(ctx context.Context) ([]float64, error)
	// Close undoes Open. It may be nil. ctx ends a minute after the last sample.
	Close func(ctx context.Context) error
}

// notMeasured is the reason why a subject cannot be measured, found when it is
// opened: Skip is for reasons that are known before. Cay may be left out in this
// way, too.
type notMeasured string

func (n notMeasured) Error() string { return string(n) }

// Options say how to run a suite. The zero value runs all of it.
type Options struct {
	// N replaces each probe's own number of samples. 0 keeps it.
	N int
	// Rows selects rows by name; a row's name also selects its parts. Empty
	// means all.
	Rows []string
	// Progress, unless nil, is called with the number of a probe's samples by a
	// subject that have been taken, from 0 to n, warm-up included.
	Progress func(row, subject string, done, n int)
}

// Run takes the samples of a suite. Results taken before an error are valid. An
// opponent that fails does not end the run; the reason is in its results.
// Errors: invalid, for a row the suite does not have.
func Run(ctx context.Context, s *Suite, o Options) ([]Result, error) {
	if err := s.check(o); err != nil {
		return nil, err
	}
	machine, err := thisMachine()
	if err != nil {
		return nil, err
	}
	var results []Result
	for _, p := range s.Probes {
		if !slices.ContainsFunc(p.Rows, o.selects) {
			continue
		}
		byRow := make([][]Result, len(p.Rows)) // a row's subjects belong together
		for _, subject := range p.Subjects {
			load, err := loadAverage()
			if err != nil {
				return results, err
			}
			values, skip, err := p.take(ctx, subject, o)
			if err != nil {
				return append(results, slices.Concat(byRow...)...), fmt.Errorf("measure %s: %w", p.Rows[0].Name, err)
			}
			for i, row := range p.Rows {
				if !o.selects(row) || skip == "" && len(values[i]) == 0 {
					continue
				}
				r := Result{
					Suite: s.Name, Row: row.Name, Unit: row.Unit, Budget: row.Budget, Opponent: subject.Name,
					Skipped: skip, Machine: machine, Load: load, Commit: cay.Version(),
				}
				r.summarize(values[i])
				byRow[i] = append(byRow[i], r)
			}
		}
		results = append(results, slices.Concat(byRow...)...)
	}
	return results, nil
}

// check refuses names of unknown rows, so that a typing error does not pass for
// a fast run.
func (s *Suite) check(o Options) error {
	var known []string
	for _, p := range s.Probes {
		for _, row := range p.Rows {
			known = append(known, row.Name)
		}
	}
	for _, name := range o.Rows {
		if !s.Has(name) {
			return cay.Errorf(cay.Invalid, "suite %s has no row %q", s.Name, name).
				WithHint("its rows are %s", strings.Join(known, ", "))
		}
	}
	return nil
}

func (o Options) selects(r Row) bool {
	return len(o.Rows) == 0 || slices.ContainsFunc(o.Rows, func(name string) bool { return within(r.Name, name) })
}

// within reports whether a row is the named one or a part of it.
func within(row, name string) bool { return row == name || strings.HasPrefix(row, name+".") }

// take returns the values of each row, or the reason why an opponent has none.
func (p Probe) take(ctx context.Context, s Subject, o Options) (values [][]float64, skip string, err error) {
	values = make([][]float64, len(p.Rows))
	if s.Skip != "" {
		return values, s.Skip, nil
	}
	values, err = p.samples(ctx, s, o)
	if why, ok := errors.AsType[notMeasured](err); ok {
		return make([][]float64, len(p.Rows)), string(why), nil
	}
	if err != nil && s.Name != Cay && ctx.Err() == nil {
		return make([][]float64, len(p.Rows)), "failed: " + err.Error(), nil
	}
	return values, "", err
}

func (p Probe) samples(ctx context.Context, s Subject, o Options) (values [][]float64, err error) {
	n := p.N
	if o.N > 0 {
		n = o.N
	}
	progress := func(done int) {
		if o.Progress != nil {
			o.Progress(p.Rows[0].Name, s.Name, done, p.Warmup+n)
		}
	}
	progress(0)
	session, err := s.Open(ctx, n)
	if err != nil {
		return nil, err
	}
	if session.Close != nil {
		defer func() {
			ctx, cancel := cleanup(ctx)
			defer cancel()
			err = errors.Join(err, session.Close(ctx))
		}()
	}
	values = make([][]float64, len(p.Rows))
	for i := range p.Warmup + n {
		sample, err := session.Sample(ctx)
		if err != nil {
			return nil, err
		}
		progress(i + 1)
		if i < p.Warmup {
			continue
		}
		for row, v := range sample {
			values[row] = append(values[row], v)
		}
	}
	return values, nil
}
