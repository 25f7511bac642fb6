package gemini

import "github.com/cayhq/cay/internal/gatewayd/hub"

// Tap returns nil: no clients speak the format to us.
func (*Format) Tap(*hub.Target, bool) hub.Tap { return nil }
