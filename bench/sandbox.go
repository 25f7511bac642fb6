package bench

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/sandbox"
)

// SandboxOptions are the options of the sandbox suite.
type SandboxOptions struct {
	Daemon *Daemon
	// Opponents adds the installed opponents, and reports the missing ones.
	Opponents bool
	// Images is the store whose default image the opponents run too, and WorkDir
	// an empty directory for their files. Used with Opponents only.
	Images  *image.Store
	WorkDir string
	// Stopped is the number of stopped sandboxes beside which creations are measured, at
	// least 1000. 0 means 100,000.
	Stopped int
	// StartPooled starts another daemon, with a pool of size machines. If it is
	// nil, the rows that need a daemon of their own are left out.
	StartPooled func(ctx context.Context, size int) (*Daemon, error)
	// Burst is how many sandboxes one burst makes. 0 means 100.
	Burst int
	// Live is the larger number of sandboxes beside which creations are measured. 0 means
	// 1000.
	Live int
}

// runner makes boxes: a daemon makes sandboxes, an opponent its equivalent.
type runner interface {
	create(ctx context.Context) (box, error)
}

// box is where programs run.
type box interface {
	// run runs a program to its end and returns its standard output.
	run(ctx context.Context, argv ...string) (string, error)
	// firstByte runs a program to its end and returns the time of its first
	// output.
	firstByte(ctx context.Context, argv ...string) (time.Duration, error)
	// processes returns the ids of the box's host processes, descendants
	// excluded.
	processes(ctx context.Context) ([]int, error)
	remove(ctx context.Context) error
}

// files is a box with an API for files.
type files interface {
	write(ctx context.Context, path string, data []byte) error
	// read returns how many bytes there were.
	read(ctx context.Context, path string) (int64, error)
}

// NewSandboxSuite returns the suite of the main operations on sandboxes: start,
// run programs, transfer files, use little memory while idle, and end.
func NewSandboxSuite(o SandboxOptions) *Suite {
	o.Burst, o.Live, o.Stopped = cmp.Or(o.Burst, 100), cmp.Or(o.Live, 1000), cmp.Or(o.Stopped, 100_000)
	daemon := &daemonRunner{o.Daemon}
	all := []contender{{name: Cay, runner: daemon}}
	closeOpponents := func() error { return nil }
	if o.Opponents {
		var opponents []contender
		opponents, closeOpponents = newOpponents(o.Images, o.WorkDir)
		all = append(all, opponents...)
	}
	// Running a program natively creates nothing.
	boxed, local := without(all, "native"), only(all, Cay, "native")

	suite := &Suite{Name: "sandbox", Close: closeOpponents, Probes: []Probe{
		{Rows: []Row{{"tti_cold", "ms", 130}}, N: 20, Warmup: 1, Subjects: subjects(all, startAndRun)},
		{Rows: []Row{
			{"create_cold", "ms", 0}, {"destroy", "ms", 0},
			{"create_cold.image", "ms", 0}, {"create_cold.start", "ms", 0}, {"create_cold.guest", "ms", 0},
		}, N: 20, Warmup: 1, Subjects: subjects(boxed, createAndRemove(o.Daemon))},
		{Rows: []Row{{fmt.Sprintf("burst_%d_cold", o.Burst), "s", 12}}, N: 3, Subjects: subjects(boxed, burst(o.Burst))},
		crowdProbe(o.Daemon, min(10, o.Live-1), all), crowdProbe(o.Daemon, o.Live, all),
		{Rows: execRows("exec", 6), N: 200, Warmup: 10, Subjects: subjects(all, spawn("true", asItIs))},
		{Rows: execRows("exec_static", 0), N: 200, Warmup: 10, Subjects: subjects(local, spawn(staticPath, putStatic))},
		{Rows: []Row{{"exec_first_byte", "ms", 0}}, N: 200, Warmup: 10, Subjects: subjects(all, firstByte)},
		{Rows: []Row{{"write_1KiB", "ms", 0}, {"read_1KiB", "ms", 0}}, N: 100, Warmup: 5, Subjects: subjects(local, transfer(1<<10))},
		{Rows: []Row{{"write_1MiB", "ms", 0}, {"read_1MiB", "ms", 0}}, N: 50, Warmup: 5, Subjects: subjects(local, transfer(1<<20))},
		{Rows: []Row{{"write_100MiB", "MB/s", 400}, {"read_100MiB", "MB/s", 400}}, N: 10, Warmup: 1, Subjects: subjects(local, transfer(100<<20))},
		{Rows: []Row{{"idle_memory", "MB", 16}, {"idle_memory.pss", "MB", 0}, {"idle_memory.available", "MB", 0}}, N: 100,
			Subjects: subjects(boxed, idle(o.Daemon))},
		{Rows: []Row{
			{"workload_build", "ms", 0}, {"workload_build.unpack", "ms", 0}, {"workload_build.compile", "ms", 0},
			{"workload_build.fork", "ms", 0}, {"workload_build.pack", "ms", 0},
		}, N: 3, Subjects: subjects(all, build)},
	}}
	if o.StartPooled != nil {
		all[0].runner = &pooledRunner{start: o.StartPooled}
		suite.Probes = append(suite.Probes, rowsProbe(o.StartPooled, o.Stopped, all),
			Probe{Rows: []Row{{"tti_pool", "ms", 30}}, N: 20, Warmup: 1, Subjects: subjects(all, fromPool(5, startAndRun))},
			Probe{Rows: []Row{{fmt.Sprintf("burst_%d_pool", o.Burst), "s", 0.6}}, N: 3,
				Subjects: subjects(without(all, "native"), fromPool(o.Burst, burst(o.Burst)))})
	}
	return suite
}

