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

// What processes tell each other over the channel of their schema: a word, and for
// some what it is about.
const (
	noteOwners  = "owners"  // a process has registered
	noteEnded   = "ended"   // a process is no more; it may not have said all that changed
	noteClaim   = "claim"   // there are runs to claim
	noteInbox   = "inbox"   // epoch of the owner that has messages
	noteChanged = "changed" // epoch of the sender, runs; no runs if there are too many

	noteSchedules = "schedules" // epoch of the sender

	// epoch of the sender, when the soonest of new messages is due, and of what project
	// and deployment they are; 0 says that the deployment has changed; no more than the
	// epoch if that is too much
	noteQueue = "queue"
)

// listener holds the one connection that listens. The session on it also says that
// this process is there: it has a lock that ends with it.
//
// What no event tells it looks up itself, each time sweepEvery: whether others are
// dead, whether there is something to claim, whether messages came while their run
// changed hands. When the connection is lost it makes a new one.
type listener struct {
	p       *Postgres
	config  *pgx.ConnConfig
	conn    *pgx.Conn // of run alone
	locked  int32     // epoch whose lock the session of conn has
	notices chan workflowd.Notice
	changes chan queue.Change
	woken   chan struct{}

	mu          sync.Mutex // guards what follows
	definitions []workflowd.Served
	others      map[int32]bool      // epochs of other processes that live; nil: not known yet
	missing     map[int32]time.Time // since when one is not connected
	overflow    bool                // a notice was lost
	lost        bool                // a change was
	closed      bool                // notices is
	interrupt   context.CancelFunc  // of waiting
}

const sweepEvery = time.Second

// notices kept until the engine takes them; beyond, it is told to look at everything.
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

// wake makes run look at everything now.
func (l *listener) wake() {
	select {
	case l.woken <- struct{}{}:
	default: // it is going to
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interrupt()
}

// report hands a notice to the engine. It never waits.
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

// reportChange hands what another process did to the queue. It never waits.
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
	default: // the queue takes what is there first, or there is none
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

// listen hears notifications on the connection until it is lost or ctx ends.
func (l *listener) listen(ctx context.Context) error {
	if _, err := l.conn.Exec(ctx, "LISTEN "+pgx.Identifier{l.p.channel}.Sanitize()); err != nil {
		return err
	}
	// Something may have happened before.
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

// await waits for a notification, for a time, or until wake is called.
func (l *listener) await(ctx context.Context, until time.Time) (*pgconn.Notification, error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	l.mu.Lock()
	l.interrupt = cancel
	l.mu.Unlock()
	if len(l.woken) > 0 {
		cancel() // before it knew whom to interrupt
	}
	return l.conn.WaitForNotification(ctx)
}

// hear acts on what another process, or another connection of this one, has said.
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

// isOther reports whether an epoch is that of another process that lives.
func (l *listener) isOther(epoch int32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.others[epoch]
}

// alone reports whether no other process is there. It is known after the first sweep.
func (l *listener) alone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.others != nil && len(l.others) == 0
}

// pgFollow moves messages for a run that has been continued, and whose owner died before
// it read them, to the last run of the chain, if the caller owns that.
const pgFollow = `UPDATE cay.inbox i SET run = last.id
	FROM cay.runs r JOIN cay.runs last ON last.first = CASE r.first WHEN '' THEN r.id ELSE r.first END AND last.first <> ''
	WHERE i.run = r.id AND i.verdict IS NULL AND r.next <> '' AND last.next = '' AND last.owner = $1
	AND NOT EXISTS (SELECT FROM cay.owners o WHERE o.epoch = r.owner AND NOT o.ended)`

// sweep says that this process is there, and looks for what nobody tells.
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
			} // else a lost session still has it: later
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

// judge returns which processes are dead: those whose lease is over; those that are
// known to have ended, because they were on this machine; and those that were not
// connected for a while, though they could have come back. It keeps who is alive.
//
// To be wrong costs a replay: who is declared dead and is not cannot write any more.
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
		// What this process did while it thought itself alone, it told nobody.
		l.p.notifier.changedAll()
	}
	maps.DeleteFunc(l.missing, func(epoch int32, _ time.Time) bool { return !seen[epoch] })
	return dead
}

