package queue

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/cayhq/cay"
)

// Deployment is a build of a program, with the address of its app. Times are Unix
// milliseconds.
type Deployment struct {
	Project, ID string
	// URL is the app's address, "" if no app has registered, Pulled if its processes connect.
	URL string
	// Secret authenticates deliveries to the app. Each process of the app makes its own,
	// so that another secret at the same address means that the process before is dead.
	Secret    string
	CreatedAt int64 // when the deployment first registered; 0 if it never did
	SeenAt    int64 // when the app was last heard of; if it never registered, when it got its first message
	// Error is why the deployment's messages are held, for people; "" if they are not
	// held.
	Error string
	// Draining means that no new runs may be started with the deployment. Its messages
	// are still delivered.
	Draining bool
}

// Pulled is the address of a deployment whose processes open connections to the daemon
// and take messages over them. The Pusher knows the connections. All processes of such a
// deployment share one secret.
const Pulled = "pull:"

const (
	// seenEvery is the precision of SeenAt while deliveries succeed.
	seenEvery = time.Hour
	// keepDeployment is how long an unseen deployment without messages is kept.
	keepDeployment = 30 * 24 * time.Hour
	sweepEvery     = 24 * time.Hour
	// dialPatience is how long a replaced address has to accept a connection.
	dialPatience = time.Second
	// maxBefore is how many earlier addresses of a deployment are remembered.
	maxBefore = 16
)

// Register sets the address of a deployment's app, or confirms it. Delivery of held
// messages resumes at once. If the address is unchanged and the secret is new, the leases
// of the previous process become void, and their messages due. If the address is new, the
// same happens unless the previous address still accepts connections. Draining is not
// changed. Errors: invalid.
func (q *Queue) Register(ctx context.Context, d Deployment) (Deployment, error) {
	for _, f := range []struct{ name, value string }{{"project", d.Project}, {"deployment", d.ID}, {"address", d.URL}, {"secret", d.Secret}} {
		if err := checkText(f.name, f.value); err != nil {
			return Deployment{}, err
		}
	}
	if d.ID == "" {
		return Deployment{}, cay.Errorf(cay.Invalid, "the deployment has no id")
	}
	if u, err := url.Parse(d.URL); d.URL != Pulled && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return Deployment{}, cay.Errorf(cay.Invalid, "the address %q of deployment %s is not http://HOST:PORT", d.URL, d.ID)
	}
	now := q.now()
	d.SeenAt, d.CreatedAt, d.Error = now, now, ""
	r := &Register{Deployment: d}
	began := q.mark()
	if err := q.w.write(ctx, 0, func(b *Batch) { b.Register = append(b.Register, r) }); err != nil {
		return Deployment{}, err
	}
	q.mu.Lock()
	l := q.laneLocked(d.Project, d.ID)
	q.unsureLocked(l, began)
	q.registeredLocked(l, r.Deployment, r.Void)
	if old := r.Old; old != nil && old.URL != "" && old.URL != d.URL {
		q.spawnLocked(func() { q.replaced(l, *old) })
	}
	q.mu.Unlock()
	q.poke()
	return r.Deployment, nil
}

// registeredLocked copies the stored row of a deployment to its lane; void means that the
// store has made the previous process's leases void.
func (q *Queue) registeredLocked(l *lane, d Deployment, void bool) {
	if l.dep.URL != d.URL || l.dep.Secret != d.Secret {
		l.process++
	}
	held := l.held
	q.changes++
	l.changed = q.changes
	l.meetLocked(d)
	l.held, l.probes = held, 0
	q.unholdLocked(l)
	l.before = slices.DeleteFunc(l.before, d.sameAddress)
	q.fallBackLocked(l)
	if void {
		q.voidLocked(l)
	}
	q.readyLocked(l)
}

// mark returns the number of changes of deployments so far.
func (q *Queue) mark() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.changes
}

// unsureLocked makes the row of a deployment be read anew if the lane has changed since the
// mark: the rows of two changes at once come here in any order.
func (q *Queue) unsureLocked(l *lane, mark int) {
	if l.changed > mark {
		q.spawnLocked(func() { q.change(Change{Project: l.key.project, Deployment: l.key.deployment}) })
	}
}

