package stack

import (
	"context"

	"gvisor.dev/gvisor/pkg/state"
)

// The methods by which a bridge's table of addresses is saved with the memory of a machine.

func init() { state.Register((*BridgeFDBEntry)(nil)) }

// StateTypeName implements state.Type.
func (e *BridgeFDBEntry) StateTypeName() string { return "pkg/tcpip/stack.BridgeFDBEntry" }

// StateFields implements state.Type.
func (e *BridgeFDBEntry) StateFields() []string { return []string{"port"} }

// StateSave implements state.SaverLoader.
func (e *BridgeFDBEntry) StateSave(sink state.Sink) { sink.Save(0, &e.port) }

// StateLoad implements state.SaverLoader.
func (e *BridgeFDBEntry) StateLoad(_ context.Context, source state.Source) { source.Load(0, &e.port) }
