package workflowd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// blobPrefix begins a payload whose data is stored as a blob; the log has only the blob's
// name, see history.Event.Payload. Such payloads are internal to the engine.
const blobPrefix = "blob"

// shelve replaces payloads too large for the log with the names of blobs. Blobs are named
// after the hash of their data, so that equal payloads stay equal. events is left
// unchanged. Errors: too_large, invalid.
func (e *Engine) shelve(run string, events []history.Event) ([]history.Event, []Blob, error) {
	var blobs []Blob
	copied := false
	put := func(i int, payload []byte) ([]byte, error) {
		switch {
		case len(payload) > e.cfg.MaxPayload:
			return nil, cay.Errorf(cay.TooLarge, "a payload of %d bytes: at most %d are allowed", len(payload), e.cfg.MaxPayload)
		case isBlob(payload):
			return nil, cay.Errorf(cay.Invalid, "a payload cannot begin with %q", blobPrefix)
		case len(payload) <= e.cfg.InlinePayload:
			return payload, nil
		}
		if !copied {
			events, copied = append([]history.Event(nil), events...), true
		}
		sum := sha256.Sum256(payload)
		name := hex.EncodeToString(sum[:])
		blobs = append(blobs, Blob{Run: run, Name: name, Data: payload})
		return []byte(blobPrefix + name), nil
	}
	for i := range events {
		payload, err := put(i, events[i].Payload)
		if err != nil {
			return nil, nil, err
		}
		input, err := put(i, events[i].Input)
		if err != nil {
			return nil, nil, err
		}
		if copied {
			events[i].Payload, events[i].Input = payload, input
		}
	}
	return events, blobs, nil
}

func isBlob(payload []byte) bool {
	return len(payload) >= len(blobPrefix) && string(payload[:len(blobPrefix)]) == blobPrefix
}

// unshelve returns events with their payloads in place; read gets a blob by its name. The
// payloads are written into events.
func unshelve(events []history.Event, read func(name string) ([]byte, error)) error {
	for i := range events {
		for _, p := range []*[]byte{&events[i].Payload, &events[i].Input} {
			if !isBlob(*p) {
				continue
			}
			data, err := read(strings.TrimPrefix(string(*p), blobPrefix))
			if err != nil {
				return err
			}
			*p = data
		}
	}
	return nil
}

// unshelveFrom is unshelve with blobs from the store.
func (e *Engine) unshelveFrom(ctx context.Context, run string, events []history.Event) error {
	return unshelve(events, func(name string) ([]byte, error) {
		data, err := e.store.Blob(ctx, run, name)
		if cay.CodeOf(err) == cay.NotFound {
			return nil, cay.Errorf(cay.Internal, "a payload of run %s is missing", run)
		}
		return data, err
	})
}

// unshelveEvent is unshelveFrom for an event whose payloads, or whose run, may be deleted
// meanwhile.
func (e *Engine) unshelveEvent(ctx context.Context, run string, ev *history.Event) error {
	if !isBlob(ev.Payload) && !isBlob(ev.Input) {
		return nil
	}
	one := []history.Event{*ev}
	err := e.unshelveFrom(ctx, run, one)
	if err == nil {
		*ev = one[0]
		return nil
	}
	again, readErr := e.store.Events(ctx, run, ev.Slot, 1)
	switch {
	case readErr != nil:
		return readErr
	case len(again) == 0 || isBlob(again[0].Payload) || isBlob(again[0].Input):
		return err
	}
	*ev = again[0]
	return nil
}

// withBlobs returns events of r with the payloads that shelve replaced.
func (r *liveRun) withBlobs(events []history.Event) []history.Event {
	if r.blobs == nil {
		return events
	}
	whole := append([]history.Event(nil), events...)
	err := unshelve(whole, func(name string) ([]byte, error) {
		if data, ok := r.blobs[name]; ok {
			return data, nil
		}
		return nil, cay.Errorf(cay.Internal, "a payload of run %s is missing", r.id)
	})
	if err != nil {
		panic(err) // every blob named in these events was shelved in this group
	}
	return whole
}

// shelved records the blobs of the group.
func (l *lane) shelved(r *liveRun, blobs []Blob) {
	for _, b := range blobs {
		if r.blobs == nil {
			r.blobs = make(map[string][]byte)
		}
		r.blobs[b.Name] = b.Data
		l.group.records.Blobs = append(l.group.records.Blobs, b)
		l.group.bytes += len(b.Data)
	}
}

// maxPageBytes bounds the payloads of a page of events, in bytes; a page has at least one
// event.
const maxPageBytes = 32 << 20

// page returns events with their payloads, fewer than limit if the payloads are large.
func (e *Engine) page(ctx context.Context, run string, from int64, limit int) (events []history.Event, more bool, err error) {
	events, err = e.store.Events(ctx, run, from, limit)
	if err != nil {
		return nil, false, err
	}
	more = len(events) == limit
	size := 0
	for i := range events {
		if err := e.unshelveEvent(ctx, run, &events[i]); err != nil {
			return nil, false, err
		}
		size += eventSize(&events[i])
		if size >= maxPageBytes && i+1 < len(events) {
			return events[:i+1], true, nil
		}
	}
	return events, more, nil
}