// voidLocked ends the pushes to a dead process, and makes the lane load its messages
// again.
func (q *Queue) voidLocked(l *lane) {
	for _, f := range q.flights {
		if f.lane == l && f.process != l.process {
			f.void = true
			f.cancel(errReplaced)
		}
	}
	l.anyLocked(q.now())
	q.tickLocked(l)
}

var errReplaced = fmt.Errorf("another process of the app has registered")

// replaced makes the leases of a previous address's process void, if nothing accepts
// connections at that address. Running pushes to the process are left out, because they
// fail by themselves. A process that does accept them may outlive the one that registered
// later.
func (q *Queue) replaced(l *lane, old Deployment) {
	ctx, cancel := context.WithTimeout(q.ctx, dialPatience)
	defer cancel()
	if answers(ctx, old.URL) {
		q.mu.Lock()
		if old.URL != l.dep.URL {
			l.before = append(slices.DeleteFunc(l.before, old.sameAddress), old)
			l.before = l.before[max(0, len(l.before)-maxBefore):]
			q.fallBackLocked(l)
		}
		q.mu.Unlock()
		return
	}
	if q.ctx.Err() != nil {
		return
	}
	v := &Void{Project: l.key.project, Deployment: l.key.deployment}
	q.mu.Lock()
	for id, f := range q.flights {
		// A push whose app has asked for a later delivery is included: verdictLocked
		// stores nothing more for it.
		if f.lane == l {
			v.Except = append(v.Except, id)
		}
	}
	q.mu.Unlock()
	if err := q.w.write(q.ctx, 0, func(b *Batch) { b.Void = append(b.Void, v) }); err != nil {
		q.log.Warn("leases of an app that is gone stay until they end", "deployment", old.ID, "error", err)
		return
	}
	q.mu.Lock()
	l.anyLocked(q.now())
	q.tickLocked(l)
	q.mu.Unlock()
	q.poke()
}

func (d Deployment) sameAddress(o Deployment) bool { return d.URL == o.URL }

// fallBackLocked looks for another process of a deployment whose app is gone.
func (q *Queue) fallBackLocked(l *lane) {
	if len(l.before) > 0 && l.fallsBack() {
		q.spawnLocked(func() { q.fallBack(l) })
	}
}

// fallBack registers the newest of the earlier addresses at which an app answers.
func (q *Queue) fallBack(l *lane) {
	for q.ctx.Err() == nil {
		q.mu.Lock()
		n, pusher := len(l.before), q.pusher
		if n == 0 || pusher == nil || !l.fallsBack() {
			q.mu.Unlock()
			return
		}
		d := l.before[n-1]
		l.before = l.before[:n-1]
		q.mu.Unlock()
		ctx, cancel := context.WithTimeout(q.ctx, dialPatience)
		err := pusher.Check(ctx, d)
		cancel()
		if err != nil {
			continue
		}
		q.mu.Lock()
		late := !l.fallsBack() // a process has registered meanwhile
		if late {
			l.before = append(l.before, d)
		}
		q.mu.Unlock()
		if late {
			return
		}
		if _, err := q.Register(q.ctx, d); err != nil {
			q.log.Warn("cannot return to an earlier address of an app", "deployment", d.ID, "url", d.URL, "error", err)
		}
		return
	}
}

// fallsBack reports whether a deployment has no app at its address.
func (l *lane) fallsBack() bool { return l.held || l.dep.URL == "" }

