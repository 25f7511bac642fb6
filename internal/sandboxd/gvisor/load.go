package gvisor

import (
	"errors"
	"fmt"

	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// watchLoad waits until the whole state that a machine started from is loaded. A machine
// runs before that, but must not go on if the rest cannot be loaded: its programs would
// see corrupt memory and files. watchLoad runs in a goroutine of an instance whose
// loading is not nil.
func (in *instance) watchLoad() {
	defer close(in.loaded)
	defer in.loading.Close()
	var err error
	if in.st.Origin == machine.MemoryState {
		err = in.loading.Call(boot.ContMgrWaitRestore, nil, nil)
	} else {
		err = in.loading.Call(boot.ContMgrWaitFSRestore, &boot.WaitFSRestoreArgs{CID: in.st.ID}, nil)
	}
	// Any other error means that the connection has ended: the machine has ended, or this
	// daemon has detached from it.
	var failed urpc.RemoteError
	if !errors.As(err, &failed) || in.detached.Load() {
		return
	}
	message := notLoaded(sentryError(failed))
	in.unloaded.Store(&message)
	if err := in.st.Sandbox.DestroyContainer(in.st.ID); err != nil {
		in.r.log.Error("sentry without its memory is not ended", "id", in.st.ID, "error", err)
	}
}

func notLoaded(err error) string {
	return fmt.Sprintf("what the sandbox was to go on from could not be loaded: %v", err)
}
