package ledger

import (
	"time"

	"github.com/cayhq/cay/internal/ulids"
)

// ids makes the generation ids of this process.
var ids = ulids.New("gen_")

// NewID returns a generation id: "gen_" and a ULID. The ids of a process ascend.
func NewID() string { return ids.Next(time.Now().UnixMilli()) }
