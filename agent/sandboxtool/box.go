package sandboxtool

import (
	"errors"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/durable"
)

// The limits of a model's requests and results.
const (
	// MaxOutput is how much of each stream of a command the model gets, in bytes: the
	// newest output.
	MaxOutput = 16 << 10
	// MaxRead is how much of a file the model gets at once, in bytes.
	MaxRead = 64 << 10
	// MaxWrite bounds the files of one call, in bytes and in number.
	MaxWrite      = 4 << 20
	MaxWriteFiles = 64
	// maxCommands bounds the commands in the background.
	maxCommands = 32
)

// Options say how a Box creates its sandbox, and which tools it has.
type Options struct {
	// Sandbox has the parameters of new sandboxes. A zero Network means all of the
	// internet. A Timeout of 0 means an hour; it ends the sandbox if the run is never
	// continued. With Sandbox.Ports the model gets a tool for the URLs of the ports.
	Sandbox sandbox.CreateParams
	// CommandTimeout bounds a command that the model waits for. 0 means 10 minutes.
	CommandTimeout time.Duration
	// Snapshots gives the model a tool that saves the sandbox's files, so that the
	// program can start other sandboxes from them (Box.Snapshots). Close does not
	// delete the snapshots.
	Snapshots bool
}

// Box is a sandbox that an agent works in. The sandbox is created when it is first
// needed.
type Box struct {
	o        Options
	created  *workflow.Future[*durable.Handle] // nil: there is none
	commands map[string]*durable.Command
	saved    []string
}

// New returns a Box without a sandbox. New is not a step.
func New(o Options) *Box {
	if o.Sandbox.Timeout == 0 {
		o.Sandbox.Timeout = sandbox.Duration(time.Hour)
	}
	if o.CommandTimeout == 0 {
		o.CommandTimeout = 10 * time.Minute
	}
	return &Box{o: o, commands: make(map[string]*durable.Command)}
}

// Handle returns the sandbox, and creates it if necessary, so that the program can use
// it too. Errors are those of durable.Create.
func (b *Box) Handle(ctx workflow.Context) (*durable.Handle, error) {
	if b.created == nil { // else another call of the same turn makes it
		b.created = workflow.Go(ctx, func(ctx workflow.Context) (*durable.Handle, error) {
			return durable.Create(workflow.WithoutCancel(ctx), b.o.Sandbox)
		})
	}
	future := b.created
	h, err := future.Get(ctx)
	if err != nil && future.Done() && b.created == future {
		b.created = nil // the next call tries again
	}
	return h, err
}

// Snapshots returns the ids of the snapshots that the model has saved.
func (b *Box) Snapshots() []string { return b.saved }

// Close deletes the sandbox. It can be called repeatedly, and the Box used again: the
// next call creates a new sandbox. Pass workflow.WithoutCancel(ctx), or a run that is
// cancelled leaves the sandbox to its timeout.
func (b *Box) Close(ctx workflow.Context) error {
	if b.created == nil {
		return nil
	}
	h, err := b.created.Get(ctx)
	if err != nil {
		if b.created.Done() {
			b.created = nil // it was not made
			return nil
		}
		return err
	}
	if err := h.Delete(ctx); err != nil {
		return err
	}
	b.created, b.commands = nil, make(map[string]*durable.Command)
	return nil
}

// hasEnded reports whether the error means that the sandbox does not exist any more,
// for example because its timeout has passed.
func hasEnded(err error) bool {
	for _, code := range []cay.Code{cay.Stopped, cay.NotFound} {
		if errors.Is(err, &cay.Error{Code: code}) {
			return true
		}
	}
	return false
}
