package history

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// The stored form of events and runs. A record is a length, the version of the form, and
// the nonzero fields behind a bit mask that names them; numbers are varints. Encoded
// events may be concatenated, even when different releases wrote them, so a segment of a
// log is the concatenation of the commits' bytes.
//
// To add a field, append a new bit to the mask; nothing else moves. A reader refuses a
// mask with an unknown bit: a later release wrote the data, and an unknown field cannot
// be skipped.

const (
	eventVersion = 1
	runVersion   = 1
)

var (
	errShort = errors.New("it is cut short")
	errLater = errors.New("it was written by a later release")
)

// Bits of an event's mask. Slot, Type and At are always present.
const (
	hasID = 1 << iota
	hasName
	hasPayload
	hasInput
	hasAttempt
	hasStartedAt
	hasUntil
	hasToken
	hasKey
	hasCode
	hasReason
	hasAttributes
	isWebhook
	hasExtra

	knownOfEvent = 1<<iota - 1
)

// AppendEvent appends the stored form of e to b.
func AppendEvent(b []byte, e *Event) []byte {
	// Room for a length of one byte is enough for most events; it is made wider
	// when the length is known.
	start := len(b)
	b = append(b, 0, eventVersion, byte(e.Type))
	mask := uint64(0)
	set := func(bit uint64, is bool) {
		if is {
			mask |= bit
		}
	}
	set(hasID, e.ID != "")
	set(hasName, e.Name != "")
	set(hasPayload, e.Payload != nil)
	set(hasInput, e.Input != nil)
	set(hasAttempt, e.Attempt != 0)
	set(hasStartedAt, e.StartedAt != 0)
	set(hasUntil, e.Until != 0)
	set(hasToken, e.Token != "")
	set(hasKey, e.Key != "")
	set(hasCode, e.Code != "")
	set(hasReason, e.Reason != "")
	set(hasAttributes, e.Attributes != nil)
	set(isWebhook, e.Webhook)
	set(hasExtra, e.Extra != nil)

	b = binary.AppendUvarint(b, mask)
	b = binary.AppendVarint(b, e.Slot)
	b = binary.AppendVarint(b, e.At)
	if mask&hasID != 0 {
		b = appendString(b, e.ID)
	}
	if mask&hasName != 0 {
		b = appendString(b, e.Name)
	}
	if mask&hasPayload != 0 {
		b = appendBytes(b, e.Payload)
	}
	if mask&hasInput != 0 {
		b = appendBytes(b, e.Input)
	}
	if mask&hasAttempt != 0 {
		b = binary.AppendVarint(b, int64(e.Attempt))
	}
	// Times lie close to At.
	if mask&hasStartedAt != 0 {
		b = binary.AppendVarint(b, e.StartedAt-e.At)
	}
	if mask&hasUntil != 0 {
		b = binary.AppendVarint(b, e.Until-e.At)
	}
	if mask&hasToken != 0 {
		b = appendString(b, e.Token)
	}
	if mask&hasKey != 0 {
		b = appendString(b, e.Key)
	}
	if mask&hasCode != 0 {
		b = appendString(b, e.Code)
	}
	if mask&hasReason != 0 {
		b = appendString(b, e.Reason)
	}
	if mask&hasAttributes != 0 {
		b = appendMap(b, e.Attributes)
	}
	if mask&hasExtra != 0 {
		b = appendBytes(b, e.Extra)
	}
	return putLength(b, start)
}

// AppendEvents appends the stored form of events to b.
func AppendEvents(b []byte, events []Event) []byte {
	for i := range events {
		b = AppendEvent(b, &events[i])
	}
	return b
}

// DecodeEvent reads an event from the start of b and returns the rest of b. Payload,
// Input and Extra are subslices of b.
func DecodeEvent(b []byte, e *Event) (rest []byte, err error) {
	body, rest, err := takeLength(b)
	if err != nil {
		return nil, fmt.Errorf("decode event: %w", err)
	}
	d := decoder{b: body}
	if v := d.byte(); v != eventVersion && d.err == nil {
		return nil, fmt.Errorf("decode event: %w", errLater)
	}
	*e = Event{Type: Type(d.byte())}
	mask := d.uvarint()
	if mask&^uint64(knownOfEvent) != 0 {
		return nil, fmt.Errorf("decode event: %w", errLater)
	}
	e.Slot = d.varint()
	e.At = d.varint()
	if mask&hasID != 0 {
		e.ID = d.string()
	}
	if mask&hasName != 0 {
		e.Name = d.string()
	}
	if mask&hasPayload != 0 {
		e.Payload = d.bytes()
	}
	if mask&hasInput != 0 {
		e.Input = d.bytes()
	}
	if mask&hasAttempt != 0 {
		e.Attempt = d.int()
	}
	if mask&hasStartedAt != 0 {
		e.StartedAt = e.At + d.varint()
	}
	if mask&hasUntil != 0 {
		e.Until = e.At + d.varint()
	}
	if mask&hasToken != 0 {
		e.Token = d.string()
	}
	if mask&hasKey != 0 {
		e.Key = d.string()
	}
	if mask&hasCode != 0 {
		e.Code = d.string()
	}
	if mask&hasReason != 0 {
		e.Reason = d.string()
	}
	if mask&hasAttributes != 0 {
		e.Attributes = d.stringMap()
	}
	e.Webhook = mask&isWebhook != 0
	if mask&hasExtra != 0 {
		e.Extra = d.bytes()
	}
	if err := d.end(); err != nil {
		return nil, fmt.Errorf("decode event: %w", err)
	}
	return rest, nil
}

