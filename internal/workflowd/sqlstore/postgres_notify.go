package sqlstore

import (
	"context"
	"maps"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

// The notes that processes send each other over the channel of their schema: a word, and
// for some words arguments.
const (
	noteOwners  = "owners"  // a process has registered
	noteEnded   = "ended"   // a process has ended; some of its changes may be unreported
	noteClaim   = "claim"   // there are runs to claim
	noteInbox   = "inbox"   // epoch of the owner whose inbox has messages
	noteChanged = "changed" // epoch of the sender, run ids; no ids if there are too many

	noteSchedules = "schedules" // epoch of the sender
	noteAsked     = "asked"     // epoch of the owner of a run, run id

	// noteQueue has the epoch of the sender, the due time of the earliest new message,
	// the project and the deployment, and "urgent" if any of these messages has a
	// priority. Due time 0 says that the deployment itself has changed. A note with the epoch alone says that any deployment may have changed.
	noteQueue = "queue"
)

// listener holds the one connection that listens for notifications. Its session also
// holds an advisory lock, which shows the other processes that this process is connected.
//
// Some changes send no notification. Every sweepEvery the listener therefore checks
// whether other processes are dead, whether there are runs to claim, and whether messages
// arrived while their run changed owners. When the connection is lost the listener makes
// a new one.
type listener struct {
	p       *Postgres
	config  *pgx.ConnConfig
	conn    *pgx.Conn // used by run only
	locked  int32     // epoch whose lock the session of conn holds
	notices chan workflowd.Notice
	changes chan queue.Change
	woken   chan struct{}

	mu          sync.Mutex // guards the fields below
	definitions []workflowd.Served
	others      map[int32]bool      // epochs of other live processes; nil: not known yet
	missing     map[int32]time.Time // since when a process is not connected
	overflow    bool                // a notice was lost
	lost        bool                // a queue change was lost
	closed      bool                // notices is closed
	interrupt   context.CancelFunc  // cancels the wait
}

const sweepEvery = time.Second

// maxNotices bounds the notices that wait for the engine; beyond it, the engine is told
// to look at everything.
const maxNotices = 1024

func newListener(p *Postgres, config *pgx.ConnConfig, conn *pgx.Conn) *listener {
	return &listener{
		p: p, config: config, conn: conn, notices: make(chan workflowd.Notice, maxNotices),
		changes: make(chan queue.Change, maxNotices),
		woken:   make(chan struct{}, 1), missing: make(map[int32]time.Time), interrupt: func() {},
	}
}

func (l *listener) serve(d []workflowd.Served) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.definitions = d
}

func (l *listener) served() []workflowd.Served {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.definitions
}

// wake makes run check everything now.
func (l *listener) wake() {
	select {
	case l.woken <- struct{}{}:
	default: // a wake-up is pending already
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interrupt()
}

// report passes a notice to the engine. It never blocks.
func (l *listener) report(n workflowd.Notice) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.overflow {
		n = workflowd.Notice{Kind: workflowd.NoticeAll}
	}
	select {
	case l.notices <- n:
		l.overflow = false
	default:
		l.overflow = true
	}
}

// reportChange passes a change by another process to the queue. It never blocks.
func (l *listener) reportChange(c queue.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.lost {
		c = queue.Change{}
	}
	select {
	case l.changes <- c:
		l.lost = false
	default: // the channel is full or nobody reads it
		l.lost = true
	}
}

// run listens until ctx ends.
func (l *listener) run(ctx context.Context) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closed = true
		close(l.notices)
		close(l.changes)
	}()
	pause := 20 * time.Millisecond
	for {
		err := l.listen(ctx)
		l.disconnect()
		if ctx.Err() != nil {
			return
		}
		l.p.o.Logger.Warn("the connection that listens was lost", "error", err)
		for {
			if wait(ctx, pause) != nil {
				return
			}
			if l.conn, err = pgx.ConnectConfig(ctx, l.config); err == nil {
				break
			}
			l.p.o.Logger.Debug("cannot connect to listen", "error", err)
			pause = min(2*pause, time.Second)
		}
		pause = 20 * time.Millisecond
	}
}