// Working is called by the app's newest process with the receipts of the messages that it
// still works on. All other leases of the deployment become void, because the app must
// have answered their pushes while no daemon was running; leases of running pushes stay
// valid. An app that keeps track of its messages calls Working when it registers again.
// Working does nothing if another process has registered since. Errors: not_found.
func (q *Queue) Working(ctx context.Context, project, id, secret string, receipts []string) error {
	v := &Void{Project: project, Deployment: id}
	for _, r := range receipts {
		if m := leased(r); m != "" {
			v.Except = append(v.Except, m)
		}
	}
	q.mu.Lock()
	l := q.laneLocked(project, id)
	known := l.dep.CreatedAt != 0
	current := l.dep.Secret == secret
	for id, f := range q.flights {
		if f.lane == l {
			v.Except = append(v.Except, id)
		}
	}
	q.mu.Unlock()
	switch {
	case !known:
		return noDeployment(id)
	case !current:
		return nil
	}
	if err := q.w.write(ctx, 0, func(b *Batch) { b.Void = append(b.Void, v) }); err != nil {
		return err
	}
	q.mu.Lock()
	l.anyLocked(q.now())
	q.tickLocked(l)
	q.mu.Unlock()
	q.poke()
	return nil
}

// answers reports whether an address accepts connections.
func answers(ctx context.Context, address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return false
	}
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return false
	}
	_ = c.Close() // nothing was sent
	return true
}

// Deregister says that the app of a deployment is about to end: messages then wait for
// the next process that registers. It does nothing if another process has registered
// since; secret "" deregisters any process. Errors: not_found.
func (q *Queue) Deregister(ctx context.Context, project, id, secret string) error {
	r := &Register{Do: RegisterLeave, Deployment: Deployment{Project: project, ID: id, Secret: secret}}
	return q.alter(ctx, r)
}

// alter changes the row of an existing deployment.
func (q *Queue) alter(ctx context.Context, r *Register) error {
	id, began := r.Deployment.ID, q.mark()
	if err := q.w.write(ctx, 0, func(b *Batch) { b.Register = append(b.Register, r) }); err != nil {
		return err
	}
	if r.Old == nil {
		return noDeployment(id)
	}
	q.mu.Lock()
	l := q.laneLocked(r.Deployment.Project, id)
	q.unsureLocked(l, began)
	if l.dep.URL == r.Deployment.URL && l.dep.Secret == r.Deployment.Secret {
		q.drainLocked(l, r.Deployment.Draining)
	} else {
		q.registeredLocked(l, r.Deployment, false)
	}
	q.mu.Unlock()
	q.poke()
	return nil
}

func noDeployment(id string) error {
	return cay.Errorf(cay.NotFound, "deployment %q not found", id)
}

// Drain sets whether new runs may be started with a deployment. Errors: not_found.
func (q *Queue) Drain(ctx context.Context, project, id string, draining bool) (Deployment, error) {
	r := &Register{Do: RegisterDrain, Deployment: Deployment{Project: project, ID: id, Draining: draining}}
	err := q.alter(ctx, r)
	return r.Deployment, err
}

// Deployments returns the deployments of a project, newest first; deployments with
// messages that never registered come last.
func (q *Queue) Deployments(ctx context.Context, project string) ([]Deployment, error) {
	return q.store.Deployments(ctx, project)
}

// Deployment returns one deployment. Errors: not_found.
func (q *Queue) Deployment(ctx context.Context, project, id string) (Deployment, error) {
	all, err := q.store.Deployments(ctx, project)
	if err != nil {
		return Deployment{}, err
	}
	for _, d := range all {
		if d.Project == project && d.ID == id {
			return d, nil
		}
	}
	return Deployment{}, noDeployment(id)
}

// Latest returns the deployment that new runs of a project are started with: the newest
// that has an app and is not draining; if none has an app, the newest that is not
// draining, else the newest. Errors: not_found.
func (q *Queue) Latest(ctx context.Context, project string) (Deployment, error) {
	all, err := q.store.Deployments(ctx, project)
	if err != nil {
		return Deployment{}, err
	}
	best := -1
	rank := func(d *Deployment) int {
		switch {
		case d.Draining:
			return 0
		case d.URL == "" || d.Error != "":
			return 1
		}
		return 2
	}
	for i := range all {
		if all[i].CreatedAt != 0 && (best < 0 || rank(&all[i]) > rank(&all[best])) {
			best = i
		}
	}
	if best < 0 {
		return Deployment{}, cay.Errorf(cay.NotFound, "no app has registered in project %q", project)
	}
	return all[best], nil
}

