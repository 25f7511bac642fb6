package network

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/sandbox"
)

// Default limits of a sandbox.
const (
	DefaultConnections          = 2048 // open at the same time
	DefaultConnectionsPerSecond = 1000 // opened, after a burst of as many
)

// withDefaults sets the limits that the operator left open.
func withDefaults(l sandbox.NetworkLimits) sandbox.NetworkLimits {
	if l.Connections == 0 {
		l.Connections = DefaultConnections
	}
	if l.ConnectionsPerSecond == 0 {
		l.ConnectionsPerSecond = DefaultConnectionsPerSecond
	}
	return l
}

// lower returns the limits in asked, and highest where asked has none.
func lower(highest, asked sandbox.NetworkLimits) sandbox.NetworkLimits {
	l := withDefaults(highest)
	if asked.Connections > 0 {
		l.Connections = asked.Connections
	}
	if asked.ConnectionsPerSecond > 0 {
		l.ConnectionsPerSecond = asked.ConnectionsPerSecond
	}
	if asked.BytesPerSecond > 0 {
		l.BytesPerSecond = asked.BytesPerSecond
	}
	if asked.TotalBytes > 0 {
		l.TotalBytes = asked.TotalBytes
	}
	return l
}

// errTotal is returned when the sandbox has used up its limit of total bytes.
var errTotal = errors.New("the sandbox has used up its limit of total bytes")

// meter counts and slows down a sandbox's payload. Its limits can change while
// it is in use.
type meter struct {
	ingress, egress direction

	total atomic.Int64 // bytes that may ever pass; 0 for no bound
	used  atomic.Int64 // bytes that have passed or are about to, of earlier links too
	spent atomic.Bool  // some were refused for it
}

// direction is payload to the guest, or from it.
type direction struct {
	bytes atomic.Int64 // that have passed, of earlier links too
	base  atomic.Int64 // bytes of earlier links
	pace  *rate.Limiter
}

func newMeter() *meter {
	m := &meter{}
	for _, d := range []*direction{&m.ingress, &m.egress} {
		d.pace = rate.NewLimiter(rate.Inf, 0)
	}
	return m
}

// set changes the limits, in bytes; 0 means none.
func (m *meter) set(perSecond, total int64) {
	m.total.Store(total)
	m.spent.Store(false)
	for _, d := range []*direction{&m.ingress, &m.egress} {
		if perSecond <= 0 {
			d.pace.SetLimit(rate.Inf)
			continue
		}
		// A burst of 100 ms makes up for moments without a CPU, and keeps the rate
		// measured over seconds close to the limit.
		d.pace.SetBurst(int(min(max(perSecond/10, 1024), 64<<20)))
		d.pace.SetLimit(rate.Limit(perSecond))
	}
}

// chunk returns how many of n bytes should be taken at once, so that a low rate is an
// even rate.
func (d *direction) chunk(n int) int {
	if d.pace.Limit() == rate.Inf {
		return n
	}
	return max(1, min(n, d.pace.Burst()))
}

// setBase sets the bytes that earlier links have relayed in direction d.
func (m *meter) setBase(d *direction, bytes int64) {
	more := bytes - d.base.Swap(bytes)
	d.bytes.Add(more)
	m.used.Add(more)
}

// pass waits until n bytes may pass in direction d, and counts them. Errors: errTotal, or
// the cause of ctx's end.
func (m *meter) pass(ctx context.Context, d *direction, n int) error {
	used := m.used.Add(int64(n))
	if total := m.total.Load(); total > 0 && used > total {
		m.used.Add(-int64(n))
		m.spent.Store(true)
		return errTotal
	}
	for left := n; left > 0; {
		k := d.chunk(left)
		if err := d.pace.WaitN(ctx, k); err != nil {
			if ctx.Err() != nil {
				m.used.Add(-int64(n))
				return context.Cause(ctx)
			}
			continue // the burst has become smaller than k
		}
		left -= k
	}
	d.bytes.Add(int64(n))
	return nil
}

// exhausted reports whether nothing more may pass.
func (m *meter) exhausted() bool {
	total := m.total.Load()
	return total > 0 && (m.spent.Load() || m.used.Load() >= total)
}

// limitDenied returns the decision about a flow that a limit keeps from opening.
func limitDenied(limit, format string, args ...any) policy.Decision {
	return policy.Decision{Rule: "limit " + limit, Reason: fmt.Sprintf(format, args...)}
}

// roomLocked decides about another flow by the limits alone. If it allows the flow, it
// has taken floor bytes for it.
func (l *Link) roomLocked(floor int64) policy.Decision {
	limits, open := *l.limits.Load(), len(l.flows)
	switch {
	case l.meter.exhausted():
		return l.totalDenied()
	case open >= limits.Connections:
		return limitDenied("connections", "%d connections of the sandbox are open, and that is its limit", open)
	case !l.rate.AllowN(time.Now(), 1):
		return limitDenied("connections_per_second", "the sandbox opens more than %d connections a second", limits.ConnectionsPerSecond)
	case !l.share.take(floor):
		return l.memoryDenied()
	}
	return inFavour
}

func (l *Link) memoryDenied() policy.Decision {
	if l.share.ownBound() {
		return limitDenied("memory", "the sandbox's connections hold the %d MiB that they may", l.egress.budget.each>>20)
	}
	return limitDenied("memory", "the sandbox's connections hold as much as is left of the %d MiB that those of all sandboxes may", l.egress.budget.size>>20)
}

func (l *Link) totalDenied() policy.Decision {
	return limitDenied("total_bytes", "the sandbox has transferred the %d bytes that it may", l.limits.Load().TotalBytes)
}