// DecodeEvents appends the events in b to events. Their payloads are subslices of b.
func DecodeEvents(b []byte, events []Event) ([]Event, error) {
	for len(b) > 0 {
		events = append(events, Event{})
		rest, err := DecodeEvent(b, &events[len(events)-1])
		if err != nil {
			return events[:len(events)-1], err
		}
		b = rest
	}
	return events, nil
}

// Bits of a run's mask.
const (
	runHasProject = 1 << iota
	runHasBuild
	runHasKey
	runHasGroup
	runHasPriority
	runHasParent
	runHasRoot
	runHasPrevious
	runHasNext
	runHasAttributes
	runHasNotBefore
	runHasStartedAt
	runHasCompletedAt
	runHasExpiresAt
	runCancelRequested
	runHasCancelReason
	runHasErrorCode
	runHasRecoveries
	runHasFirst
	runHasKind
	runHasExtra

	knownOfRun = 1<<iota - 1
)

// AppendRun appends the stored form of r to b.
func AppendRun(b []byte, r *Run) []byte {
	start := len(b)
	b = append(b, 0, runVersion)
	mask := uint64(0)
	str := func(bit uint64, s string) {
		if s != "" {
			mask |= bit
		}
	}
	num := func(bit uint64, n int64) {
		if n != 0 {
			mask |= bit
		}
	}
	str(runHasProject, r.Project)
	str(runHasBuild, r.Build)
	str(runHasKey, r.Key)
	str(runHasGroup, r.Group)
	num(runHasPriority, int64(r.Priority))
	str(runHasParent, r.Parent)
	str(runHasRoot, r.Root)
	str(runHasPrevious, r.Previous)
	str(runHasNext, r.Next)
	num(runHasAttributes, int64(len(r.Attributes)))
	num(runHasNotBefore, r.NotBefore)
	num(runHasStartedAt, r.StartedAt)
	num(runHasCompletedAt, r.CompletedAt)
	num(runHasExpiresAt, r.ExpiresAt)
	if r.CancelRequested {
		mask |= runCancelRequested
	}
	str(runHasCancelReason, r.CancelReason)
	str(runHasErrorCode, r.ErrorCode)
	num(runHasRecoveries, int64(r.Recoveries))
	str(runHasFirst, r.First)
	str(runHasKind, string(r.Kind))
	if r.Extra != nil {
		mask |= runHasExtra
	}

	b = binary.AppendUvarint(b, mask)
	b = appendString(b, r.ID)
	b = appendString(b, r.Workflow)
	b = appendString(b, string(r.Status))
	b = binary.AppendVarint(b, r.CreatedAt)
	b = binary.AppendVarint(b, r.UpdatedAt-r.CreatedAt)
	b = binary.AppendVarint(b, r.Events)
	for _, f := range [...]struct {
		bit uint64
		s   string
	}{
		{runHasProject, r.Project}, {runHasBuild, r.Build}, {runHasKey, r.Key}, {runHasGroup, r.Group},
		{runHasParent, r.Parent}, {runHasRoot, r.Root}, {runHasPrevious, r.Previous}, {runHasNext, r.Next},
		{runHasCancelReason, r.CancelReason}, {runHasErrorCode, r.ErrorCode},
	} {
		if mask&f.bit != 0 {
			b = appendString(b, f.s)
		}
	}
	for _, f := range [...]struct {
		bit uint64
		n   int64
	}{
		{runHasPriority, int64(r.Priority)}, {runHasNotBefore, r.NotBefore}, {runHasStartedAt, r.StartedAt},
		{runHasCompletedAt, r.CompletedAt}, {runHasExpiresAt, r.ExpiresAt}, {runHasRecoveries, int64(r.Recoveries)},
	} {
		if mask&f.bit != 0 {
			b = binary.AppendVarint(b, f.n)
		}
	}
	if mask&runHasAttributes != 0 {
		b = appendMap(b, r.Attributes)
	}
	if mask&runHasFirst != 0 {
		b = appendString(b, r.First)
	}
	if mask&runHasKind != 0 {
		b = appendString(b, string(r.Kind))
	}
	if mask&runHasExtra != 0 {
		b = appendBytes(b, r.Extra)
	}
	return putLength(b, start)
}