// contender is a runner in a suite.
type contender struct {
	name, skip string
	runner     runner
}

// opener prepares the samples of a probe by a runner.
type opener func(ctx context.Context, r runner, n int) (*Session, error)

func subjects(cs []contender, open opener) []Subject {
	var all []Subject
	for _, c := range cs {
		all = append(all, Subject{Name: c.name, Skip: c.skip, Open: func(ctx context.Context, n int) (*Session, error) {
			return open(ctx, c.runner, n)
		}})
	}
	return all
}

func without(cs []contender, name string) (rest []contender) {
	for _, c := range cs {
		if c.name != name {
			rest = append(rest, c)
		}
	}
	return rest
}

func only(cs []contender, names ...string) (rest []contender) {
	for _, c := range cs {
		for _, name := range names {
			if c.name == name {
				rest = append(rest, c)
			}
		}
	}
	return rest
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// startAndRun measures the time from the creation to the output of a first
// program.
func startAndRun(_ context.Context, r runner, _ int) (*Session, error) {
	return &Session{Sample: func(ctx context.Context) (_ []float64, err error) {
		begun := time.Now()
		b, err := r.create(ctx)
		if err != nil {
			return nil, err
		}
		defer removeBox(ctx, b, &err)
		out, err := b.run(ctx, "node", "-v")
		took := time.Since(begun)
		if err == nil && !strings.HasPrefix(out, "v24.") {
			err = fmt.Errorf("node -v wrote %q", out)
		}
		return []float64{ms(took)}, err
	}}, nil
}

func removeBox(ctx context.Context, b box, err *error) {
	ctx, cancel := cleanup(ctx)
	defer cancel()
	*err = errors.Join(*err, b.remove(ctx))
}

// createAndRemove measures creation and removal, and the phases of the daemon's
// creations.
func createAndRemove(d *Daemon) opener {
	return func(_ context.Context, r runner, _ int) (*Session, error) {
		_, ours := r.(*daemonRunner)
		return &Session{Sample: func(ctx context.Context) ([]float64, error) {
			var before, after map[string]float64
			var err error
			if ours {
				if before, err = d.phases(ctx); err != nil {
					return nil, err
				}
			}
			begun := time.Now()
			b, err := r.create(ctx)
			if err != nil {
				return nil, err
			}
			created := time.Now()
			if err := b.remove(ctx); err != nil {
				return nil, err
			}
			values := []float64{ms(created.Sub(begun)), ms(time.Since(created))}
			if !ours {
				return values, nil
			}
			if after, err = d.phases(ctx); err != nil {
				return nil, err
			}
			for _, phase := range []string{"image", "start", "guest"} {
				values = append(values, 1e3*(after[phase]-before[phase]))
			}
			return values, nil
		}}, nil
	}
}

// burst measures until the last of many concurrent creations is done.
func burst(size int) opener {
	return func(_ context.Context, r runner, _ int) (*Session, error) {
		return &Session{Sample: func(ctx context.Context) ([]float64, error) {
			begun := time.Now()
			boxes, err := createAll(ctx, r, size, size)
			took := time.Since(begun)
			return []float64{took.Seconds()}, errors.Join(err, removeAll(ctx, boxes))
		}}, nil
	}
}

// createAll makes n boxes, parallel at a time. It returns the boxes that were
// made even if it fails.
func createAll(ctx context.Context, r runner, n, parallel int) ([]box, error) {
	made := make([]box, n)
	var g errgroup.Group
	g.SetLimit(parallel)
	for i := range n {
		g.Go(func() (err error) {
			made[i], err = r.create(ctx)
			return err
		})
	}
	err := g.Wait()
	var boxes []box
	for _, b := range made {
		if b != nil {
			boxes = append(boxes, b)
		}
	}
	return boxes, err
}

func removeAll(ctx context.Context, boxes []box) error {
	ctx, cancel := cleanup(ctx)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(8)
	for _, b := range boxes {
		g.Go(func() error { return b.remove(ctx) })
	}
	return g.Wait()
}

// inBox prepares samples that share one box.
func inBox(ctx context.Context, r runner, sample func(ctx context.Context, b box) ([]float64, error)) (*Session, error) {
	b, err := r.create(ctx)
	if err != nil {
		return nil, err
	}
	return &Session{
		Sample: func(ctx context.Context) ([]float64, error) { return sample(ctx, b) },
		Close:  b.remove,
	}, nil
}

// firstByte measures until a program's output arrives.
func firstByte(ctx context.Context, r runner, _ int) (*Session, error) {
	return inBox(ctx, r, func(ctx context.Context, b box) ([]float64, error) {
		took, err := b.firstByte(ctx, "echo", "hello")
		return []float64{ms(took)}, err
	})
}

// transfer measures how a file of some size is written, then read: in
// milliseconds, or in megabytes a second if it is large.
func transfer(size int) opener {
	value := func(took time.Duration) float64 { return ms(took) }
	if size > 10<<20 {
		value = func(took time.Duration) float64 { return float64(size) / 1e6 / took.Seconds() }
	}
	return func(ctx context.Context, r runner, _ int) (*Session, error) {
		data := randomBytes(size)
		return inBox(ctx, r, func(ctx context.Context, b box) ([]float64, error) {
			f, ok := b.(files)
			if !ok {
				return nil, errors.New("it has no API for files")
			}
			begun := time.Now()
			if err := f.write(ctx, "/tmp/bench", data); err != nil {
				return nil, err
			}
			written := time.Now()
			n, err := f.read(ctx, "/tmp/bench")
			took := time.Since(written)
			if err == nil && n != int64(size) {
				err = fmt.Errorf("read %d bytes of %d", n, size)
			}
			return []float64{value(written.Sub(begun)), value(took)}, err
		})
	}
}

// randomBytes returns incompressible bytes.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b) // never fails
	return b
}