func (l *listener) disconnect() {
	l.locked = 0
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := l.conn.Close(ctx); err != nil {
		l.p.o.Logger.Debug("close the connection that listens", "error", err)
	}
	l.conn = nil
}

// listen receives notifications on the connection until the connection is lost or ctx
// ends.
func (l *listener) listen(ctx context.Context) error {
	if _, err := l.conn.Exec(ctx, "LISTEN "+pgx.Identifier{l.p.channel}.Sanitize()); err != nil {
		return err
	}
	// Changes before the LISTEN may have been missed.
	l.report(workflowd.Notice{Kind: workflowd.NoticeAll})
	l.reportChange(queue.Change{})
	next := time.Now()
	for {
		select {
		case <-l.woken:
			next = time.Now()
		default:
		}
		if !time.Now().Before(next) {
			if err := l.sweep(ctx); err != nil {
				return err
			}
			next = time.Now().Add(min(sweepEvery, l.p.o.Lease/4))
		}
		n, err := l.await(ctx, next)
		switch {
		case n != nil:
			l.hear(n.Payload)
		case ctx.Err() != nil:
			return ctx.Err()
		case l.conn.IsClosed():
			return err
		}
	}
}

// await waits for a notification, until a time, or until wake is called.
func (l *listener) await(ctx context.Context, until time.Time) (*pgconn.Notification, error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	l.mu.Lock()
	l.interrupt = cancel
	l.mu.Unlock()
	if len(l.woken) > 0 {
		cancel() // wake was called before interrupt was set
	}
	return l.conn.WaitForNotification(ctx)
}

// hear handles a note from another process or from another connection of this process.
func (l *listener) hear(payload string) {
	word, rest, _ := strings.Cut(payload, " ")
	switch word {
	case noteOwners:
		l.wake()
	case noteEnded:
		l.report(workflowd.Notice{Kind: workflowd.NoticeChanged})
		l.report(workflowd.Notice{Kind: workflowd.NoticeClaim})
		l.reportChange(queue.Change{})
		l.wake()
	case noteClaim:
		l.report(workflowd.Notice{Kind: workflowd.NoticeClaim})
		l.wake()
	case noteInbox:
		if owner, err := strconv.ParseInt(rest, 10, 32); err == nil && !l.isOther(int32(owner)) {
			l.report(workflowd.Notice{Kind: workflowd.NoticeInbox})
		}
	case noteChanged:
		sender, runs, _ := strings.Cut(rest, " ")
		if sender == strconv.Itoa(int(l.p.epoch.Load())) {
			return
		}
		if runs == "" {
			l.report(workflowd.Notice{Kind: workflowd.NoticeChanged})
		}
		for run := range strings.FieldsSeq(runs) {
			l.report(workflowd.Notice{Kind: workflowd.NoticeChanged, Run: run})
		}
	case noteSchedules:
		if rest != strconv.Itoa(int(l.p.epoch.Load())) {
			l.report(workflowd.Notice{Kind: workflowd.NoticeSchedules})
		}
	case noteAsked:
		if owner, run, _ := strings.Cut(rest, " "); owner == strconv.Itoa(int(l.p.epoch.Load())) {
			l.report(workflowd.Notice{Kind: workflowd.NoticeAsked, Run: run})
		}
	case noteQueue:
		f := strings.Fields(rest)
		if len(f) == 0 || f[0] == strconv.Itoa(int(l.p.epoch.Load())) {
			return
		}
		l.reportChange(changeOf(f[1:]))
	default:
		l.p.o.Logger.Debug("another release says something unknown", "notice", word)
	}
}

// isOther reports whether an epoch belongs to another live process.
func (l *listener) isOther(epoch int32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.others[epoch]
}

