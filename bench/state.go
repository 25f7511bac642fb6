package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/sandbox"
)

// StateOptions are the options of the state suite. Sizes are in MiB.
type StateOptions struct {
	Daemon *Daemon
	// Opponents adds the same work without saved state. WorkDir is an empty
	// directory for its files, on the same disk as the daemon's data.
	Opponents bool
	WorkDir   string

	Snapshots []int // sizes on disk. nil: 0, 64, 100, 256 and 1024
	Resumes   []int // sizes on disk. nil: 0, 100, 1024 and 2048
	Changed   int   // size on disk of the sandboxes that are saved again and again. 0: 1024
	Hibernate []int // sizes in memory. nil: 0 and 256
	Forked    []int // sizes in memory. nil: 0, 64, 256 and 1024
	Forks     []int // how many at once, of each size. nil: 1, 10 and 50
	// Burst and Restore are how many sandboxes start at once from a snapshot of
	// Restored on disk. 0: 20, 50 and 64.
	Burst, Restore, Restored int
}

// stateBench has the common state of the suite's probes.
type stateBench struct{ o StateOptions }

// NewStateSuite returns the suite of saving sandboxes, and of starting
// sandboxes from the saved state.
func NewStateSuite(o StateOptions) *Suite {
	setDefault(&o.Snapshots, 0, 64, 100, 256, 1024)
	setDefault(&o.Resumes, 0, 100, 1024, 2048)
	setDefault(&o.Hibernate, 0, 256)
	setDefault(&o.Forked, 0, 64, 256, 1024)
	setDefault(&o.Forks, 1, 10, 50)
	for n, byDefault := range map[*int]int{&o.Changed: 1024, &o.Burst: 20, &o.Restore: 50, &o.Restored: 64} {
		if *n == 0 {
			*n = byDefault
		}
	}
	st := &stateBench{o}
	suite := &Suite{Name: "state", Close: func() error { return nil }}
	for _, mib := range o.Snapshots {
		suite.Probes = append(suite.Probes, st.snapshots(mib))
	}
	suite.Probes = append(suite.Probes, st.changes(o.Changed))
	for _, mib := range o.Resumes {
		suite.Probes = append(suite.Probes, st.resumes(mib, 0))
	}
	suite.Probes = append(suite.Probes, st.resumes(o.Changed, 10))
	for _, mib := range o.Forked {
		for _, n := range o.Forks {
			suite.Probes = append(suite.Probes, st.forks(mib, n))
		}
	}
	for _, mib := range o.Hibernate {
		suite.Probes = append(suite.Probes, st.hibernations(mib))
	}
	suite.Probes = append(suite.Probes,
		st.restores(fmt.Sprintf("burst_%d_snapshot", o.Burst), o.Burst),
		st.restores(fmt.Sprintf("restore_%d", o.Restore), o.Restore))
	return suite
}

func setDefault(sizes *[]int, byDefault ...int) {
	if *sizes == nil {
		*sizes = byDefault
	}
}

// stateBudgets has the sizes with a budget; see docs/benchmarks.md.
var stateBudgets = map[string]float64{
	"snapshot_100": 150, "snapshot_1024_1": 150, "resume_100": 150, "resume_2048": 330,
	"fork_256_1": 200, "fork_256_10": 1000, "hibernate_0": 250,
}

// rowsOf returns a row and its parts, each with its unit after a space.
func rowsOf(name, unit string, parts ...string) []Row {
	rows := []Row{{name, unit, stateBudgets[name]}}
	for _, p := range parts {
		part, unit, _ := strings.Cut(p, " ")
		rows = append(rows, Row{name + "." + part, unit, 0})
	}
	return rows
}

// samplesOf returns how many samples of work on mib MiB are worth their time.
func samplesOf(mib int) int {
	switch {
	case mib <= 256:
		return 10
	case mib <= 1024:
		return 5
	}
	return 3
}