// deployment names one.
type deployment struct{ project, id string }

// changeOf reads what a noteQueue says behind the epoch.
func changeOf(f []string) (c queue.Change) {
	if len(f) != 3 {
		return c
	}
	due, err1 := strconv.ParseInt(f[0], 10, 64)
	project, err2 := url.QueryUnescape(strings.TrimPrefix(f[1], "="))
	id, err3 := url.QueryUnescape(f[2])
	if err1 != nil || err2 != nil || err3 != nil {
		return c
	}
	return queue.Change{Project: project, Deployment: id, Due: due}
}

func noteOfQueue(d deployment, due int64) string {
	return strconv.FormatInt(due, 10) + " =" + url.QueryEscape(d.project) + " " + url.QueryEscape(d.id)
}

// notifier tells other processes which runs have new events or chunks, or were deleted,
// and that schedules have changed. It does so
// beside the commits, because a transaction that notifies waits for all others that
// do, and it gathers: while one notification is under way, and for a moment after
// it, runs wait for the next. If it dies in between, those who follow look at
// everything when they hear of that.
type notifier struct {
	p     *Postgres
	ready chan struct{}

	mu   sync.Mutex // guards what follows
	runs map[string]struct{}
	all  bool // more than runs
	// schedules says that these have changed.
	schedules bool
	// queues are deployments, and when the soonest of their new messages is due; 0 if they
	// have changed themselves.
	queues    map[deployment]int64
	allQueues bool // more than queues
}

const (
	notifyEvery = 5 * time.Millisecond
	// maxNotified bounds the runs that are named; beyond, all are said to have changed.
	maxNotified = 1000
	// maxNote is how long a notification may be; PostgreSQL takes 8000 bytes.
	maxNote = 7900
)

func newNotifier(p *Postgres) *notifier {
	return &notifier{p: p, ready: make(chan struct{}, 1), runs: make(map[string]struct{}), queues: make(map[deployment]int64)}
}

// changed adds the runs of a group that was stored.
func (n *notifier) changed(r *workflowd.Records) {
	if len(r.Logs) == 0 && len(r.Chunks) == 0 && len(r.Messages) == 0 || n.p.listener.alone() {
		return
	}
	n.mu.Lock()
	for i := range r.Messages {
		n.addQueue(deployment{r.Messages[i].Project, r.Messages[i].Deployment}, r.Messages[i].Due)
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

// queued adds deployments that have new messages, or have changed.
func (n *notifier) queued(b *queue.Batch) {
	if len(b.Publish) == 0 && len(b.Register) == 0 || n.p.listener.alone() {
		return
	}
	n.mu.Lock()
	for _, p := range b.Publish {
		n.addQueue(deployment{p.Message.Project, p.Message.Deployment}, p.Message.Due)
	}
	for _, r := range b.Register {
		if r.Do != queue.RegisterState {
			n.addQueue(deployment{r.Deployment.Project, r.Deployment.ID}, 0)
		}
	}
	n.mu.Unlock()
	n.signal()
}

func (n *notifier) addQueue(d deployment, due int64) {
	was, ok := n.queues[d]
	switch {
	case ok:
		n.queues[d] = min(was, due)
	case len(n.queues) < maxNotified:
		n.queues[d] = due
	default:
		n.allQueues = true
	}
}

// deleted adds runs that are there no more.
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

// changedSchedules says that schedules are not what they were.
func (n *notifier) changedSchedules() {
	if n.p.listener.alone() {
		return
	}
	n.mu.Lock()
	n.schedules = true
	n.mu.Unlock()
	n.signal()
}

// changedAll says that any run may have changed.
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
			continue // it went with the ones before
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

// notesLocked returns what is to be said, and forgets it: that runs have changed, or
// any may have if none are named.
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
		for d, due := range n.queues {
			notes = append(notes, noteQueue+epoch+" "+noteOfQueue(d, due))
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
	// Nothing is lost with this transaction that a look at the tables would not find.
	b.Queue("SELECT set_config('synchronous_commit', 'off', true)")
	b.Queue("SELECT pg_notify($1, note) FROM unnest($2::text[]) note", n.p.channel, notes)
	return n.p.pool.SendBatch(ctx, b).Close()
}
