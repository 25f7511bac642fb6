package ledger

import (
	"math"
	"net/http"
	"strconv"
	"time"
)

// bucket is a token bucket: level is the amount that may be taken now, at most a minute's
// worth, and it fills evenly. x/time/rate does not fit, because the gateway corrects
// estimates later and tells clients how much is left.
type bucket struct {
	perMinute int64 // 0: no bound
	level     float64
	at        time.Time // time at which level was computed
}

// fill computes the level at now. A clock that goes back fills nothing.
func (b *bucket) fill(now time.Time, perMinute int64) {
	if b.perMinute == 0 && perMinute > 0 { // new, or newly bounded
		b.level = float64(perMinute)
	}
	if d := now.Sub(b.at); d > 0 && b.perMinute > 0 {
		b.level += d.Minutes() * float64(perMinute)
	}
	b.perMinute, b.at = perMinute, now
	b.level = min(b.level, float64(perMinute))
}

// wait returns how long until n can be taken, 0 if at once. A request for more than a
// minute's worth can be taken when the bucket is full.
func (b *bucket) wait(n int64) time.Duration {
	if b.perMinute == 0 {
		return 0
	}
	missing := min(float64(n), float64(b.perMinute)) - b.level
	// The rounding of the fill time can leave the level short by a tiny amount.
	if missing <= 1e-6 {
		return 0
	}
	return b.toFill(missing)
}

func (b *bucket) toFill(n float64) time.Duration {
	return time.Duration(math.Ceil(n / float64(b.perMinute) * float64(time.Minute)))
}

// take takes n, or gives it back if it is negative. The level may fall below 0.
func (b *bucket) take(n int64) {
	if b.perMinute > 0 {
		b.level = min(b.level-float64(n), float64(b.perMinute))
	}
}

// headers sets x-ratelimit-* like OpenAI; the names must be in http.Header's canonical
// form.
func (b *bucket) headers(head http.Header, limit, remaining, reset string) {
	if b.perMinute == 0 {
		return
	}
	v := []string{
		strconv.FormatInt(b.perMinute, 10),
		strconv.FormatInt(int64(max(0, b.level+1e-6)), 10),
		b.toFill(max(0, float64(b.perMinute)-b.level)).Round(time.Millisecond).String(),
	}
	head[limit], head[remaining], head[reset] = v[0:1:1], v[1:2:2], v[2:3:3]
}

// rates is the current use of a key's rates.
type rates struct {
	requests, tokens bucket
	running          int
}