// DecodeRun reads a run from the start of b and returns the rest of b.
func DecodeRun(b []byte, r *Run) (rest []byte, err error) {
	body, rest, err := takeLength(b)
	if err != nil {
		return nil, fmt.Errorf("decode run: %w", err)
	}
	d := decoder{b: body}
	if v := d.byte(); v != runVersion && d.err == nil {
		return nil, fmt.Errorf("decode run: %w", errLater)
	}
	mask := d.uvarint()
	if mask&^uint64(knownOfRun) != 0 {
		return nil, fmt.Errorf("decode run: %w", errLater)
	}
	*r = Run{ID: d.string(), Workflow: d.string(), Status: d.status(), CreatedAt: d.varint()}
	r.UpdatedAt = r.CreatedAt + d.varint()
	r.Events = d.varint()
	for _, f := range [...]struct {
		bit uint64
		s   *string
	}{
		{runHasProject, &r.Project}, {runHasBuild, &r.Build}, {runHasKey, &r.Key}, {runHasGroup, &r.Group},
		{runHasParent, &r.Parent}, {runHasRoot, &r.Root}, {runHasPrevious, &r.Previous}, {runHasNext, &r.Next},
		{runHasCancelReason, &r.CancelReason}, {runHasErrorCode, &r.ErrorCode},
	} {
		if mask&f.bit != 0 {
			*f.s = d.string()
		}
	}
	if mask&runHasPriority != 0 {
		r.Priority = d.int()
	}
	for _, f := range [...]struct {
		bit uint64
		n   *int64
	}{
		{runHasNotBefore, &r.NotBefore}, {runHasStartedAt, &r.StartedAt},
		{runHasCompletedAt, &r.CompletedAt}, {runHasExpiresAt, &r.ExpiresAt},
	} {
		if mask&f.bit != 0 {
			*f.n = d.varint()
		}
	}
	if mask&runHasRecoveries != 0 {
		r.Recoveries = d.int()
	}
	if mask&runHasAttributes != 0 {
		r.Attributes = d.stringMap()
	}
	if mask&runHasFirst != 0 {
		r.First = d.string()
	}
	if mask&runHasKind != 0 {
		r.Kind = Kind(d.string())
	}
	if mask&runHasExtra != 0 {
		r.Extra = bytes.Clone(d.bytes()) // runs are kept for longer than b
	}
	r.CancelRequested = mask&runCancelRequested != 0
	if err := d.end(); err != nil {
		return nil, fmt.Errorf("decode run: %w", err)
	}
	return rest, nil
}

// putLength writes the length of the bytes after start into the byte reserved at start.
// It moves the bytes if the length needs more than one byte.
func putLength(b []byte, start int) []byte {
	n := len(b) - start - 1
	if n < 0x80 {
		b[start] = byte(n)
		return b
	}
	var length [binary.MaxVarintLen64]byte
	w := binary.PutUvarint(length[:], uint64(n))
	b = slices.Insert(b, start+1, length[1:w]...)
	b[start] = length[0]
	return b
}

func takeLength(b []byte) (body, rest []byte, err error) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) {
		return nil, nil, errShort
	}
	return b[w : w+int(n) : w+int(n)], b[w+int(n):], nil
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendBytes(b, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// appendMap appends m sorted by key, so that equal maps have equal bytes.
func appendMap(b []byte, m map[string]string) []byte {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b = binary.AppendUvarint(b, uint64(len(keys)))
	for _, k := range keys {
		b = appendString(appendString(b, k), m[k])
	}
	return b
}

// decoder reads fields from b. After the first missing field it returns zero values.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail() {
	d.err = errShort
	d.b = nil
}

func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		return errors.New("there is more than was announced")
	}
	return d.err
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) uvarint() uint64 {
	v, w := binary.Uvarint(d.b)
	if w <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[w:]
	return v
}

func (d *decoder) varint() int64 {
	v, w := binary.Varint(d.b)
	if w <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[w:]
	return v
}

func (d *decoder) int() int {
	v := d.varint()
	if int64(int(v)) != v {
		d.fail()
		return 0
	}
	return int(v)
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) || d.err != nil {
		d.fail()
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) string() string { return string(d.bytes()) }

// status returns a constant for a known status, which costs no allocation.
func (d *decoder) status() Status {
	b := d.bytes()
	for _, s := range [...]Status{Running, Pending, Completed, Failed, Cancelled} {
		if string(b) == string(s) {
			return s
		}
	}
	return Status(b)
}

func (d *decoder) stringMap() map[string]string {
	n := d.uvarint()
	if n > uint64(len(d.b)) { // each entry takes two bytes at least
		d.fail()
		return nil
	}
	m := make(map[string]string, n)
	for range n {
		k := d.string()
		m[k] = d.string()
	}
	return m
}
