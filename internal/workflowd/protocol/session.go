package protocol

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/wire"
)

// A worker's session is a connection upgraded to wire.UpgradeStream, on which both sides
// send messages: a length, 4 bytes big endian, a kind, and the fields of the kind. The
// worker begins with Hello; the daemon answers with Welcome, or with Refused and closes.
//
//	worker                          daemon
//	Hello, Append, Start, Write,    Welcome or Refused,
//	Release, Close, Ping            Assign, Deliver, Revoke, Done, Closed, Ping
//
// Every Append, Start and Write has a number. The daemon answers with one Done of that
// number, after the Deliver of the committed events. A session ends with its connection:
// the daemon then gives the session's runs to other workers, and a request without a Done
// may or may not have been committed.

// SessionVersion is the version of the session's protocol. The daemon refuses other
// versions.
const SessionVersion = 1

const (
	// MaxMessage bounds a message, in bytes.
	MaxMessage = 256 << 20
	// Beat is how often an idle side sends Ping, and Silence how long a side waits for a
	// message before it counts the other side as lost.
	Beat    = 15 * time.Second
	Silence = 45 * time.Second
)

// Kind is the kind of a message.
type Kind byte

// The kinds of messages, each with the fields of Message that it sends.
const (
	KindHello   Kind = 1 // Body: Hello
	KindAppend  Kind = 2 // Seq, Run, Lease, Events
	KindStart   Kind = 3 // Seq, Run, Lease, Events: child_started; Body: Child
	KindRelease Kind = 4 // Run, Lease, Slot
	KindClose   Kind = 5 // returns all runs; answered by Closed when all appends are decided
	KindWrite   Kind = 6 // Seq, Run, Lease, Stream, Chunks, End: writes to a stream of the run

	KindWelcome Kind = 16
	KindRefused Kind = 17 // Body: wire.Error
	KindAssign  Kind = 18 // Lease, Recovered, More, Info, Events. With More, the rest of the log follows
	KindDeliver Kind = 19 // Run, Lease, Events
	KindRevoke  Kind = 20 // Run, Lease
	KindDone    Kind = 21 // Seq; Body: wire.Error, or empty on success
	KindClosed  Kind = 22

	KindPing Kind = 32
)

// Message is one message. Kind determines which fields are sent.
type Message struct {
	Kind            Kind
	Seq             uint64
	Run             string
	Lease           uint64
	Slot            int64
	Recovered, More bool
	Info            *history.Run
	Body            []byte // JSON
	Events          []history.Event
	Stream          string
	Chunks          [][]byte
	End             bool // end of the stream
}

// Hello is a worker's description of itself.
type Hello struct {
	Version     int          `json:"version"`
	Name        string       `json:"name,omitempty"`
	Build       string       `json:"build,omitempty"`
	Accept      []string     `json:"accept,omitempty"` // other builds whose runs the worker accepts
	Definitions []Definition `json:"definitions"`
	MaxRuns     int          `json:"max_runs,omitempty"`
	Survived    []string     `json:"survived,omitempty"` // runs that the worker had when it lost its last session
}

// Definition is a workflow that a worker has, with the limits of its definition.
type Definition struct {
	Name               string `json:"name"`
	MaxRunning         int    `json:"max_running,omitempty"`
	MaxRunningPerGroup int    `json:"max_running_per_group,omitempty"`
	Rate               int    `json:"rate,omitempty"`
	RatePerGroup       int    `json:"rate_per_group,omitempty"`
	RatePeriodMS       int64  `json:"rate_period_ms,omitempty"`
	RetentionMS        int64  `json:"retention_ms,omitempty"`
	Priority           int    `json:"priority,omitempty"`
	MaxEvents          int    `json:"max_events,omitempty"`
}

// Child is the run that a KindStart starts.
type Child struct {
	Start
	Parent     string `json:"parent,omitempty"`
	Root       string `json:"root,omitempty"`
	Previous   string `json:"previous,omitempty"`
	ParentCall string `json:"parent_call,omitempty"`
	// Hooks are the hooks that the new run inherits if it continues the starting run.
	Hooks []CarriedHook `json:"hooks,omitempty"`
}

