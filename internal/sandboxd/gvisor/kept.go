package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/programs"
)

// keptPrograms are the open programs of another version of cay, with which a machine
// continues from saved memory.
type keptPrograms struct {
	pair    programs.Pair
	sentry  *os.File
	release func()
}

func (k *keptPrograms) close() {
	if k != nil {
		k.sentry.Close()
		k.release()
	}
}

// noGuest is the ID of the guest's program in a machine that has it in its root.
var noGuest = strings.Repeat("0", 32)

// toolMount returns the index of the mount in which spec has the guest's program, -1 if
// the program is in the root.
func toolMount(spec machine.Spec) int {
	if len(spec.Init) == 0 {
		return -1
	}
	return slices.IndexFunc(spec.Mounts, func(m machine.Mount) bool { return m.Drive == nil && m.Target == path.Dir(spec.Init[0]) })
}

// ownPair returns the programs with which this process starts spec.
func ownPair(spec machine.Spec) (p programs.Pair, err error) {
	sentry := chosen.file
	if sentry == nil {
		if sentry, err = os.Open("/proc/self/exe"); err != nil {
			return p, fmt.Errorf("identify this program: %w", err)
		}
		defer sentry.Close()
	}
	if p.Sentry, err = programs.ID(sentry); err != nil {
		return p, err
	}
	p.Guest = noGuest
	if i := toolMount(spec); i >= 0 {
		tool, err := os.Open(spec.Mounts[i].Source)
		if err != nil {
			return p, cay.Errorf(cay.Unavailable, "open the guest's program: %w", err)
		}
		defer tool.Close()
		p.Guest, err = programs.ID(tool)
		if err != nil {
			return p, err
		}
	}
	return p, nil
}

// openKept opens the programs that saved memory needs, and gives spec the guest's program
// among them. The result is nil if these are the programs of this process. build is
// State.Build. Errors: not_supported.
func (r *Runtime) openKept(ctx context.Context, spec *machine.Spec, build string) (_ *keptPrograms, err error) {
	own, err := ownPair(*spec)
	if err != nil {
		return nil, err
	}
	if build == own.String() {
		return nil, nil
	}
	refused := func(why string, args ...any) error {
		return cay.Errorf(cay.NotSupported, "the machine's memory was saved by a build of cay with other programs for sandboxes, %w", fmt.Errorf(why, args...)).
			WithHint("restore its disk, which all later builds can, or use a build whose programs have the id %s; those of this build have %s", build, own)
	}
	pair, ok := programs.ParsePair(build)
	switch {
	case !ok:
		return nil, refused("and it did not keep them")
	case r.cfg.Programs == nil:
		return nil, refused("and this one keeps none")
	}
	k := &keptPrograms{pair: pair, release: r.cfg.Programs.Hold(pair.Sentry, pair.Guest)}
	defer func() {
		if err != nil {
			k.release()
		}
	}()
	i := toolMount(*spec)
	if (i < 0) != (pair.Guest == noGuest) {
		return nil, refused("which had the guest's program elsewhere")
	}
	sentry, err := r.cfg.Programs.Path(ctx, pair.Sentry)
	if err != nil {
		return nil, refused("which cannot be used: %w", err)
	}
	if i >= 0 {
		guest, err := r.cfg.Programs.Path(ctx, pair.Guest)
		if err != nil {
			return nil, refused("which cannot be used: %w", err)
		}
		spec.Mounts = slices.Clone(spec.Mounts)
		spec.Mounts[i].Source = guest
	}
	if k.sentry, err = openProgram(sentry); err != nil {
		return nil, refused("which cannot be used: %w", err)
	}
	return k, nil
}

// keepPrograms stores the programs that the machine runs, and returns State.Build for its
// memory. Programs that are gone are no error: then no other build restores the memory.
// Errors: no_space.
func (in *instance) keepPrograms(ctx context.Context) (string, error) {
	sentry, err := os.Open(fmt.Sprintf("/proc/%d/exe", in.st.Sandbox.Getpid()))
	if errors.Is(err, fs.ErrPermission) && in.started && in.st.Programs == "" && chosen.file != nil {
		sentry, err = os.Open(executable(chosen.file)) // this process may not look at others
	}
	if err != nil {
		return in.unknownPrograms(ctx, err), nil
	}
	defer sentry.Close()
	var pair programs.Pair
	if pair.Sentry, err = programs.ID(sentry); err != nil {
		return "", err
	}
	files := map[string]*os.File{pair.Sentry: sentry}
	pair.Guest = noGuest
	switch in.st.Tool {
	case "":
		if len(in.st.Mounts) > 0 && !in.started {
			return in.unknownPrograms(ctx, errors.New("an earlier version started it")), nil
		}
	default:
		tool, err := os.Open(in.st.Tool)
		if err != nil {
			return in.unknownPrograms(ctx, err), nil
		}
		defer tool.Close()
		if pair.Guest, err = programs.ID(tool); err != nil {
			return "", err
		}
		files[pair.Guest] = tool
	}
	if in.r.cfg.Programs == nil {
		return pair.String(), nil
	}
	defer in.r.cfg.Programs.Hold(pair.Sentry, pair.Guest)()
	for id, f := range files {
		if err := in.r.cfg.Programs.Add(ctx, id, f); err != nil {
			return "", hostError(err)
		}
	}
	return pair.String(), nil
}

func (in *instance) unknownPrograms(ctx context.Context, why error) string {
	in.r.log.WarnContext(ctx, "the programs of a machine cannot be kept: its memory cannot be restored later, only its files", "id", in.st.ID, "error", why)
	return unknownBuild
}

// hold keeps the programs of a machine until unhold: the files that it mounts may be saved
// again with its memory.
func (r *Runtime) hold(id string, pair programs.Pair) {
	release := r.cfg.Programs.Hold(pair.Sentry, pair.Guest)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[id] = release
}

func (r *Runtime) unhold(id string) {
	r.mu.Lock()
	release := r.held[id]
	delete(r.held, id)
	r.mu.Unlock()
	if release != nil {
		release()
	}
}

// holdAll holds the kept programs of machines that an earlier Runtime has started.
func (r *Runtime) holdAll() error {
	if r.cfg.Programs == nil {
		return nil
	}
	states, err := filepath.Glob(filepath.Join(r.cfg.StateDir, "*", "state.json"))
	if err != nil {
		return fmt.Errorf("list machines: %w", err)
	}
	for _, file := range states {
		id := filepath.Base(filepath.Dir(file))
		st, err := r.load(id)
		if err != nil {
			r.log.Warn("programs of a machine are not held", "id", id, "error", err)
			continue
		}
		if pair, ok := programs.ParsePair(st.Programs); ok {
			r.hold(id, pair)
		}
	}
	return nil
}
