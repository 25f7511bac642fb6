package sandboxd

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/sandboxd/cmdarchive"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// The guest holds the commands of a session and their output in memory. Before the guest
// ends, the engine reads them and keeps them in a blob, which the session's row names. A
// guest that does not answer in time, or a full disk, does not delay the end of the
// session: the engine then keeps nothing.

const (
	// archivePatience bounds the reading of a guest's commands.
	archivePatience = 3 * time.Second
	// archiveGrace is the minimal age of a blob without a session that a sweep removes. A
	// new blob has no session until the rest of the machine is saved and the row is
	// written.
	archiveGrace = time.Hour
	// minArchive is the minimal size with which a session's commands count against the limit
	// in bytes, so that the limit bounds the number of sessions, too.
	minArchive = 64 << 10
)

const commandsFile = "commands" // name of the file in the blob

// commandArchive describes the kept commands of a machine; complete once done is closed.
type commandArchive struct {
	done chan struct{}
	store.CommandArchive
}

// archiveCommands reads the commands of a machine that is about to end, once, and commits
// the blob in the background. The caller holds m.saving.
func (e *Engine) archiveCommands(ctx context.Context, m *session) {
	if m.archive.Load() != nil || e.cfg.Commands == nil {
		return
	}
	k := &commandArchive{done: make(chan struct{})}
	m.archive.Store(k)
	commit, err := e.askCommands(ctx, m, &k.CommandArchive)
	if err != nil {
		e.log.WarnContext(ctx, "commands of a session are not kept", "sandbox", m.sandboxID, "session", m.sessionID(), "error", err)
	}
	if commit == nil {
		close(k.done)
		return
	}
	work := func() {
		defer close(k.done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
		defer cancel()
		if err := commit(ctx); err != nil {
			e.log.WarnContext(ctx, "commands of a session are not kept", "sandbox", m.sandboxID, "session", m.sessionID(), "error", err)
			k.CommandArchive = store.CommandArchive{}
			return
		}
		e.at("commands-kept")
	}
	if !e.background(work) {
		work() // not in the background: Close waits for its callers itself
	}
}

// archiveOf waits for archiveCommands to complete, and returns the kept commands of a machine
// that has ended.
func (m *session) archiveOf() store.CommandArchive {
	if !m.hasRun() {
		return store.CommandArchive{Blob: store.NoCommands}
	}
	k := m.archive.Load()
	if k == nil {
		return store.CommandArchive{}
	}
	<-k.done
	return k.CommandArchive
}

// discardArchive removes the kept commands of a machine that goes on running.
func (e *Engine) discardArchive(ctx context.Context, m *session) {
	k := m.archiveOf()
	m.archive.Store(nil)
	if k.Bytes == 0 {
		return
	}
	if err := e.cfg.Commands.Delete(context.WithoutCancel(ctx), k.Blob); err != nil {
		e.log.WarnContext(ctx, "commands that were not recorded are left to the next start", "blob", k.Blob, "error", err)
	}
}

// askCommands writes the commands of a guest to the draft of a blob. commit commits the
// draft; it is nil if there is nothing to keep.
func (e *Engine) askCommands(ctx context.Context, m *session, k *store.CommandArchive) (commit func(context.Context) error, err error) {
	if !m.commands.Load() {
		k.Blob = store.NoCommands
		return nil, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, archivePatience, cay.Errorf(cay.DeadlineExceeded, "the guest did not tell them within %v", archivePatience))
	defer cancel()
	all, err := m.guest.ListCommands(ctx)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		k.Blob = store.NoCommands
		return nil, nil
	}
	all = all[:min(len(all), cmdarchive.MaxCommands)]
	draft, err := e.cfg.Commands.Create(ctx, 0)
	if err != nil {
		return nil, err
	}
	n, err := writeCommands(ctx, m.guest, draft, all)
	if err != nil {
		e.abort(draft)
		return nil, err
	}
	var ids strings.Builder
	for _, c := range all[:n] {
		ids.WriteString(store.CommandKey(c.ID))
	}
	name := m.sessionID() + "-" + ident.Text(12)
	return func(ctx context.Context) error {
		info, err := draft.Commit(ctx, name)
		if err != nil {
			e.abort(draft)
			return err
		}
		k.Blob, k.Bytes, k.IDs = name, max(info.Size, minArchive), ids.String()
		return nil
	}, nil
}