const (
	flagRecovered = 1 << iota
	flagMore
	flagEnd
)

// AppendMessage appends the encoding of m. Errors: too_large.
func AppendMessage(b []byte, m *Message) ([]byte, error) {
	start := len(b)
	b = append(b, 0, 0, 0, 0, byte(m.Kind))
	switch m.Kind {
	case KindHello, KindRefused:
		b = append(b, m.Body...)
	case KindAppend:
		b = binary.AppendUvarint(b, m.Seq)
		b = appendRun(b, m)
		b = history.AppendEvents(b, m.Events)
	case KindStart:
		b = binary.AppendUvarint(b, m.Seq)
		b = appendRun(b, m)
		b = appendString(b, string(m.Body))
		b = history.AppendEvents(b, m.Events)
	case KindRelease:
		b = appendRun(b, m)
		b = binary.AppendVarint(b, m.Slot)
	case KindWrite:
		b = binary.AppendUvarint(b, m.Seq)
		b = appendRun(b, m)
		b = appendString(b, m.Stream)
		var flags byte
		if m.End {
			flags |= flagEnd
		}
		b = append(b, flags)
		for _, c := range m.Chunks {
			b = append(binary.AppendUvarint(b, uint64(len(c))), c...)
		}
	case KindAssign:
		b = binary.AppendUvarint(b, m.Lease)
		var flags byte
		if m.Recovered {
			flags |= flagRecovered
		}
		if m.More {
			flags |= flagMore
		}
		b = append(b, flags)
		b = history.AppendRun(b, m.Info)
		b = history.AppendEvents(b, m.Events)
	case KindDeliver:
		b = appendRun(b, m)
		b = history.AppendEvents(b, m.Events)
	case KindRevoke:
		b = appendRun(b, m)
	case KindDone:
		b = binary.AppendUvarint(b, m.Seq)
		b = append(b, m.Body...)
	case KindClose, KindWelcome, KindClosed, KindPing:
	default:
		return b[:start], fmt.Errorf("a message of kind %d cannot be sent", m.Kind)
	}
	n := len(b) - start - 4
	if n > MaxMessage {
		return b[:start], cay.Errorf(cay.TooLarge, "%d bytes at one time are more than %d", n, MaxMessage)
	}
	binary.BigEndian.PutUint32(b[start:], uint32(n))
	return b, nil
}

func appendRun(b []byte, m *Message) []byte {
	return binary.AppendUvarint(appendString(b, m.Run), m.Lease)
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// ErrorBody returns the Body that carries err.
func ErrorBody(err *cay.Error) []byte {
	b, merr := json.Marshal(wire.FromError(err))
	if merr != nil {
		// Strings and a number can always be encoded.
		panic(merr)
	}
	return b
}

// Err returns the error in the Body of a KindDone or KindRefused; nil if there is none.
func (m *Message) Err() error {
	if len(m.Body) == 0 {
		return nil
	}
	var e wire.Error
	if err := json.Unmarshal(m.Body, &e); err != nil {
		return fmt.Errorf("decode an error: %w", err)
	}
	return e.Err()
}

// MessageReader reads messages.
type MessageReader struct{ r *bufio.Reader }

// NewMessageReader returns a MessageReader of r.
func NewMessageReader(r io.Reader) *MessageReader {
	return &MessageReader{bufio.NewReaderSize(r, 64<<10)}
}

var errMessage = errors.New("a message of the session cannot be read")

// Next reads a message. The message stays valid after the next call.
func (r *MessageReader) Next() (*Message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > MaxMessage {
		return nil, fmt.Errorf("%w: it has %d bytes", errMessage, n)
	}
	b, err := r.body(int(n))
	if err != nil {
		return nil, err
	}
	m, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMessage, err)
	}
	return m, nil
}

