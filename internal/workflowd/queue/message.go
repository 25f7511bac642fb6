package queue

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"

	"github.com/cayhq/cay"
)

// Bounds of a message.
const (
	MaxBody  = 8 << 20              // bytes
	MaxDelay = 367 * 24 * time.Hour // a year and a day
	maxText  = 1024                 // bytes of each text field

	MaxPriority = 100
)

// KeyMemory is how long an idempotency key is remembered after its message was
// acknowledged. Once a day all but the newest MaxKeys of these keys are forgotten.
const (
	KeyMemory = 24 * time.Hour
	MaxKeys   = 200_000
)

// Message is one message. Times are Unix milliseconds.
type Message struct {
	// ID is "msg_" and a ULID; Publish assigns it.
	ID string
	// Project, Deployment and Topic address the message: it goes only to the app of that
	// deployment.
	Project, Deployment, Topic string
	// Run and Step name the subject of the message, for people and lists. "" if unknown.
	Run, Step string
	// Key is an idempotency key, "" for none. It is unique in project and topic while
	// the first message with it is pending, and for KeyMemory after.
	Key         string
	ContentType string
	Body        []byte // at most MaxBody
	CreatedAt   int64
	// Priority is the message's level among the due messages of its deployment: of those
	// that the app has no room for, the ones of the highest level are delivered first.
	Priority int
	// Due is the time of the next delivery. While the message is leased, it is the end of
	// the lease. Publish takes 0 for now, and at most MaxDelay ahead.
	Due int64
	// Attempt counts deliveries that reached the app, from 1; 0 before the first.
	Attempt int
	// Receipt names the last lease. LeaseUntil is 0 unless the message is leased now.
	Receipt    string
	LeaseUntil int64
	// LastError is why the message is not delivered, for people; "" if there is no error.
	LastError string
}

// check returns an error for a message that cannot be stored or delivered.
func (m *Message) check(now int64) error {
	for _, f := range []struct{ name, value string }{
		{"project", m.Project}, {"deployment", m.Deployment}, {"topic", m.Topic}, {"run", m.Run}, {"step", m.Step},
		{"idempotency key", m.Key}, {"content type", m.ContentType},
	} {
		if err := checkText(f.name, f.value); err != nil {
			return err
		}
	}
	switch {
	case m.Deployment == "":
		return cay.Errorf(cay.Invalid, "the message has no deployment: name the build that it is for")
	case m.Topic == "":
		return cay.Errorf(cay.Invalid, "the message has no topic")
	case len(m.Body) > MaxBody:
		return cay.Errorf(cay.TooLarge, "the message has %d bytes; at most %d are taken", len(m.Body), MaxBody)
	case m.Priority < 0 || m.Priority > MaxPriority:
		return cay.Errorf(cay.Invalid, "the priority of the message is %d; it goes from 0 to %d", m.Priority, MaxPriority)
	case m.Due > now+MaxDelay.Milliseconds():
		return cay.Errorf(cay.Invalid, "the message is due at %s, which is more than a year and a day ahead", time.UnixMilli(m.Due).UTC().Format(time.RFC3339))
	}
	return nil
}

func checkText(name, value string) error {
	switch {
	case len(value) > maxText:
		return cay.Errorf(cay.TooLarge, "the %s has %d bytes; at most %d are taken", name, len(value), maxText)
	case !utf8.ValidString(value) || strings.IndexByte(value, 0) >= 0:
		return cay.Errorf(cay.Invalid, "the %s %q is not UTF-8 without zero bytes", name, value)
	}
	return nil
}

const idPrefix = "msg_"

// idLength is the length of a message's id.
const idLength = len(idPrefix) + ulid.EncodedSize

// newID returns "msg_" and a ULID.
func newID(now int64) string { return idPrefix + ulid.MustNew(uint64(now), rand.Reader).String() }

// newReceipt returns a new receipt: the message's id and a random part that cannot be
// guessed.
func newReceipt(id string) string {
	var random [12]byte
	rand.Read(random[:])
	return id + "-" + hex.EncodeToString(random[:])
}

// leased returns the id of the message that a receipt is for; "" if the receipt is
// malformed.
func leased(receipt string) string {
	if len(receipt) <= idLength || receipt[idLength] != '-' || !strings.HasPrefix(receipt, idPrefix) {
		return ""
	}
	return receipt[:idLength]
}

// orphanLease is how long a lease lasts after the process that pushed the message is
// gone: a working app extends its lease every minute.
const orphanLease = 65 * time.Second

// Backoffs.
const (
	firstRetry  = time.Second
	lastRetry   = 900 * time.Second
	lastBroken  = 30 * time.Second // after connections that broke
	firstProbe  = 100 * time.Millisecond
	lastProbe   = 30 * time.Second
	jitterShare = 4 // plus or minus a fourth
)

// backoff is how long to wait after a failed delivery: about 2^(attempt-1) seconds, at
// most most. The jitter is derived from the message's id and the attempt.
func backoff(id string, attempt int, most time.Duration) time.Duration {
	d := most
	if shift := max(attempt-1, 0); shift < 20 {
		d = min(firstRetry<<shift, most)
	}
	h := fnv.New64a()
	h.Write([]byte(id))
	h.Write(binary.BigEndian.AppendUint32(nil, uint32(attempt)))
	part := d / jitterShare
	return min(d-part+time.Duration(h.Sum64()%uint64(2*part)), most)
}