// writeCommands writes as many commands as fit and returns their number n. It writes up
// to cmdarchive.MaxOutput bytes of the newest output for each, until cmdarchive.MaxAll bytes are
// used, beginning with the newest command. Output that the guest does not send in time is
// left out.
func writeCommands(ctx context.Context, g *guest.Client, draft blob.Draft, all []sandbox.Command) (n int, err error) {
	file, err := draft.Writer(commandsFile)
	if err != nil {
		return 0, err
	}
	defer func() {
		if cerr := file.Close(); err == nil {
			err = cerr
		}
	}()
	w := cmdarchive.NewWriter(file)
	left := int64(cmdarchive.MaxAll)
	for _, c := range all {
		description, err := json.Marshal(c)
		if err != nil {
			return n, err
		}
		if left -= int64(len(description)); left < 0 {
			break // the guest has invented a huge command
		}
		output, size := outputOf(ctx, g, &c, min(left, cmdarchive.MaxOutput))
		left -= size
		if err := w.Add(c, output); err != nil {
			return n, err
		}
		n++
	}
	return n, w.Close()
}

// outputOf reads up to limit bytes of the newest output of a command, and sets
// OutputStart and OutputEnd of c to the range that it returns. If it cannot read all of
// that, it returns no output.
func outputOf(ctx context.Context, g *guest.Client, c *sandbox.Command, limit int64) (output []sandbox.Event, size int64) {
	from := max(c.OutputStart, c.OutputEnd-limit)
	c.OutputStart = c.OutputEnd
	if from == c.OutputEnd || ctx.Err() != nil {
		return nil, 0
	}
	out, err := g.Output(ctx, c.ID, sandbox.OutputParams{Cursor: from, Times: true})
	if err != nil {
		return nil, 0
	}
	defer out.Close()
	exit, end := c.Exit, from
	for {
		ev, err := out.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, 0
		}
		switch {
		case ev.Exit != nil:
			exit = ev.Exit
		case ev.Truncated:
			output, size, end = nil, 0, ev.Cursor
		default:
			output = append(output, ev)
			size += int64(len(ev.Data)) + cmdarchive.EventCost
			end = ev.Cursor + int64(len(ev.Data))
		}
		for size > limit {
			size -= int64(len(output[0].Data)) + cmdarchive.EventCost
			output = output[1:]
		}
	}
	c.Exit, c.OutputStart, c.OutputEnd = exit, end, end
	if len(output) > 0 {
		c.OutputStart = output[0].Cursor
	}
	return output, size
}

// freeCommands removes, in the background, the blobs that sessions no longer refer to.
func (e *Engine) freeCommands() {
	if e.cfg.Commands == nil {
		return
	}
	e.background(func() {
		if err := e.removeGoneCommands(e.ctx); err != nil && e.ctx.Err() == nil {
			e.log.Error("commands that no session has were not removed yet", "error", err)
		}
	})
}

func (e *Engine) removeGoneCommands(ctx context.Context) error {
	for {
		gone, err := e.store.GoneCommands(ctx)
		if err != nil || len(gone) == 0 {
			return err
		}
		for name := range gone {
			if err := e.cfg.Commands.Delete(ctx, name); err != nil && cay.CodeOf(err) != cay.NotFound {
				return err
			}
			e.at("commands-removed")
			if err := e.store.CommandsRemoved(ctx, name); err != nil {
				return err
			}
		}
	}
}

// removeStrayCommands removes blobs without a session that are older than grace: blobs
// left behind by a killed engine.
func (e *Engine) removeStrayCommands(ctx context.Context, grace time.Duration) (removed int, err error) {
	if err := e.removeGoneCommands(ctx); err != nil {
		return 0, err
	}
	// List the blobs first, then the rows: a blob that gets its row in between is then
	// among the rows.
	blobs, err := e.cfg.Commands.List(ctx, blob.ListOptions{Before: time.Now().Add(-grace)})
	if err != nil {
		return 0, err
	}
	held, err := e.store.CommandBlobs(ctx)
	if err != nil {
		return 0, err
	}
	for _, b := range blobs {
		if held[b.Name] {
			continue
		}
		if err := e.cfg.Commands.Delete(ctx, b.Name); err != nil && cay.CodeOf(err) != cay.NotFound {
			return removed, err
		}
		removed++
	}
	_, err = e.cfg.Commands.Clean(ctx, grace)
	return removed, err
}

// openCommandBlobs removes the command blobs that a killed engine has left behind: old
// blobs at once, the others when they are old enough.
func (e *Engine) openCommandBlobs() {
	if e.cfg.Commands == nil {
		return
	}
	sweep := func() {
		removed, err := e.removeStrayCommands(e.ctx, archiveGrace)
		if err != nil && e.ctx.Err() == nil {
			e.log.Error("what is left of commands was not removed", "error", err)
		}
		if removed > 0 {
			e.log.Info("removed commands that no session has", "blobs", removed)
		}
	}
	e.mu.Lock()
	e.strays = e.clock.At(e.clock.Mono()+archiveGrace+time.Second, func() { e.background(sweep) })
	e.mu.Unlock()
	e.background(sweep)
}
