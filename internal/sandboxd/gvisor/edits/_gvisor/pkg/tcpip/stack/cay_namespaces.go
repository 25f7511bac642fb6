package stack

import "gvisor.dev/gvisor/pkg/sync"

// Kernel resumes and restores the stack of the root network namespace alone. Sockets of other
// network namespaces stayed frozen after a save, and a restore waited for them for ever. The
// stacks of other namespaces are found by the sockets that register here.
var namespaces struct {
	sync.Mutex
	stacks map[*Stack]struct{}
}

func (s *Stack) noteNamespace() {
	namespaces.Lock()
	defer namespaces.Unlock()
	if namespaces.stacks == nil {
		namespaces.stacks = make(map[*Stack]struct{})
	}
	namespaces.stacks[s] = struct{}{}
}

// otherNamespaces returns the stacks besides s that were noted, and forgets all.
func (s *Stack) otherNamespaces() []*Stack {
	namespaces.Lock()
	defer namespaces.Unlock()
	var others []*Stack
	for other := range namespaces.stacks {
		if other != s {
			others = append(others, other)
		}
	}
	namespaces.stacks = nil
	return others
}

// RegisterRestoredEndpoint records e as an endpoint that has been restored on this stack.
func (s *Stack) RegisterRestoredEndpoint(e RestoredEndpoint) {
	s.noteNamespace()
	s.registerRestored(e)
}

// RegisterResumableEndpoint records e as an endpoint that has to be resumed.
func (s *Stack) RegisterResumableEndpoint(e ResumableEndpoint) {
	s.noteNamespace()
	s.registerResumable(e)
}

// Resume restarts the stack, and the sockets of other namespaces, after a save.
func (s *Stack) Resume() {
	for _, other := range s.otherNamespaces() {
		other.mu.Lock()
		eps := other.resumableEndpoints
		other.resumableEndpoints = nil
		other.mu.Unlock()
		for _, e := range eps {
			e.Resume()
		}
	}
	s.resumeRoot()
}

// Restore restarts the stack after a restore. Other namespaces have new stacks then, without
// interfaces: their connections have ended, and nothing reaches sockets that listen there.
func (s *Stack) Restore() {
	for _, other := range s.otherNamespaces() {
		other.mu.Lock()
		eps := other.restoredEndpoints
		other.restoredEndpoints = nil
		other.mu.Unlock()
		for _, e := range eps {
			if e, ok := e.(interface{ RestoreWithoutNetwork() }); ok {
				e.RestoreWithoutNetwork()
			}
		}
	}
	s.restoreRoot()
}