// beside returns cay, and an opponent if the options ask for opponents.
func (st *stateBench) beside(open func(context.Context) (*Session, error), opponent string, instead func(context.Context) (*Session, error)) []Subject {
	subjects := []Subject{{Name: Cay, Open: func(ctx context.Context, _ int) (*Session, error) { return open(ctx) }}}
	if st.o.Opponents {
		subjects = append(subjects, Subject{Name: opponent, Open: func(ctx context.Context, _ int) (*Session, error) { return instead(ctx) }})
	}
	return subjects
}

// cold is the opponent that starts a new sandbox, and makes the same data
// again.
const cold = "cold"

// filled creates a sandbox with data on its disk. It is nil with an error.
func (st *stateBench) filled(ctx context.Context, p sandbox.CreateParams, mib int) (b *sandboxBox, sum string, err error) {
	if b, err = newSandbox(ctx, st.o.Daemon.Client, p); err != nil {
		return nil, "", err
	}
	if mib == 0 {
		_, err = b.run(ctx, "true")
	} else {
		sum, err = b.fill(ctx, mib)
	}
	if err != nil {
		removeBox(ctx, b, &err)
		return nil, "", err
	}
	return b, sum, nil
}

// forget removes a sandbox and all snapshots of it.
func (b *sandboxBox) forget(ctx context.Context) error {
	var ids []string
	for p := (sandbox.SnapshotListParams{Sandbox: b.id}); ; {
		page, err := b.c.ListSnapshots(ctx, p)
		if err != nil {
			return err
		}
		for _, s := range page.Items {
			ids = append(ids, s.ID)
		}
		if p.Cursor = page.Next; p.Cursor == "" {
			break
		}
	}
	// The sandbox may need its newest snapshot until it is deleted.
	errs := []error{b.remove(ctx)}
	for _, id := range ids {
		_, err := b.c.DeleteSnapshot(ctx, id, sandbox.DeleteSnapshotParams{})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// snapshots measures saving the files of a sandbox that has just written them.
func (st *stateBench) snapshots(mib int) Probe {
	open := func(ctx context.Context) (*Session, error) {
		b, _, err := st.filled(ctx, sandbox.CreateParams{}, 0)
		if err != nil {
			return nil, err
		}
		return &Session{Close: b.forget, Sample: func(ctx context.Context) ([]float64, error) {
			if mib > 0 {
				if _, err := b.fill(ctx, mib); err != nil {
					return nil, err
				}
			}
			begun := time.Now()
			snap, err := b.c.CreateSnapshot(ctx, b.id, sandbox.SnapshotParams{})
			took := time.Since(begun)
			if err != nil {
				return nil, err
			}
			_, err = b.c.DeleteSnapshot(ctx, snap.ID, sandbox.DeleteSnapshotParams{})
			if err == nil && snap.SizeBytes < int64(mib)<<20 {
				err = fmt.Errorf("a snapshot of %d MiB has %d bytes", mib, snap.SizeBytes)
			}
			return []float64{ms(took), ms(time.Duration(snap.Paused))}, err
		}}, nil
	}
	return Probe{
		Rows: rowsOf("snapshot_"+strconv.Itoa(mib), "ms", "paused ms"), N: samplesOf(mib), Warmup: 1,
		Subjects: st.beside(open, "tar", func(context.Context) (*Session, error) { return st.tar(mib) }),
	}
}

// tar measures saving a file of that size on the host as an archive, synced.
func (st *stateBench) tar(mib int) (_ *Session, err error) {
	dir, err := os.MkdirTemp(st.o.WorkDir, "tar-")
	if err != nil {
		return nil, fmt.Errorf("make work directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := writeSynced(filepath.Join(dir, "data"), randomBytes(mib<<20)); err != nil {
		return nil, err
	}
	archive := filepath.Join(dir, "archive")
	return &Session{
		Close: func(context.Context) error { return os.RemoveAll(dir) },
		Sample: func(ctx context.Context) (_ []float64, err error) {
			begun := time.Now()
			if _, err := output(exec.CommandContext(ctx, "tar", "-cf", archive, "-C", dir, "data"), (*exec.Cmd).Start); err != nil {
				return nil, err
			}
			if err := syncFile(archive); err != nil {
				return nil, err
			}
			took := time.Since(begun)
			return []float64{ms(took)}, os.Remove(archive)
		},
	}, nil
}

func writeSynced(path string, data []byte) error {
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return err
	}
	return syncFile(path)
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// changes measures saving the files of a sandbox, of mib files of 1 MiB, of which one has
// changed since the save before.
func (st *stateBench) changes(mib int) Probe {
	open := func(ctx context.Context) (_ *Session, err error) {
		b, _, err := st.filled(ctx, sandbox.CreateParams{}, 0)
		if err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, b.forget(ctx))
			}
		}()
		write := "mkdir -p many; for i in $(seq " + strconv.Itoa(mib) + "); do head -c 1048576 /dev/urandom > many/$i; done; sync"
		if _, err := b.run(ctx, "sh", "-c", write); err != nil {
			return nil, err
		}
		last, err := b.c.CreateSnapshot(ctx, b.id, sandbox.SnapshotParams{})
		if err != nil {
			return nil, err
		}
		i := 0
		return &Session{Close: b.forget, Sample: func(ctx context.Context) ([]float64, error) {
			i = i%mib + 1
			if _, err := b.run(ctx, "sh", "-c", fmt.Sprintf("head -c 1048576 /dev/urandom > many/%d; sync", i)); err != nil {
				return nil, err
			}
			before, err := st.o.Daemon.snapshotBytes(ctx)
			if err != nil {
				return nil, err
			}
			begun := time.Now()
			snap, err := b.c.CreateSnapshot(ctx, b.id, sandbox.SnapshotParams{})
			took := time.Since(begun)
			if err != nil {
				return nil, err
			}
			after, err := st.o.Daemon.snapshotBytes(ctx)
			if err != nil {
				return nil, err
			}
			_, err = b.c.DeleteSnapshot(ctx, last.ID, sandbox.DeleteSnapshotParams{})
			last = snap
			return []float64{ms(took), ms(time.Duration(snap.Paused)), float64(after-before) / 1e6}, err
		}}, nil
	}
	return Probe{
		Rows: rowsOf("snapshot_"+strconv.Itoa(mib)+"_1", "ms", "paused ms", "disk MB"), N: samplesOf(mib), Warmup: 1,
		Subjects: st.beside(open, "tar", func(context.Context) (*Session, error) { return st.tar(mib) }),
	}
}

