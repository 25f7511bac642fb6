package workflowd

import (
	"context"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/workflow"
)

// Store keeps logs and what can be asked about them. sqlstore implements it on
// SQLite, for one process, and on PostgreSQL, for several that share a database;
// storetest holds both to one behaviour.
//
// The engine is the only writer of the runs it owns: it gives the slots, and knows
// what is not allowed. A Store makes groups durable, decides what must be unique
// across runs, and answers queries. Queries see everything that was committed
// before they were asked. All methods may be called concurrently, Commit too:
// two groups in flight never have events of the same run.
//
// Errors: no_space (nothing of the group was stored), unavailable (the database
// does not answer; it is not known whether the group was stored), conflict from
// Commit if another process has taken over what this one owned: nothing was
// stored, and the engine must let go of all its runs; see Owner.
type Store interface {
	// Commit stores a group as a whole. See Group.
	Commit(ctx context.Context, g *Group) error

	// Run returns a run; not_found.
	Run(ctx context.Context, id string) (*history.Run, error)
	// Last returns the last of the runs whose First is a run, whether it has ended or
	// not; not_found if there is none.
	Last(ctx context.Context, first string) (*history.Run, error)
	// LiveChildren returns the runs that have not ended whose Parent is a run, or one whose
	// First is that run.
	LiveChildren(ctx context.Context, first string) ([]history.Run, error)
	// Events returns the events of a run from a slot on, at most limit (0: all).
	Events(ctx context.Context, id string, from int64, limit int) ([]history.Event, error)
	Runs(ctx context.Context, q history.Query) (*history.Page[history.Run], error)
	// Count counts the runs that a query selects, by status, and bounds what that
	// costs: at least of the first 10,000 of a status they are all counted, unless the
	// query asks for attributes that many runs have. Cursor, limit and order do not
	// matter.
	Count(ctx context.Context, q history.Query) (history.Counts, error)
	// Hook returns the live hook of a token; not_found.
	Hook(ctx context.Context, project, token string) (*history.Hook, error)
	Hooks(ctx context.Context, project, run, cursor string, limit int) (*history.Page[history.Hook], error)
	// Chunks returns at most limit chunks of a stream from an index on, and how far
	// the stream is. A stream nobody wrote to is empty and open.
	Chunks(ctx context.Context, run, stream string, from int64, limit int) ([]history.Chunk, history.StreamInfo, error)
	Streams(ctx context.Context, run string) ([]history.StreamInfo, error)
	// StreamRun returns the run of a project that has a stream of that name, the newest of
	// several; not_found.
	StreamRun(ctx context.Context, project, stream string) (string, error)
	// Blob returns a payload too large for the log; not_found.
	Blob(ctx context.Context, run, name string) ([]byte, error)

	// Due returns waits, step retries and runs to be started not earlier than,
	// of runs this process owns, that are due before a time, soonest first.
	Due(ctx context.Context, before time.Time, limit int) ([]Due, error)
	// Owned returns the runs this process owns that are not terminal and were running
	// (or were asked to run) when they were last stored, oldest first, a page at a
	// time: what recovery goes through. Runs that only wait for timers or hooks are
	// left out; see Asleep.
	Owned(ctx context.Context, after string, limit int) ([]history.Run, error)
	// Expired returns ended runs whose time of retention is over: ExpiresAt is not 0
	// and not later than now. A negative one asks for Strip. A run that is the First of
	// others is left out as long as one of them is there, and a run that has a First as
	// long as a run is live whose Parent it is, unless it asks for Strip.
	Expired(ctx context.Context, now time.Time, limit int) ([]string, error)
	// Delete removes ended runs with all that is theirs.
	Delete(ctx context.Context, ids []string) error
	// Strip deletes the payloads of ended runs: Payload and Input of their events, the
	// data of chunks, blobs. All else stays, and ExpiresAt becomes 0.
	Strip(ctx context.Context, ids []string) error

	// Schedules returns the schedules of a project, of all if it is "".
	Schedules(ctx context.Context, project string) ([]history.Schedule, error)
	// PutSchedule inserts or replaces a schedule; DeleteSchedule removes it; not_found.
	PutSchedule(ctx context.Context, s history.Schedule) error
	DeleteSchedule(ctx context.Context, project, id string) error

	// Transact runs f in a transaction on the engine's own database, in which what g
	// settles to is stored too: both or neither. f is called once, before g.Settle.
	Transact(ctx context.Context, g *Group, f func(tx Tx) error) error

	// Owner returns what several processes need; nil for a store of one process.
	Owner() Owner
	Close() error
}

// Group is what one commit stores.
type Group struct {
	// Claims are what must be unique. Commit decides them first, in order, and sets
	// Owner of each that was taken already.
	Claims []*Claim
	// Settle is called once, when the claims are decided and before anything is
	// written: it returns what to store. It does not block.
	Settle func() Records
}

// Claim asks for a name that one run has at a time: a hook's token until the hook
// or its run ends, an idempotency key for as long as the run is kept.
type Claim struct {
	Project string
	Token   string // of a hook, or
	// Workflow and Key of a start.
	Workflow, Key string
	Run           string // who asks
	Hook          string // the hook's id
	Owner         string // out: the run that has it, "" if it is now Run's
	OwnerHook     string // out: for tokens
}

