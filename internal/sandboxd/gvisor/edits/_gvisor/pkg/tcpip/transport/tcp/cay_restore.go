package tcp

// RestoreWithoutNetwork restores a socket of a network namespace whose interfaces are gone. A
// connection ends.
func (e *Endpoint) RestoreWithoutNetwork() {
	if s := EndpointState(e.origEndpointState); s.connected() || s.connecting() {
		e.mu.Lock()
		e.terminateAtRestore = true
		e.mu.Unlock()
	}
	e.Restore(e.stack)
}
