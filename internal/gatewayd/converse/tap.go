package converse

import "github.com/cayhq/cay/internal/gatewayd/hub"

// Tap returns nil: the format has no clients.
func (*Format) Tap(*hub.Target, bool) hub.Tap { return nil }
