package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// keepFlags are the flags for the state that a stop of the sandbox saves.
type keepFlags struct {
	persistent, ephemeral bool
	expiration            spanFlag
	keep                  retentionFlag
	keepEvicted           bool
}

func (f *keepFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.BoolVar(&f.persistent, "persistent", false, "save its files when it stops, and start it again from them when it is needed")
	fl.BoolVar(&f.ephemeral, "ephemeral", false, "save nothing")
	fl.Var(&f.expiration, "snapshot-expiration", "how long its snapshots are kept, as in 12h or 7d, or never (default the daemon's)")
	fl.Var(&f.keep, "keep", "keep the newest N of its snapshots, as N, or all until they expire, as all, and none older than AGE, as N,AGE (default: the newest 3 of those that stops make)")
	fl.BoolVar(&f.keepEvicted, "keep-evicted", false, "with --keep, leave those beyond N to their expiration instead of deleting them")
}

// registerSaveEvery adds the flag for saves of a sandbox that runs.
func registerSaveEvery(c *cobra.Command, every *time.Duration) {
	c.Flags().DurationVar(every, "save-every", 0, "if it is persistent, save its files while it runs, at most this often and if they have changed: 10s or more (default: only when it stops)")
}

// persistence returns the requested persistence; nil if no flag sets it.
func (f *keepFlags) persistence() (*bool, error) {
	switch {
	case f.persistent && f.ephemeral:
		return nil, cay.Errorf(cay.Invalid, "--persistent and --ephemeral do not go together")
	case f.persistent || f.ephemeral:
		return &f.persistent, nil
	}
	return nil, nil
}

// retention returns the requested retention: nil if no flag sets it, and an empty one
// for the default.
func (f *keepFlags) retention() (*sandbox.Retention, error) {
	switch {
	case f.keep.set:
		r := f.keep.rule
		if f.keepEvicted && r.Keep == 0 {
			return nil, cay.Errorf(cay.Invalid, "--keep-evicted goes with a number of snapshots in --keep")
		}
		r.KeepEvicted = f.keepEvicted
		return &r, nil
	case f.keepEvicted:
		return nil, cay.Errorf(cay.Invalid, "--keep-evicted goes with --keep")
	}
	return nil, nil
}

// newRetention returns the retention for a new sandbox: nil if the flags ask for
// none.
func (f *keepFlags) newRetention() (*sandbox.Retention, error) {
	r, err := f.retention()
	if err != nil || r == nil || *r != (sandbox.Retention{}) {
		return r, err
	}
	return nil, nil
}

// spanFlag is a flag such as --expiration 7d.
type spanFlag struct {
	span sandbox.Duration
	set  bool
}

func (f *spanFlag) String() string {
	if !f.set {
		return ""
	}
	return spanText(f.span)
}

func (f *spanFlag) Set(text string) (err error) {
	f.span, err = parseSpan(text)
	f.set = err == nil
	return err
}

func (f *spanFlag) Type() string { return "time" }

// value returns the requested duration; nil if the flag was not given.
func (f *spanFlag) value() *sandbox.Duration {
	if !f.set {
		return nil
	}
	return &f.span
}

// never is the text for an expiration of 0.
const never = "never"

const day = 24 * time.Hour

// parseSpan reads a duration that may be in days, such as 7d, or never, which is 0.
func parseSpan(text string) (sandbox.Duration, error) {
	if text == never {
		return 0, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return sandbox.Duration(time.Duration(n) * day), nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is neither a time, as in 90m, 12h or 7d, nor %s", text, never)
	}
	return sandbox.Duration(d), nil
}

// spanText returns a duration in the form that parseSpan reads.
func spanText(d sandbox.Duration) string {
	switch t := time.Duration(d); {
	case t == 0:
		return never
	case t%day == 0:
		return fmt.Sprintf("%dd", t/day)
	default:
		return t.String()
	}
}

// retentionFlag is --keep N[,AGE].
type retentionFlag struct {
	rule sandbox.Retention
	set  bool
}

