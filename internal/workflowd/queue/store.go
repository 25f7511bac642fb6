package queue

import "context"

// Store keeps messages and deployments. sqlstore implements it on SQLite, for one
// process, and on PostgreSQL, for several that share a database. Its methods may be
// called concurrently. Errors: unavailable, no_space; nothing of a batch was stored then,
// except that after unavailable the batch may have been stored.
type Store interface {
	// Write stores a batch as a whole, in the order of its fields, and sets the fields of
	// its parts that are marked "out".
	Write(ctx context.Context, b *Batch) error
	// Pending returns the messages of a deployment that are due before a time, leased
	// ones too, and at most limit: first the ones with a priority above 0, then the others,
	// each soonest first.
	Pending(ctx context.Context, project, deployment string, before int64, limit int) (entries []Entry, rest Rest, err error)
	// Entry returns a stored message; nil if it does not exist.
	Entry(ctx context.Context, id string) (*Entry, error)
	// Messages returns pending messages of a run, of the project if run is "", soonest first.
	Messages(ctx context.Context, project, run string, limit int) ([]Message, error)
	// Deployments returns the deployments of a project, of all if it is "", newest first.
	// CreatedAt is 0 for deployments that have messages and never registered.
	Deployments(ctx context.Context, project string) ([]Deployment, error)
	// Sweep removes deployments that were last seen before seen and have no messages, and
	// returns them; it also removes idempotency keys that have expired at now.
	Sweep(ctx context.Context, seen, now int64) ([]Deployment, error)
	// Changes reports changes that other processes make. It is nil for a store of one
	// process, and closed with the store.
	Changes() <-chan Change
}

// Entry is a message in a lane: without its body and texts.
type Entry struct {
	ID, Project, Deployment, Run string
	Due, LeaseUntil              int64
	Size                         int // bytes of the body
	Priority                     int
}

// Rest is when messages are due that Pending did not return; math.MaxInt64 if there are
// none.
type Rest struct {
	Urgent int64 // the earliest of those with a priority above 0
	Other  int64
}

// Batch is the content of one transaction.
type Batch struct {
	Now         int64
	Publish     []*Publish
	Acknowledge []*Acknowledge
	Extend      []*Extend
	Settle      []*Settle
	Register    []*Register
	Void        []*Void
	Forget      []*Forget
	Hasten      []*Hasten
	Lease       []*Lease
}

// Publish stores a message, unless its key is in use. It creates a missing deployment,
// without an address.
type Publish struct {
	Message Message
	First   string // out: the id of the message that has the key
}

// Acknowledge removes a message if receipt is that of its last lease.
type Acknowledge struct {
	ID, Project, Receipt string
	Done                 bool // out
}

// Extend sets the due time of a message if receipt is that of its last lease: as the end
// of the lease, or else as the time of the next delivery, which ends the lease.
type Extend struct {
	ID, Project, Receipt string
	Due                  int64
	Lease                bool
	Done                 bool // out
}

// Settle ends the lease of a push that has returned without an acknowledgement. It does
// nothing to a message that is not leased with the receipt.
type Settle struct {
	ID, Receipt string
	Due         int64
	// Uncounted undoes the attempt and the receipt, because the message did not reach an
	// app. A message with a LastError and no receipt is parked: Void leaves it alone.
	Uncounted bool
	LastError string
	Next      int64 // out: when the message is due; 0 if it does not exist
}

// RegisterKind is the kind of a Register.
type RegisterKind int

// The kinds of Register.
const (
	// RegisterApp sets URL, Secret and SeenAt of a deployment, and clears Error. If the
	// address is unchanged and the secret is new, all leases of the deployment become
	// void; see Void. The first RegisterApp sets CreatedAt.
	RegisterApp RegisterKind = iota
	// RegisterLeave clears URL and Error, if Secret equals the row's or is "".
	RegisterLeave
	// RegisterState stores Error and SeenAt, if URL and Secret equal the row's.
	RegisterState
	// RegisterDrain stores Draining.
	RegisterDrain
)

// Register changes the row of a deployment.
type Register struct {
	Do         RegisterKind
	Deployment Deployment  // out: the row, if it exists
	Old        *Deployment // out: the row before; nil if it did not exist
	Void       bool        // out: leases were made void
}

// Void makes the messages of a deployment that are leased, or wait after a failure, due
// at Batch.Now, except some. Their receipts become void.
type Void struct {
	Project, Deployment string
	Except              []string // ids of messages
	// Until, if it is not 0, only shortens leases: a lease that would end within an hour
	// after Until ends at Until, and nothing else changes.
	Until int64
}

// Forget removes the messages of a run.
type Forget struct{ Project, Run string }

// Hasten makes the messages of a run due at Batch.Now, except leased ones, and sets their
// priority.
type Hasten struct {
	Project, Run string
	Priority     int
	Entries      []Entry // out: these messages
	Leased       int     // out: the number of leased messages
}

// Lease leases a due message. A batch's leases are decided last.
type Lease struct {
	ID, Receipt string
	Until       int64
	Message     *Message // out: the leased message, with its body; nil if it could not be leased
	Next        int64    // out: when the message is due, if it could not be leased; 0 if it does not exist
}

// Change is a change that another process made.
type Change struct {
	// Project and Deployment are "" if anything may have changed.
	Project, Deployment string
	// Due is when the earliest of the new messages is due, 0 if the deployment itself has
	// changed.
	Due int64
	// Urgent means that a new message has a priority above 0.
	Urgent bool
}