// sweep removes unused deployments and expired idempotency keys, once a day.
func (q *Queue) sweep() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-q.ctx.Done():
			return
		case <-timer.C:
		}
		now := q.now()
		removed, err := q.store.Sweep(q.ctx, now-keepDeployment.Milliseconds(), now)
		if err != nil && q.ctx.Err() == nil {
			q.log.Warn("cannot remove old deployments, will try again tomorrow", "error", err)
		}
		q.mu.Lock()
		for _, d := range removed {
			if l := q.lanes[laneKey{d.Project, d.ID}]; l != nil && len(l.items) == 0 && l.inFlight == 0 && !l.loading {
				q.forgetLocked(l)
			}
		}
		q.mu.Unlock()
		timer.Reset(sweepEvery)
	}
}

// follow applies the changes that other processes make.
func (q *Queue) follow(changes <-chan Change) {
	for {
		select {
		case <-q.ctx.Done():
			return
		case c, ok := <-changes:
			if !ok {
				return
			}
			q.change(c)
		}
	}
}

func (q *Queue) change(c Change) {
	if c.Deployment != "" && c.Due != 0 {
		q.mu.Lock()
		l := q.laneLocked(c.Project, c.Deployment)
		l.outsideLocked(c.Due, c.Urgent)
		q.tickLocked(l)
		q.mu.Unlock()
		q.poke()
		return
	}
	for n := 0; ; {
		again, err := q.reread(c)
		switch {
		case q.ctx.Err() != nil:
			return
		case err != nil:
			q.log.Warn("cannot read deployments that have changed, will try again", "error", err)
			if wait(q.ctx, doubled(firstProbe, n, lastProbe)) != nil {
				return
			}
			n++
		case !again:
			return
		}
	}
}

// reread copies the rows of changed deployments to their lanes. It reports whether lanes
// have changed since the read began, so that their rows have to be read again.
func (q *Queue) reread(c Change) (again bool, err error) {
	began := q.mark()
	all, err := q.store.Deployments(q.ctx, c.Project)
	if err != nil {
		return false, err
	}
	q.mu.Lock()
	for _, d := range all {
		if c.Deployment != "" && c.Deployment != d.ID {
			continue
		}
		l := q.laneLocked(d.Project, d.ID)
		switch {
		case l.changed > began:
			again = true
			continue
		case l.dep.URL != d.URL || l.dep.Secret != d.Secret || l.dep.SeenAt < d.SeenAt && l.held:
			q.registeredLocked(l, d, l.dep.URL == d.URL && l.dep.Secret != d.Secret)
		default:
			q.drainLocked(l, d.Draining)
		}
		l.anyLocked(q.now())
		q.tickLocked(l)
	}
	q.mu.Unlock()
	q.poke()
	return again, nil
}

// drainLocked sets whether a deployment is draining.
func (q *Queue) drainLocked(l *lane, draining bool) {
	if l.dep.Draining != draining {
		q.changes++
		l.changed, l.dep.Draining = q.changes, draining
	}
}

// Registered returns the row of a deployment after a Register, and whether the row has to
// be stored; old is nil if there is no row. Stores call it.
func Registered(do RegisterKind, old *Deployment, d Deployment) (row Deployment, put bool) {
	if old == nil {
		return d, do == RegisterApp
	}
	row = *old
	switch do {
	case RegisterApp:
		row.URL, row.Secret, row.SeenAt, row.Error = d.URL, d.Secret, d.SeenAt, ""
		if row.CreatedAt == 0 {
			row.CreatedAt = d.CreatedAt
		}
	case RegisterLeave:
		if d.Secret != "" && d.Secret != old.Secret {
			return row, false
		}
		row.URL, row.Error = "", ""
	case RegisterState:
		if d.URL != old.URL || d.Secret != old.Secret {
			return row, false
		}
		row.Error, row.SeenAt = d.Error, d.SeenAt
	case RegisterDrain:
		row.Draining = d.Draining
	}
	return row, true
}