// snapshotBytes returns how much disk the daemon's snapshots take. Files that several
// snapshots share count once.
func (d *Daemon) snapshotBytes(ctx context.Context) (int64, error) {
	file, err := d.databaseFile()
	if err != nil {
		return 0, err
	}
	var bytes int64
	seen := map[uint64]bool{}
	err = filepath.WalkDir(filepath.Join(filepath.Dir(file), "snapshots"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if !seen[st.Ino] {
			seen[st.Ino], bytes = true, bytes+512*st.Blocks
		}
		return ctx.Err()
	})
	return bytes, err
}

// resumes measures stopping a persistent sandbox and resuming it, after a number of saves
// with 1 MiB changed before each.
func (st *stateBench) resumes(mib, saves int) Probe {
	open := func(ctx context.Context) (*Session, error) {
		b, sum, err := st.filled(ctx, sandbox.CreateParams{Persistent: new(true), Retention: &sandbox.Retention{Keep: 1}}, mib)
		if err != nil {
			return nil, err
		}
		for range saves {
			_, err := b.run(ctx, "sh", "-c", "head -c 1048576 /dev/urandom > changed; sync")
			if err == nil {
				_, err = b.c.CreateSnapshot(ctx, b.id, sandbox.SnapshotParams{})
			}
			if err != nil {
				return nil, errors.Join(err, b.forget(ctx))
			}
		}
		return &Session{Close: b.forget, Sample: func(ctx context.Context) ([]float64, error) {
			begun := time.Now()
			if _, err := b.c.Stop(ctx, b.id); err != nil {
				return nil, err
			}
			stopped := time.Now()
			if _, err := b.c.Resume(ctx, b.id, sandbox.ResumeParams{}); err != nil {
				return nil, err
			}
			resumed := time.Now()
			if _, err := b.run(ctx, "true"); err != nil {
				return nil, err
			}
			values := []float64{ms(time.Since(stopped)), ms(stopped.Sub(begun)), ms(resumed.Sub(stopped))}
			if mib == 0 {
				return values, nil
			}
			err := b.verify(ctx, sum)
			return append(values, ms(time.Since(stopped))), err
		}}, nil
	}
	parts := []string{"stop ms", "call ms"}
	if mib > 0 {
		parts = append(parts, "read ms")
	}
	row := "resume_" + strconv.Itoa(mib)
	if saves > 0 {
		row += "_" + strconv.Itoa(saves)
	}
	return Probe{
		Rows: rowsOf(row, "ms", parts...), N: samplesOf(mib), Warmup: 1,
		Subjects: st.beside(open, cold, st.coldly(func(ctx context.Context) (*sandboxBox, error) {
			b, _, err := st.filled(ctx, sandbox.CreateParams{}, mib)
			return b, err
		})),
	}
}

