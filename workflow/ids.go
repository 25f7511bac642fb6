package workflow

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"time"
)

// Every op of a workflow's code has an id that depends on the code's calls, not on their
// time: a kind, the scope of the call, its name, and the number of the name's occurrence
// in the scope. step_charge.1 is the first step "charge" of the workflow's function,
// step_go.2/charge.1 the first in its second branch, wait_order.1/sleep.3 the third sleep
// of the first inline child "order". So code may be added anywhere without invalidating
// the logs of running runs, and removed code is detected.

// kind is the kind of op that an id names.
type kind uint8

const (
	kindStep kind = iota
	kindWait
	kindHook
	kindChild
	kindVersion
	kindAttr
	kindScope // a branch, inline child or compensation; no id begins with it
	kinds
)

var kindPrefix = [kinds]string{"step_", "wait_", "hook_", "child_", "version_", "attr_", ""}

// kindOf returns the kind of an id, false if it has none of ours.
func kindOf(id string) (kind, bool) {
	for k, prefix := range kindPrefix[:kindScope] {
		if len(id) > len(prefix) && id[:len(prefix)] == prefix {
			return kind(k), true
		}
	}
	return 0, false
}

// scope counts names within a function, a branch or an inline child.
type scope struct {
	path   string // "", or ends with a slash
	inline bool   // it belongs to an inline child, or to a part of one
	counts [kinds]map[string]int
	rand   *rand.Rand // source of Context.Rand; made on first use
	ids    *rand.Rand // source of Context.NewID
}

// next returns the id of the next occurrence of a name.
func (s *scope) next(k kind, name string) string {
	m := s.counts[k]
	if m == nil {
		m = make(map[string]int)
		s.counts[k] = m
	}
	n := m[name] + 1
	m[name] = n
	var buf [128]byte
	b := append(buf[:0], kindPrefix[k]...)
	b = append(b, s.path...)
	b = append(b, name...)
	b = append(b, '.')
	return string(strconv.AppendInt(b, int64(n), 10))
}

// child returns the scope of the next occurrence of a name.
func (s *scope) child(name string) *scope {
	return &scope{path: s.next(kindScope, name) + "/", inline: s.inline}
}

// seed returns a source of random numbers, seeded by run and purpose.
func seed(run, purpose string) *rand.Rand {
	return rand.New(rand.NewChaCha8(sha256.Sum256([]byte(run + "\x00" + purpose))))
}

const runPrefix = "wrun_"

// newRunID returns the id of a run that is started at the given time: "wrun_" and a ULID.
func newRunID(at time.Time, entropy [10]byte) string { return runPrefix + ulid(at, entropy) }

// derivedRunID returns the id of a run that a call of another run starts. It is the same
// on replay, so that a repeated start does not make a second run.
func derivedRunID(run, call string, at time.Time) string {
	sum := sha256.Sum256([]byte(run + "\x00" + call))
	return newRunID(at, [10]byte(sum[:10]))
}

// crockford are the digits of ULIDs.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// ulid returns 48 bits of milliseconds and 80 of entropy, in 26 characters that
// sort by time. The package links the standard library only, so that programs get no
// dependency with it; the daemon uses github.com/oklog/ulid.
func ulid(at time.Time, entropy [10]byte) string {
	ms := uint64(at.UnixMilli()) & (1<<48 - 1)
	hi := ms<<16 | uint64(binary.BigEndian.Uint16(entropy[:2]))
	lo := binary.BigEndian.Uint64(entropy[2:])
	var b [26]byte
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = crockford[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return string(b[:])
}