// alone reports whether no other process is registered. It reports false before the first
// sweep.
func (l *listener) alone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.others != nil && len(l.others) == 0
}

// pgFollow moves the messages for a continued run whose owner died before it read them to
// the last run of the chain, if the caller owns the last run.
const pgFollow = `UPDATE cay.inbox i SET run = last.id
	FROM cay.runs r JOIN cay.runs last ON last.first = CASE r.first WHEN '' THEN r.id ELSE r.first END AND last.first <> ''
	WHERE i.run = r.id AND i.verdict IS NULL AND r.next <> '' AND last.next = '' AND last.owner = $1
	AND NOT EXISTS (SELECT FROM cay.owners o WHERE o.epoch = r.owner AND NOT o.ended)`

// sweep takes the lock that shows this process as connected, and checks for changes that
// send no notification.
func (l *listener) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(l.p.o.Lease/2, time.Second))
	defer cancel()
	p, epoch := l.p, l.p.epoch.Load()
	b := new(pgx.Batch)
	if l.locked != epoch {
		b.Queue("SELECT pg_advisory_unlock_all()")
		b.Queue("SELECT pg_try_advisory_lock($1, $2)", p.sessionClass, epoch).QueryRow(func(row pgx.Row) error {
			var got bool
			err := row.Scan(&got)
			if got {
				l.locked = epoch
			} // else a lost session still holds the lock: the next sweep tries again
			return err
		})
	}
	var others []peer
	b.Queue(p.sql(pgPeers), epoch, int64(uint32(p.sessionClass))).Query(func(rows pgx.Rows) (err error) {
		others, err = pgx.CollectRows(rows, scanPeer)
		return err
	})
	b.Queue(p.sql(pgFollow), epoch)
	var messages, claimable bool
	b.Queue(p.sql("SELECT EXISTS (SELECT FROM cay.inbox i JOIN cay.runs r ON r.id = i.run WHERE r.owner = $1 AND i.verdict IS NULL)"), epoch).
		QueryRow(func(row pgx.Row) error { return row.Scan(&messages) })
	project, workflow, build := served(l.served())
	b.Queue(p.sql("SELECT EXISTS ("+pgClaimable(pgAwake, "")+") OR EXISTS ("+pgClaimable(pgAsleep, "")+")"), project, workflow, build, 1).
		QueryRow(func(row pgx.Row) error { return row.Scan(&claimable) })
	b.Queue(p.sql(`DELETE FROM cay.owners o WHERE ended AND NOT EXISTS (SELECT FROM cay.runs WHERE owner = o.epoch AND ` + pgAwake + `)
		AND NOT EXISTS (SELECT FROM cay.runs WHERE owner = o.epoch AND ` + pgAsleep + `)`))
	if err := l.conn.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	if messages {
		l.report(workflowd.Notice{Kind: workflowd.NoticeInbox})
	}
	dead := l.judge(others)
	for _, o := range dead {
		if err := p.end(ctx, o); err != nil {
			p.o.Logger.Warn("cannot end the registration of a dead process", "process", o.name, "error", err)
		}
	}
	if claimable || len(dead) > 0 {
		l.report(workflowd.Notice{Kind: workflowd.NoticeClaim})
	}
	return nil
}

// judge returns the dead processes: processes whose lease has expired; processes that ran
// on this machine and have exited; and processes that were disconnected for min(2 s, half
// a lease) though they could have reconnected. It stores the live ones in others. A wrong
// verdict costs a replay, no more: a process that is declared dead can no longer write.
func (l *listener) judge(others []peer) (dead []peer) {
	grace := min(2*time.Second, l.p.o.Lease/2)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	was := l.others
	l.others = make(map[int32]bool, len(others))
	seen := make(map[int32]bool, len(others))
	for _, o := range others {
		seen[o.epoch] = true
		since, missing := l.missing[o.epoch]
		switch {
		case o.connected:
			delete(l.missing, o.epoch)
		case !missing:
			l.missing[o.epoch] = now
			since = now
		}
		if o.expired || !o.connected && (now.Sub(since) >= grace || isGone(o.process)) {
			dead = append(dead, o)
		} else {
			l.others[o.epoch] = true
		}
	}
	if was != nil && len(was) == 0 && len(l.others) > 0 {
		// Until now this process believed itself alone and sent no notifications.
		l.p.notifier.changedAll()
	}
	maps.DeleteFunc(l.missing, func(epoch int32, _ time.Time) bool { return !seen[epoch] })
	return dead
}