// coldly measures starting a new sandbox.
func (st *stateBench) coldly(start func(ctx context.Context) (*sandboxBox, error)) func(context.Context) (*Session, error) {
	return func(context.Context) (*Session, error) {
		return &Session{Sample: func(ctx context.Context) ([]float64, error) {
			begun := time.Now()
			b, err := start(ctx)
			if err != nil {
				return nil, err
			}
			took := time.Since(begun)
			ctx, cancel := cleanup(ctx)
			defer cancel()
			return []float64{ms(took)}, b.remove(ctx)
		}}, nil
	}
}

// hibernations measures hibernating a sandbox and resuming it on demand.
func (st *stateBench) hibernations(mib int) Probe {
	open := func(ctx context.Context) (*Session, error) {
		b, h, err := st.holding(ctx, mib)
		if err != nil {
			return nil, err
		}
		return &Session{Close: b.forget, Sample: func(ctx context.Context) ([]float64, error) {
			begun := time.Now()
			if _, err := b.c.Hibernate(ctx, b.id); err != nil {
				return nil, err
			}
			slept := time.Now()
			if _, err := b.run(ctx, "true"); err != nil {
				return nil, err
			}
			woken := time.Now()
			err := h.check(ctx, b.id)
			return []float64{ms(woken.Sub(begun)), ms(slept.Sub(begun)), ms(woken.Sub(slept)), ms(time.Since(slept))}, err
		}}, nil
	}
	return Probe{
		Rows: rowsOf("hibernate_"+strconv.Itoa(mib), "ms", "save ms", "wake ms", "read ms"), N: samplesOf(mib), Warmup: 1,
		Subjects: st.beside(open, cold, st.coldly(func(ctx context.Context) (*sandboxBox, error) {
			b, _, err := st.holding(ctx, mib)
			return b, err
		})),
	}
}

// holding creates a sandbox with data in memory. It is nil with an error.
func (st *stateBench) holding(ctx context.Context, mib int) (*sandboxBox, *holder, error) {
	b, err := newSandbox(ctx, st.o.Daemon.Client, sandbox.CreateParams{})
	if err != nil {
		return nil, nil, err
	}
	h, err := b.hold(ctx, mib)
	if err != nil {
		removeBox(ctx, b, &err)
		return nil, nil, err
	}
	return b, h, nil
}
