package kernel

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
)

// BlockThroughSignals is Block, except that signals with handlers do not end it: it returns
// an error only if the task is about to end, or has to stop for the whole kernel. Such
// signals are delivered when the system call is over.
//
// Preconditions: The caller must be running on the task goroutine.
func (t *Task) BlockThroughSignals(C <-chan struct{}) error {
	signaled := false
	for {
		err := t.blockAnywhere(C)
		if err != nil && !t.mustReturn() {
			// A later signal interrupts the next Block. An earlier signal is seen by mustReturn,
			// which looks at the signals themselves.
			signaled = true
			t.unsetInterrupted()
			if !t.mustReturn() {
				continue
			}
		}
		if signaled {
			t.interruptSelf()
		}
		return err
	}
}

// blockAnywhere is Block, also for page faults while the kernel emulates an instruction of
// the program, when the task still counts as one that runs its program.
func (t *Task) blockAnywhere(C <-chan struct{}) error {
	if t.TaskGoroutineState() == TaskGoroutineRunningSys {
		return t.Block(C)
	}
	select {
	case <-C:
		return nil
	case <-t.interruptChan:
		t.interruptSelf()
		return linuxerr.ErrInterrupted
	}
}

// mustReturn reports whether the task has to leave the kernel: it was killed, a signal will
// end its process, or the kernel stops all tasks.
func (t *Task) mustReturn() bool {
	if t.killed() || t.stopCount.Load() != 0 {
		return true
	}
	pending := t.PendingSignals() &^ t.SignalMask()
	if pending == 0 {
		return false
	}
	t.tg.signalHandlers.mu.Lock()
	defer t.tg.signalHandlers.mu.Unlock()
	ends := false
	linux.ForEachSignal(pending, func(sig linux.Signal) {
		switch computeAction(sig, t.tg.signalHandlers.actions[sig]) {
		case SignalActionTerm, SignalActionCore:
			ends = true
		}
	})
	return ends
}
