package workflow

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"time"
)

// Everything a workflow's code asks for has an id made of what the code says, not
// of when it says it: a kind, the scope it is in, its name, and which occurrence
// of that name in the scope it is. step_charge.1 is the first step "charge" of the
// function itself, step_go.2/charge.1 that of its second branch,
// wait_order.1/sleep.3 the third sleep of the first inline child "order". So code
// may be added anywhere without the log of running runs becoming wrong, and code
// that is removed is missed.

// kind is what an id is of.
type kind uint8

const (
	kindStep kind = iota
	kindWait
	kindHook
	kindChild
	kindVersion
	kindAttr
	kindScope // of a branch, inline child or compensation; no id begins with it
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

// scope is where names are counted: the function itself, a branch, an inline child.
type scope struct {
	path   string // "", or ends with a slash
	inline bool   // it is of a workflow inside another one, or of a part of that
	counts [kinds]map[string]int
	rand   *rand.Rand // of Context.Rand; made when it is asked for
	ids    *rand.Rand // of Context.NewID
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

// seed returns what a source of randomness of a run begins with.
func seed(run, purpose string) *rand.Rand {
	return rand.New(rand.NewChaCha8(sha256.Sum256([]byte(run + "\x00" + purpose))))
}

const runPrefix = "wrun_"

// newRunID returns the id of a run that is started at a time: "wrun_" and a ULID.
func newRunID(at time.Time, entropy [10]byte) string { return runPrefix + ulid(at, entropy) }

// derivedRunID returns the id of the run that a call of another one starts. It is
// the same on replay, so that what is started twice exists once.
func derivedRunID(run, call string, at time.Time) string {
	sum := sha256.Sum256([]byte(run + "\x00" + call))
	return newRunID(at, [10]byte(sum[:10]))
}

// crockford are the digits of ULIDs.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// ulid returns 48 bits of milliseconds and 80 of entropy, in 26 characters that
// sort by time.
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