func (f *retentionFlag) String() string {
	if !f.set {
		return ""
	}
	return retentionText(&f.rule)
}

func (f *retentionFlag) Set(text string) error {
	rule, err := parseRetention(text)
	f.rule, f.set = rule, err == nil
	return err
}

func (f *retentionFlag) Type() string { return "rule" }

// The words of --keep that are not numbers.
const (
	keepAll     = "all"
	keepDefault = "default"
)

func parseRetention(text string) (r sandbox.Retention, err error) {
	if text == keepDefault {
		return r, nil
	}
	count, age, aged := strings.Cut(text, ",")
	if r.All = count == keepAll; !r.All {
		if r.Keep, err = strconv.Atoi(count); err != nil {
			return r, fmt.Errorf("%q is not N, %s, N,AGE or %s, as in 5 or 5,30d", text, keepAll, keepDefault)
		}
	}
	if aged {
		if r.MaxAge, err = parseSpan(age); err != nil {
			return r, err
		}
	}
	return r, r.Validate()
}

// retentionText returns a retention in the form that parseRetention reads.
func retentionText(r *sandbox.Retention) string {
	count := strconv.Itoa(r.Keep)
	switch {
	case r.All:
		count = keepAll
	case r.Keep == 0:
		return keepDefault
	}
	if r.MaxAge == 0 {
		return count
	}
	return count + "," + spanText(r.MaxAge)
}

// keptText describes the retention of a sandbox's snapshots to people.
func keptText(s *sandbox.Sandbox) string {
	text := "for ever"
	if s.SnapshotExpiration != 0 {
		text = "for " + spanText(s.SnapshotExpiration)
	}
	if s.Retention == nil {
		return text + ", of those that stops made the newest 3"
	}
	if !s.Retention.All {
		text += fmt.Sprintf(", the newest %d", s.Retention.Keep)
	}
	if s.Retention.MaxAge != 0 {
		text += ", none older than " + spanText(s.Retention.MaxAge)
	}
	if s.Retention.KeepEvicted {
		text += ", others until they expire"
	}
	return text
}

// The modes of mounts, as written behind a second colon.
var mountModes = map[string]sandbox.MountMode{
	"rw":   sandbox.MountReadWrite,
	"ro":   sandbox.MountReadOnly,
	"copy": sandbox.MountCopy,
}

const driveUsage = "mount a drive, as NAME:PATH; :ro behind it to read what was last saved, :copy to write to a copy of that"

// parseMounts reads NAME:PATH[:ro|:copy|:rw].
func parseMounts(texts []string) ([]sandbox.Mount, error) {
	var mounts []sandbox.Mount
	for _, text := range texts {
		m, err := parseMount(text)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

func parseMount(text string) (sandbox.Mount, error) {
	name, path, ok := strings.Cut(text, ":")
	if !ok || name == "" || path == "" {
		return sandbox.Mount{}, cay.Errorf(cay.Invalid, "--drive %q is not NAME:PATH", text).WithHint("write for example data:/data, or data:/data:ro")
	}
	m := sandbox.Mount{Drive: name, Path: path, Mode: sandbox.MountReadWrite}
	if i := strings.LastIndexByte(path, ':'); i >= 0 { // a path with a colon takes a mode behind it
		if m.Mode, ok = mountModes[path[i+1:]]; !ok {
			return sandbox.Mount{}, cay.Errorf(cay.Invalid, "--drive %q: %q is not one of ro, copy, rw", text, path[i+1:])
		}
		m.Path = path[:i]
	}
	return m, m.Validate()
}

// mountsText lists the mounts for people, with the names of drives that still exist.
func mountsText(ctx context.Context, c *sandbox.Client, mounts []sandbox.Mount) string {
	texts := make([]string, len(mounts))
	for i, m := range mounts {
		name := m.Drive
		if d, err := c.GetDrive(ctx, m.Drive); err == nil {
			name = d.Name
		}
		texts[i] = fmt.Sprintf("%s on %s (%s)", name, m.Path, m.Mode)
	}
	return strings.Join(texts, ", ")
}
