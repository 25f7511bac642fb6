package sqlstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

// A row of the journal is a sequence of entries: a kind, and the kind's fields.
const (
	entryRun    = 1 // a run, whole
	entryLog    = 2 // a run's id, the number of events, their length, the events
	entryChunks = 3 // a run's id, a stream, whether it is closed, index of the first, number, each chunk
	entryAsleep = 4 // a run's id
	entryAwake  = 5 // a run's id
)

// group is the row of the journal under construction.
type group struct {
	data []byte
	// logs holds the range in data of the events of each log.
	logs []span
	// said are the runs in data.
	said map[string]*history.Run
}

type span struct{ start, end int }

// encode makes the row for a group's records, without its blobs. State of a run that an
// unfolded row has recorded, so that t holds it, is not recorded again.
func (g *group) encode(t *tail, r *workflowd.Records) {
	if cap(g.data) > 4<<20 { // a large buffer is not kept
		g.data = nil
	}
	g.data, g.logs = g.data[:0], g.logs[:0]
	clear(g.said)
	for i := range r.Runs {
		g.run(t, &r.Runs[i])
	}
	b := g.data
	for i := range r.Logs {
		l := &r.Logs[i]
		g.data = b
		g.run(t, l.Run)
		b = append(g.data, entryLog)
		b = appendText(b, l.Run.ID)
		b = binary.AppendUvarint(b, uint64(len(l.Events)))
		b = append(b, 0, 0, 0, 0)
		start := len(b)
		b = history.AppendEvents(b, l.Events)
		binary.LittleEndian.PutUint32(b[start-4:], uint32(len(b)-start))
		g.logs = append(g.logs, span{start, len(b)})
	}
	for i := range r.Chunks {
		c := &r.Chunks[i]
		b = append(b, entryChunks)
		b = appendText(b, c.Run)
		b = appendText(b, c.Stream)
		closed, first := byte(0), int64(0)
		if c.Close {
			closed = 1
		}
		if len(c.Chunks) > 0 {
			first = c.Chunks[0].Index
		}
		b = append(b, closed)
		b = binary.AppendUvarint(b, uint64(first))
		b = binary.AppendUvarint(b, uint64(len(c.Chunks)))
		b = appendChunks(b, c.Chunks)
	}
	for _, id := range r.Asleep {
		b = appendText(append(b, entryAsleep), id)
	}
	for _, id := range r.Awake {
		b = appendText(append(b, entryAwake), id)
	}
	g.data = b
}

// run adds a run, unless t or the row has the same state already.
func (g *group) run(t *tail, r *history.Run) {
	known := g.said[r.ID]
	if tr := t.runs[r.ID]; known == nil && tr != nil {
		known = &tr.run
	}
	if known != nil && sameButProgress(known, r) {
		return
	}
	g.data = history.AppendRun(append(g.data, entryRun), r)
	g.said[r.ID] = r
}

// sameButProgress reports whether two states of a run differ only in the number of events
// and the time of the update, which follow from the events.
func sameButProgress(a, b *history.Run) bool {
	return a.Status == b.Status && a.StartedAt == b.StartedAt && a.CompletedAt == b.CompletedAt &&
		a.ExpiresAt == b.ExpiresAt && a.Recoveries == b.Recoveries && a.CancelRequested == b.CancelRequested &&
		a.CancelReason == b.CancelReason && a.ErrorCode == b.ErrorCode && a.Next == b.Next && a.Build == b.Build &&
		a.Priority == b.Priority && a.NotBefore == b.NotBefore && a.Group == b.Group && a.Key == b.Key &&
		a.ID == b.ID && a.Project == b.Project && a.Workflow == b.Workflow && a.Parent == b.Parent &&
		a.Root == b.Root && a.Previous == b.Previous && a.First == b.First && a.CreatedAt == b.CreatedAt &&
		maps.Equal(a.Attributes, b.Attributes) && a.Kind == b.Kind && bytes.Equal(a.Extra, b.Extra)
}

var errJournal = errors.New("a row of the journal is damaged")

// replayRecords applies a row of the journal to t.
func replayRecords(b []byte, t *tail) error {
	for len(b) > 0 {
		kind := b[0]
		b = b[1:]
		var ok bool
		var id string
		if kind == entryRun {
			var r history.Run
			rest, err := history.DecodeRun(b, &r)
			if err != nil {
				return err
			}
			b = rest
			t.putRun(&r)
			continue
		}
		if id, b, ok = takeText(b); !ok {
			return errJournal
		}
		switch kind {
		case entryLog:
			n, w := binary.Uvarint(b)
			if w <= 0 || len(b) < w+4 {
				return errJournal
			}
			size := int(binary.LittleEndian.Uint32(b[w:]))
			if b = b[w+4:]; size > len(b) {
				return errJournal
			}
			events, err := history.DecodeEvents(b[:size], nil)
			if err != nil {
				return err
			}
			tr := t.runs[id]
			if tr == nil || uint64(len(events)) != n || n == 0 {
				return errJournal
			}
			last := events[n-1]
			r := tr.run
			r.Events, r.UpdatedAt = last.Slot, max(r.UpdatedAt, last.At)
			t.putRun(&r)
			t.putEvents(tr, events, b[:size])
			b = b[size:]
		case entryChunks:
			c := workflowd.StreamChunks{Run: id}
			if c.Stream, b, ok = takeText(b); !ok || len(b) < 1 {
				return errJournal
			}
			c.Close = b[0] != 0
			first, w := binary.Uvarint(b[1:])
			if w <= 0 {
				return errJournal
			}
			b = b[1+w:]
			n, w := binary.Uvarint(b)
			if w <= 0 {
				return errJournal
			}
			var err error
			if c.Chunks, b, err = takeChunks(b[w:], int64(first), n, nil); err != nil {
				return err
			}
			t.putChunks(&c)
		case entryAsleep:
			t.putAsleep(id, true)
		case entryAwake:
			t.putAsleep(id, false)
		default:
			return errJournal
		}
	}
	return nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func takeText(b []byte) (string, []byte, bool) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) {
		return "", nil, false
	}
	return string(b[w : w+int(n)]), b[w+int(n):], true
}

// appendChunks appends the data of chunks, each behind its length.
func appendChunks(b []byte, chunks []history.Chunk) []byte {
	for i := range chunks {
		b = binary.AppendUvarint(b, uint64(len(chunks[i].Data)))
		b = append(b, chunks[i].Data...)
	}
	return b
}

// takeChunks appends n chunks read from the start of b to chunks.
func takeChunks(b []byte, first int64, n uint64, chunks []history.Chunk) ([]history.Chunk, []byte, error) {
	for i := range n {
		size, w := binary.Uvarint(b)
		if w <= 0 || size > uint64(len(b)-w) {
			return nil, nil, errJournal
		}
		chunks = append(chunks, history.Chunk{Index: first + int64(i), Data: b[w : w+int(size) : w+int(size)]})
		b = b[w+int(size):]
	}
	return chunks, b, nil
}
