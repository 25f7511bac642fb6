package queue

import "context"

// Store keeps messages and deployments. sqlstore implements it on SQLite, for one
// process, and on PostgreSQL, for several that share a database. Its methods may be
// called concurrently. Errors: unavailable, no_space; then nothing of a batch was stored,
// or, where the database did not answer, it is not known whether it was.
type Store interface {
	// Write stores a batch as a whole, in the order of its fields, and sets what its parts
	// call out.
	Write(ctx context.Context, b *Batch) error
	// Pending returns the messages of a deployment that are due before a time, leased
	// ones too, soonest first and at most limit. rest is when the soonest of all others is
	// due: math.MaxInt64 if there are none.
	Pending(ctx context.Context, project, deployment string, before int64, limit int) (entries []Entry, rest int64, err error)
	// Entry returns a message that is there; nil if it is not.
	Entry(ctx context.Context, id string) (*Entry, error)
	// Messages returns pending messages of a run, of the project if run is "", soonest first.
	Messages(ctx context.Context, project, run string, limit int) ([]Message, error)
	// Deployments returns the deployments of a project, of all if it is "", newest first.
	// CreatedAt is 0 for those that have messages and never registered.
	Deployments(ctx context.Context, project string) ([]Deployment, error)
	// Sweep removes deployments that were last seen before seen and have no messages,
	// and returns what it removed; and idempotency keys whose time is over at now.
	Sweep(ctx context.Context, seen, now int64) ([]Deployment, error)
	// Changes reports what other processes did. It is nil for a store of one process,
	// and closed with the store.
	Changes() <-chan Change
}

// Entry is a message as lanes hold it: without its body and texts.
type Entry struct {
	ID, Project, Deployment, Run string
	Due, LeaseUntil              int64
	Size                         int // of the body, in bytes
}

// Batch is what one transaction writes.
type Batch struct {
	Now         int64
	Publish     []*Publish
	Acknowledge []*Acknowledge
	Extend      []*Extend
	Settle      []*Settle
	Register    []*Register
	Void        []*Void
	Forget      []*Forget
	Lease       []*Lease
}

// Publish stores a message, unless there is one with its key. It makes the
// deployment, without an address, if that is missing.
type Publish struct {
	Message Message
	First   string // out: the id of the message that has the key, or has it now
}

// Acknowledge removes a message whose last lease has a receipt.
type Acknowledge struct {
	ID, Project, Receipt string
	Done                 bool // out
}

// Extend sets when a message is due whose last lease has a receipt: as the end of
// the lease, or else as the time of the next delivery; then it is leased no more.
type Extend struct {
	ID, Project, Receipt string
	Due                  int64
	Lease                bool
	Done                 bool // out
}

// Settle ends a lease: the push has returned, and the message was not acknowledged.
// It does nothing to a message that is not leased with the receipt.
type Settle struct {
	ID, Receipt string
	Due         int64
	// Uncounted takes the attempt back, and the receipt: the message has reached nobody.
	Uncounted bool
	LastError string
	Next      int64 // out: when the message is due; 0 if it is not there
}

// RegisterKind is what a Register does.
type RegisterKind int

// The kinds of Register.
const (
	// RegisterApp sets URL, Secret and SeenAt of a deployment, and clears Error. If the
	// address is what it was and the secret another, all its leases are void; see Void.
	// CreatedAt is set by the first that comes.
	RegisterApp RegisterKind = iota
	// RegisterLeave clears URL and Error, if Secret is that of the row or "".
	RegisterLeave
	// RegisterState stores Error and SeenAt, if URL and Secret are those of the row.
	RegisterState
	// RegisterDrain stores Draining.
	RegisterDrain
)

// Register changes the row of a deployment.
type Register struct {
	Do         RegisterKind
	Deployment Deployment  // out: the row, if there is one
	Old        *Deployment // out: the row before; nil if there was none
	Void       bool        // out: leases were made void
}

// Void has messages of a deployment that are leased, or wait after a failure, be due
// at Batch.Now, but for some. Their receipts are void.
type Void struct {
	Project, Deployment string
	Except              []string // ids of messages
	// Until, if it is not 0, has leases that end within an hour after Until end then, and no
	// later, and changes nothing else.
	Until int64
}

// Forget removes the messages of a run.
type Forget struct{ Project, Run string }

// Lease leases a message that is due. It is decided last in a batch.
type Lease struct {
	ID, Receipt string
	Until       int64
	Message     *Message // out: as it is now, with its body; nil if it was not to be had
	Next        int64    // out: when it is due, if it was not to be had; 0 if it is not there
}

// Change is something another process did.
type Change struct {
	// Project and Deployment are "" if anything may have changed.
	Project, Deployment string
	// Due is when the soonest of new messages is due. It is 0 if the deployment itself has
	// changed.
	Due int64
}