// Records is what a group stores.
type Records struct {
	// Runs are the rows that changed, whole; new ones too.
	Runs []history.Run
	// Logs are events of runs. Events of one run are in order and dense.
	Logs []Log
	// Chunks are appended to streams. The engine gives the indexes.
	Chunks []StreamChunks
	Blobs  []Blob
	// Messages are published: queue.Queue.Prepare has given them their ids. One whose
	// idempotency key another message has is left out. When they are stored, the queue is
	// told (queue.Queue.Added).
	Messages []queue.Message
	// Asleep are runs that from now on only wait for timers and hooks, Awake those
	// that no longer do.
	Asleep, Awake []string
	// Inbox are the ids of messages that this group takes in; see Owner.
	Inbox []int64
	// Verdicts are about messages that this group takes in, or refuses, and whose
	// senders wait for that. They are not in Inbox.
	Verdicts []Verdict
	// Post are messages for runs that may be another process's: see Owner.Post. One
	// for a run that is not there is dropped. Only for stores that have an Owner.
	Post []Message
}

// Log is new events of one run.
type Log struct {
	Run    *history.Run // as it is after the events; only to be read, and only during Commit
	Events []history.Event
}

// StreamChunks is new chunks of one stream.
type StreamChunks struct {
	Run, Stream string
	Chunks      []history.Chunk
	Close       bool
}

// Blob is a payload kept beside the log. It is deleted with its run. Its name says
// what is in it: one of that run and name that is there already is left alone.
type Blob struct {
	Run, Name string
	Data      []byte
}

// Due is a timer: a wait of a run, the retry of a step, or the start of a run (ID "").
type Due struct {
	Run string
	ID  string
	At  int64 // Unix milliseconds
}

// Tx is what a transactional step may do on the engine's database.
type Tx = workflow.Tx

// Owner is how processes that share a database divide the runs among them. A
// process registers and gets an epoch; every commit checks, in its transaction,
// that this epoch still holds. Every run that is not terminal has an owner, or
// waits for one that has its workflow (and build).
//
// A process that does not renew for as long as a lease lasts is dead to the
// others: its registration is ended in the same statement that gives its runs to
// somebody else, so a commit of it that comes late fails with conflict.
type Owner interface {
	// Renew keeps this process's registration. The engine calls it at a third of the
	// lease, and stops all runs when it has not succeeded for two thirds. Errors:
	// conflict, the registration has been ended by others.
	Renew(ctx context.Context) error
	// Register registers anew, after conflict. It owns nothing then.
	Register(ctx context.Context) error
	Lease() time.Duration
	// Serve says what this process has workers for; runs nobody owns, and those of
	// processes that are dead, are claimed for these only.
	Serve(definitions []Served)
	// Claim takes over at most limit runs that nobody alive owns, and returns those of
	// them that Owned would: asleep ones come with their timers, see Due.
	Claim(ctx context.Context, limit int) ([]history.Run, error)
	// Take makes this process the owner of those runs that have not ended and that
	// nobody alive owns, and returns those it owns now, these and others.
	Take(ctx context.Context, runs []string) ([]string, error)
	// Disown gives runs up, for others to claim.
	Disown(ctx context.Context, runs []string) error
	// Post leaves a message for whoever owns a run, and wakes it. It returns the
	// message's id. Errors: not_found.
	Post(ctx context.Context, m Message) (int64, error)
	// Verdict says what became of a message that Records.Verdicts names, or will name.
	// The first answer that is not nil is the only one; the message is gone then.
	// Errors: not_found: the run has ended, or was deleted, before the message was
	// taken in.
	Verdict(ctx context.Context, id int64) (*Verdict, error)
	// Inbox returns messages for runs of this process, oldest first. Each is returned
	// until a group that names it in Records.Inbox has been stored.
	Inbox(ctx context.Context, limit int) ([]Message, error)
	// Notices reports what other processes did. It is closed with the store. After a
	// connection was lost it reports NoticeAll.
	Notices() <-chan Notice
	// Running counts running runs of a workflow and group over all processes, for
	// their limits.
	Running(ctx context.Context, project, workflow, group string) (int, error)
}

// Served is a workflow a process has a worker for. Build "" serves runs that are
// not pinned only.
type Served struct{ Project, Workflow, Build string }

// Message asks the owner of a run to append an event from outside to it:
// hook_received, cancel_requested, run_cancelled, wait_completed, attr_set.
type Message struct {
	ID    int64
	Run   string
	Event history.Event
}

// Verdict is what became of a message.
type Verdict struct {
	ID   int64
	Code cay.Code // "" if it was taken in
	Why  string   // of a refusal, for people
}

// Notice is one thing another process did.
type Notice struct {
	Kind NoticeKind
	Run  string // or "" for many
}

// NoticeKind is what a notice is about.
type NoticeKind string

// The kinds of notices.
const (
	NoticeInbox   NoticeKind = "inbox"   // there are messages for this process
	NoticeClaim   NoticeKind = "claim"   // there are runs to claim
	NoticeChanged NoticeKind = "changed" // a run has new events or chunks; for those who follow it
	// NoticeSchedules: schedules have been set, deleted, or have started runs.
	NoticeSchedules NoticeKind = "schedules"
	NoticeAll       NoticeKind = "all" // look at everything again
)
