package chatcompletions

import (
	"crypto/rand"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// own is the key in Options of members that only this format knows.
const own = "chatcompletions"

// Limits of answers that are read.
const (
	maxEvent  = 16 << 20 // bytes of an event
	maxAnswer = 64 << 20 // bytes of a whole answer
	maxCalls  = 1024     // tool calls
	maxDepth  = hub.MaxDepth
)

// inventID returns an id for a tool call without one.
func inventID() string { return "call_" + rand.Text()[:24] }