// body reads n bytes. It allocates at most twice the bytes that have arrived, so a false
// length cannot exhaust memory.
func (r *MessageReader) body(n int) ([]byte, error) {
	const trusted = 1 << 20
	if n <= trusted {
		b := make([]byte, n)
		_, err := io.ReadFull(r.r, b)
		return b, noEOF(err)
	}
	var buf bytes.Buffer
	buf.Grow(trusted)
	_, err := io.CopyN(&buf, r.r, int64(n))
	return buf.Bytes(), noEOF(err)
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// maxParts bounds the events or chunks of a message: small ones take far more memory than
// their encoding.
const maxParts = 1 << 20

var (
	errShort = errors.New("it is cut short")
	errParts = fmt.Errorf("it has more than %d events or chunks", maxParts)
)

// decodeEvents decodes all of b. It counts the events first, to bound them and to
// allocate once.
func decodeEvents(b []byte) ([]history.Event, error) {
	n := 0
	for rest := b; len(rest) > 0; n++ {
		size, w := binary.Uvarint(rest)
		if w <= 0 || size > uint64(len(rest)-w) {
			return nil, errShort
		}
		if n == maxParts {
			return nil, errParts
		}
		rest = rest[w+int(size):]
	}
	if n == 0 {
		return nil, nil
	}
	return history.DecodeEvents(b, make([]history.Event, 0, n))
}

func parse(b []byte) (*Message, error) {
	m := &Message{Kind: Kind(b[0])}
	d := decoder{b: b[1:]}
	var err error
	switch m.Kind {
	case KindHello, KindRefused:
		m.Body = d.b
	case KindAppend:
		m.Seq = d.uvarint()
		d.run(m)
		m.Events, err = decodeEvents(d.b)
	case KindStart:
		m.Seq = d.uvarint()
		d.run(m)
		m.Body = d.bytes()
		m.Events, err = decodeEvents(d.b)
	case KindRelease:
		d.run(m)
		m.Slot = d.varint()
	case KindWrite:
		m.Seq = d.uvarint()
		d.run(m)
		m.Stream = string(d.bytes())
		if len(d.b) == 0 {
			return nil, errShort
		}
		m.End = d.b[0]&flagEnd != 0
		for d.b = d.b[1:]; len(d.b) > 0; {
			if len(m.Chunks) == maxParts {
				return nil, errParts
			}
			m.Chunks = append(m.Chunks, d.bytes())
		}
	case KindAssign:
		m.Lease = d.uvarint()
		if len(d.b) == 0 {
			return nil, errShort
		}
		m.Recovered, m.More = d.b[0]&flagRecovered != 0, d.b[0]&flagMore != 0
		m.Info = new(history.Run)
		if d.b, err = history.DecodeRun(d.b[1:], m.Info); err == nil {
			m.Run = m.Info.ID
			m.Events, err = decodeEvents(d.b)
		}
	case KindDeliver:
		d.run(m)
		m.Events, err = decodeEvents(d.b)
	case KindRevoke:
		d.run(m)
	case KindDone:
		m.Seq = d.uvarint()
		m.Body = d.b
	case KindClose, KindWelcome, KindClosed, KindPing:
	default:
		return nil, fmt.Errorf("there is no kind %d", m.Kind)
	}
	if d.short {
		return nil, errShort
	}
	return m, err
}

// decoder reads fields from b; short is set after the first missing field.
type decoder struct {
	b     []byte
	short bool
}

func (d *decoder) run(m *Message) {
	m.Run = string(d.bytes())
	m.Lease = d.uvarint()
}

func (d *decoder) uvarint() uint64 {
	v, w := binary.Uvarint(d.b)
	return take(d, v, w)
}

func (d *decoder) varint() int64 {
	v, w := binary.Varint(d.b)
	return take(d, v, w)
}

func take[T any](d *decoder, v T, width int) T {
	if width <= 0 {
		d.short, d.b = true, nil
		var zero T
		return zero
	}
	d.b = d.b[width:]
	return v
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.short, d.b = true, nil
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}
