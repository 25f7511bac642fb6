package network

import (
	"fmt"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/cayhq/cay/sandbox"
)

const (
	recordsPerSecond = 100 // of one link
	recordsBurst     = 1000
	summaryAfter     = time.Second // the first record that is left out is told of

	// repeatWithin is the time in which the same denial is recorded once: a datagram or a
	// DNS query is repeated many times where a connection would be refused once.
	repeatWithin = 5 * time.Second
	maxRepeats   = 256
)

// recorder passes on a link's flow records, numbered from 1, in order, and at most
// recordsPerSecond: if a guest opens flows without end, a summary replaces the records
// that are left out.
type recorder struct {
	mu      sync.Mutex // guards what follows, and is held while to is called
	to      func(sandbox.Flow)
	seq     int64
	pace    *rate.Limiter
	omitted int // records since the last summary that had no place
	denied  int // of them
	last    sandbox.Flow
	timer   *time.Timer // for the summary; nil if no summary is due
	closed  bool
	recent  *lru.Cache[string, time.Time] // denials that repeat
}

func newRecorder() (*recorder, error) {
	recent, err := lru.New[string, time.Time](maxRepeats)
	if err != nil {
		return nil, fmt.Errorf("make the memory of denials: %w", err)
	}
	return &recorder{pace: rate.NewLimiter(recordsPerSecond, recordsBurst), recent: recent}, nil
}

func (r *recorder) send(to func(sandbox.Flow)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
}

// add numbers a new record and passes it on. It returns the number, or 0 if the record
// was left out.
func (r *recorder) add(f sandbox.Flow) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.to == nil {
		return 0
	}
	if !r.pace.Allow() {
		r.omitted++
		if f.Verdict == sandbox.Denied {
			r.denied++
		}
		r.last = f
		if r.timer == nil {
			r.timer = time.AfterFunc(summaryAfter, r.summarize)
		}
		return 0
	}
	return r.addLocked(f)
}

func (r *recorder) addLocked(f sandbox.Flow) int64 {
	r.seq++
	f.Seq = r.seq
	r.to(f)
	return f.Seq
}

// again passes on another record in place of the record with f's number.
func (r *recorder) again(f sandbox.Flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed && r.to != nil {
		r.to(f)
	}
}

// repeated reports whether it was called with the same key in the last repeatWithin.
func (r *recorder) repeated(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if t, ok := r.recent.Get(key); ok && now.Sub(t) < repeatWithin {
		return true
	}
	r.recent.Add(key, now)
	return false
}

func (r *recorder) summarize() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.summarizeLocked()
}

func (r *recorder) summarizeLocked() {
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	if r.omitted == 0 || r.closed || r.to == nil {
		return
	}
	f := sandbox.Flow{
		Time: time.Now(), Protocol: r.last.Protocol, Verdict: sandbox.Allowed, Rule: "limit records",
		Reason: fmt.Sprintf("%d more flows are not listed, %d of them denied: the log takes %d a second",
			r.omitted, r.denied, recordsPerSecond),
	}
	if r.denied > 0 {
		f.Verdict = sandbox.Denied
	}
	r.omitted, r.denied = 0, 0
	r.addLocked(f)
}

// close passes on a pending summary, and no record after it.
func (r *recorder) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.summarizeLocked()
	r.closed = true
}
