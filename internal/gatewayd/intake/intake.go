package intake

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// step is the number of body bytes that must arrive within each Config.BodyTime.
const step = 1 << 20

// Config configures an Intake.
type Config struct {
	Ledger ledger.Ledger
	// MaxBody is the maximum size of a request in bytes.
	MaxBody int64
	// Bodies is the maximum total size in bytes of the bodies of all requests under way,
	// of which one caller may use half; RoomTime is how long a request waits for space.
	Bodies   int64
	RoomTime time.Duration
	// BodyTime is the timeout for each MiB of a body.
	BodyTime time.Duration
}

// Intake lets requests in.
type Intake struct {
	cfg  Config
	room *room
}

// New returns an Intake.
func New(cfg Config) *Intake { return &Intake{cfg, newRoom(cfg.Bodies, cfg.RoomTime)} }

// Place is what a request takes of an Intake from its arrival to its end: a slot of its
// key's concurrency, and space for its body. The zero Place takes nothing.
type Place struct {
	Arrival *ledger.Arrival // nil if the ledger has no such slots
	room    *room
	key     string
	taken   int64 // bytes taken from room
}

// arrive takes a slot of the key's concurrency, before the body is read. Leave releases
// the slot if the call was not admitted.
func (p *Place) arrive(l ledger.Ledger, caller *ledger.Caller) *hub.Error {
	arriving, ok := l.(interface {
		Arrive(*ledger.Caller) (*ledger.Arrival, error)
	})
	if !ok {
		return nil
	}
	var err error
	if p.Arrival, err = arriving.Arrive(caller); err != nil {
		return hub.AsError(err)
	}
	return nil
}

// Leave releases all that the place holds. A request that was answered from the cache
// does not count for the key's rates.
func (p *Place) Leave(cached bool) {
	if cached {
		p.Arrival.Forgive()
	}
	p.Arrival.Leave()
	if p.taken > 0 {
		p.room.give(p.key, p.taken)
		p.taken = 0
	}
}

// grow takes space for a body of n bytes from the room.
func (p *Place) grow(ctx context.Context, n int64) *hub.Error {
	n -= freeBody + p.taken
	if n <= 0 {
		return nil
	}
	if err := p.room.take(ctx, p.key, n); err != nil {
		return err
	}
	p.taken += n
	return nil
}

// Receive reads the whole body of a request into a Place, which Leave must release,
// whatever the outcome. Memory is allocated as data arrives, not by Content-Length, and
// only if the room has space. slot says that the request takes a slot of its key's
// concurrency.
func (in *Intake) Receive(r *http.Request, rc *http.ResponseController, caller *ledger.Caller, slot bool, p *Place) ([]byte, *hub.Error) {
	size, most := r.ContentLength, in.cfg.MaxBody // size may be -1
	if size > most {
		return nil, tooLargeBody(most)
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, &hub.Error{Kind: hub.BadRequest, Param: "content-encoding", Message: "the body is compressed, which the gateway does not read; send it as it is"}
	}
	p.room, p.key = in.room, caller.KeyID
	if slot {
		if err := p.arrive(in.cfg.Ledger, caller); err != nil {
			return nil, err
		}
	}
	b := receiver{ctx: r.Context(), from: r.Body, rc: rc, into: p, pace: in.cfg.BodyTime}
	body, err := b.read(size, most)
	_ = rc.SetReadDeadline(time.Time{})
	return body, err
}

// receiver reads a body.
type receiver struct {
	ctx  context.Context
	from io.Reader
	rc   *http.ResponseController
	into *Place
	pace time.Duration // for each step
}

// read reads a body of size bytes (-1: unknown), and at most most bytes.
func (r *receiver) read(size, most int64) ([]byte, *hub.Error) {
	want := int64(freeBody)
	if size >= 0 {
		want = min(size, step)
	}
	if bad := r.into.grow(r.ctx, want); bad != nil {
		return nil, bad
	}
	body := make([]byte, 0, want)
	due := 0 // where the next step begins
	var err error
	for err == nil {
		if len(body) >= due {
			// Without a deadline a disconnected client is noticed later.
			_ = r.rc.SetReadDeadline(time.Now().Add(r.pace))
			due = len(body) + step
		}
		if int64(len(body)) == size { // the server wants to see the end
			var more [1]byte
			n := 0
			if n, err = r.from.Read(more[:]); n > 0 {
				err = io.ErrUnexpectedEOF
			}
			continue
		}
		if len(body) == cap(body) {
			if int64(len(body)) > most {
				return nil, tooLargeBody(most)
			}
			limit := most + 1
			if size >= 0 {
				limit = size
			}
			want = min(limit, 2*int64(cap(body)))
			if bad := r.into.grow(r.ctx, want); bad != nil {
				return nil, bad
			}
			body = append(make([]byte, 0, want), body...)
		}
		var n int
		n, err = r.from.Read(body[len(body):min(cap(body), due)])
		body = body[:len(body)+n]
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &hub.Error{Kind: hub.Timeout, Code: "slow_request", Message: "the request's body did not come in time", Cause: hub.ErrLeft}
	case err != io.EOF:
		return nil, hub.Left()
	}
	return body, nil
}

func tooLargeBody(most int64) *hub.Error {
	return &hub.Error{Kind: hub.TooLarge, Code: "request_too_large", Message: "the request is larger than " + strconv.FormatInt(most, 10) + " bytes"}
}