// deployment identifies a deployment.
type deployment struct{ project, id string }

// changeOf parses the arguments of a noteQueue after the epoch.
func changeOf(f []string) (c queue.Change) {
	urgent := len(f) == 4 && f[3] == urgentWord
	if len(f) != 3 && !urgent {
		return c
	}
	due, err1 := strconv.ParseInt(f[0], 10, 64)
	project, err2 := url.QueryUnescape(strings.TrimPrefix(f[1], "="))
	id, err3 := url.QueryUnescape(f[2])
	if err1 != nil || err2 != nil || err3 != nil {
		return c
	}
	return queue.Change{Project: project, Deployment: id, Due: due, Urgent: urgent}
}

const urgentWord = "urgent"

func noteOfQueue(d deployment, n news) string {
	note := strconv.FormatInt(n.due, 10) + " =" + url.QueryEscape(d.project) + " " + url.QueryEscape(d.id)
	if n.urgent {
		note += " " + urgentWord
	}
	return note
}

// notifier tells other processes which runs have new events or chunks or were deleted,
// and that schedules have changed. It notifies outside the commits, because a transaction
// that notifies waits for all other transactions that notify. It batches: while one
// notification is being sent, and for a moment after it, changed runs wait for the next.
// If the process dies in between, the watchers in other processes reread everything when
// they learn of the death.
type notifier struct {
	p     *Postgres
	ready chan struct{}

	mu   sync.Mutex // guards the fields below
	runs map[string]struct{}
	all  bool // too many runs to name them
	// schedules means that schedules have changed.
	schedules bool
	queues    map[deployment]news
	allQueues bool // too many deployments to name them
}

// news is what is new in the queue of a deployment: the due time of its earliest new
// message, 0 if the deployment itself has changed.
type news struct {
	due    int64
	urgent bool // one of the messages has a priority
}

const (
	notifyEvery = 5 * time.Millisecond
	// maxNotified bounds the runs that are named; with more, all runs are reported as
	// changed.
	maxNotified = 1000
	// maxNote bounds the bytes of a notification; PostgreSQL allows 8000.
	maxNote = 7900
)

func newNotifier(p *Postgres) *notifier {
	return &notifier{p: p, ready: make(chan struct{}, 1), runs: make(map[string]struct{}), queues: make(map[deployment]news)}
}

// changed adds the runs of a stored group.
func (n *notifier) changed(r *workflowd.Records) {
	if len(r.Logs) == 0 && len(r.Chunks) == 0 && len(r.Messages) == 0 || n.p.listener.alone() {
		return
	}
	n.mu.Lock()
	for i := range r.Messages {
		m := &r.Messages[i]
		n.addQueue(deployment{m.Project, m.Deployment}, news{m.Due, m.Priority > 0})
	}
	for i := range r.Logs {
		n.add(r.Logs[i].Run.ID)
	}
	for i := range r.Chunks {
		n.add(r.Chunks[i].Run)
	}
	n.mu.Unlock()
	n.signal()
}