// workloadPrepare packs the input of workload, which does the work and times the
// named parts itself.
var (
	//go:embed workload/prepare.sh
	workloadPrepare string
	//go:embed workload/build.sh
	workload string
)

// build measures a workload heavy in system calls and forks.
func build(ctx context.Context, r runner, _ int) (*Session, error) {
	b, err := r.create(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := b.run(ctx, "sh", "-c", workloadPrepare); err != nil {
		removeBox(ctx, b, &err)
		return nil, err
	}
	return &Session{Close: b.remove, Sample: func(ctx context.Context) ([]float64, error) {
		begun := time.Now()
		out, err := b.run(ctx, "sh", "-c", workload)
		values := []float64{ms(time.Since(begun))}
		if err != nil {
			return nil, err
		}
		for _, micros := range strings.Fields(out) {
			v, err := strconv.ParseFloat(micros, 64)
			if err != nil {
				return nil, fmt.Errorf("the workload wrote %q", out)
			}
			values = append(values, v/1e3)
		}
		if len(values) != 5 {
			return nil, fmt.Errorf("the workload wrote %q", out)
		}
		return values, nil
	}}, nil
}

// daemonRunner is cay.
type daemonRunner struct{ d *Daemon }

func (r *daemonRunner) create(ctx context.Context) (box, error) {
	b, err := newSandbox(ctx, r.d.Client, sandbox.CreateParams{})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// sandboxBox is a sandbox of a daemon.
type sandboxBox struct {
	c       *sandbox.Client
	id      string
	session string // its first: the name of the machine
}

// newSandbox creates a sandbox with a timeout that suffices for the slowest
// probe on the slowest machine.
func newSandbox(ctx context.Context, c *sandbox.Client, p sandbox.CreateParams) (*sandboxBox, error) {
	p.Timeout = sandbox.Duration(time.Hour)
	s, err := c.Create(ctx, p)
	if err != nil {
		return nil, err
	}
	return &sandboxBox{c, s.ID, s.SessionID}, nil
}

var _ files = (*sandboxBox)(nil)

func (b *sandboxBox) run(ctx context.Context, argv ...string) (string, error) {
	r, err := b.c.Run(ctx, b.id, sandbox.CommandParams{Argv: argv})
	if err != nil {
		return "", err
	}
	if r.Exit.Code != 0 {
		return "", fmt.Errorf("%s: exit status %d: %s", argv[0], r.Exit.Code, lastLine(r.Stderr))
	}
	return string(r.Stdout), nil
}

func (b *sandboxBox) firstByte(ctx context.Context, argv ...string) (took time.Duration, err error) {
	begun := time.Now()
	out, err := b.c.Exec(ctx, b.id, sandbox.CommandParams{Argv: argv})
	if err != nil {
		return 0, err
	}
	defer out.Close() // it was only read
	for {
		e, err := out.Next()
		if err == io.EOF && took > 0 {
			return took, nil
		}
		if err != nil {
			return 0, err
		}
		if len(e.Data) > 0 && took == 0 {
			took = time.Since(begun)
		}
	}
}

// processes finds the sandbox's sentry, whose arguments name it.
func (b *sandboxBox) processes(context.Context) ([]int, error) { return processesNaming(b.session) }

func (b *sandboxBox) remove(ctx context.Context) error { return b.c.Delete(ctx, b.id) }

func (b *sandboxBox) write(ctx context.Context, path string, data []byte) error {
	_, err := b.c.WriteFile(ctx, b.id, path, bytes.NewReader(data), sandbox.WriteParams{})
	return err
}

func (b *sandboxBox) read(ctx context.Context, path string) (int64, error) {
	r, _, err := b.c.ReadFile(ctx, b.id, path, sandbox.ReadParams{})
	if err != nil {
		return 0, err
	}
	defer r.Close() // it was only read
	return io.Copy(io.Discard, r)
}