// queued adds deployments that have new messages or have changed themselves.
func (n *notifier) queued(b *queue.Batch) {
	if len(b.Publish) == 0 && len(b.Register) == 0 && len(b.Hasten) == 0 || n.p.listener.alone() {
		return
	}
	n.mu.Lock()
	for _, h := range b.Hasten {
		for _, e := range h.Entries {
			n.addQueue(deployment{e.Project, e.Deployment}, news{e.Due, e.Priority > 0})
		}
	}
	for _, p := range b.Publish {
		m := &p.Message
		n.addQueue(deployment{m.Project, m.Deployment}, news{m.Due, m.Priority > 0})
	}
	for _, r := range b.Register {
		if r.Do != queue.RegisterState {
			n.addQueue(deployment{r.Deployment.Project, r.Deployment.ID}, news{})
		}
	}
	n.mu.Unlock()
	n.signal()
}

func (n *notifier) addQueue(d deployment, new news) {
	was, ok := n.queues[d]
	switch {
	case ok:
		n.queues[d] = news{min(was.due, new.due), was.urgent || new.urgent}
	case len(n.queues) < maxNotified:
		n.queues[d] = new
	default:
		n.allQueues = true
	}
}

// deleted adds deleted runs.
func (n *notifier) deleted(runs []string) {
	if n.p.listener.alone() {
		return
	}
	n.mu.Lock()
	for _, run := range runs {
		n.add(run)
	}
	n.mu.Unlock()
	n.signal()
}

// changedSchedules records that schedules have changed.
func (n *notifier) changedSchedules() {
	if n.p.listener.alone() {
		return
	}
	n.mu.Lock()
	n.schedules = true
	n.mu.Unlock()
	n.signal()
}

// changedAll records that any run may have changed.
func (n *notifier) changedAll() {
	n.mu.Lock()
	n.all, n.allQueues = true, true
	n.mu.Unlock()
	n.signal()
}

func (n *notifier) signal() {
	select {
	case n.ready <- struct{}{}:
	default:
	}
}

func (n *notifier) add(run string) {
	if len(n.runs) < maxNotified {
		n.runs[run] = struct{}{}
	} else {
		n.all = true
	}
}

func (n *notifier) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.ready:
		}
		n.mu.Lock()
		notes := n.notesLocked()
		n.mu.Unlock()
		if len(notes) == 0 {
			continue // an earlier note includes it
		}
		pause := notifyEvery
		if err := n.send(ctx, notes); err != nil && ctx.Err() == nil {
			n.p.o.Logger.Debug("cannot tell others what changed", "error", err)
			n.changedSchedules()
			n.changedAll()
			pause = 200 * time.Millisecond
		}
		if wait(ctx, pause) != nil {
			return
		}
	}
}

// notesLocked returns the notes to send and resets the collected changes. A noteChanged
// without ids says that any run may have changed.
func (n *notifier) notesLocked() (notes []string) {
	epoch := " " + strconv.Itoa(int(n.p.epoch.Load()))
	note := noteChanged + epoch
	if n.all {
		notes = append(notes, note)
	} else if len(n.runs) > 0 {
		for run := range n.runs {
			if len(note)+1+len(run) > maxNote {
				notes, note = append(notes, note), noteChanged+epoch
			}
			note += " " + run
		}
		notes = append(notes, note)
	}
	if n.schedules {
		notes = append(notes, noteSchedules+epoch)
	}
	if n.allQueues {
		notes = append(notes, noteQueue+epoch)
	} else {
		for d, news := range n.queues {
			notes = append(notes, noteQueue+epoch+" "+noteOfQueue(d, news))
		}
	}
	clear(n.runs)
	clear(n.queues)
	n.all, n.schedules, n.allQueues = false, false, false
	return notes
}

func (n *notifier) send(ctx context.Context, notes []string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	b := new(pgx.Batch)
	// If the server loses this transaction in a crash, a look at the tables finds the
	// changes.
	b.Queue("SELECT set_config('synchronous_commit', 'off', true)")
	b.Queue("SELECT pg_notify($1, note) FROM unnest($2::text[]) note", n.p.channel, notes)
	return n.p.pool.SendBatch(ctx, b).Close()
}
