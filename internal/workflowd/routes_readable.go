package workflowd

import (
	"bytes"
	"context"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// readable is a backend for people: it returns JSON in place of the payloads of other
// languages, where JSON can say the same. Payloads of the Go SDK stay unchanged.
type readable struct {
	workflow.Backend
	read func([]byte) []byte
}

func (b readable) events(events []history.Event, err error) ([]history.Event, error) {
	shown := events
	for i := range events {
		payload, input := b.read(events[i].Payload), b.read(events[i].Input)
		if bytes.Equal(payload, events[i].Payload) && bytes.Equal(input, events[i].Input) {
			continue
		}
		if &shown[0] == &events[0] {
			shown = append([]history.Event(nil), events...) // events is shared with other readers
		}
		shown[i].Payload, shown[i].Input = payload, input
	}
	return shown, err
}

func (b readable) Events(ctx context.Context, id string, from int64, limit int) ([]workflow.Event, error) {
	return b.events(b.Backend.Events(ctx, id, from, limit))
}

func (b readable) Follow(ctx context.Context, id string, from int64) (workflow.EventReader, error) {
	r, err := b.Backend.Follow(ctx, id, from)
	if err != nil {
		return nil, err
	}
	return readableEvents{r, b}, nil
}

type readableEvents struct {
	workflow.EventReader
	b readable
}

func (r readableEvents) ReadEvents(ctx context.Context) ([]workflow.Event, error) {
	return r.b.events(r.EventReader.ReadEvents(ctx))
}

func (b readable) GetHook(ctx context.Context, token string) (*workflow.Hook, error) {
	h, err := b.Backend.GetHook(ctx, token)
	if err == nil {
		h.Metadata = b.read(h.Metadata)
	}
	return h, err
}

func (b readable) ListHooks(ctx context.Context, run, cursor string, limit int) (*history.Page[workflow.Hook], error) {
	page, err := b.Backend.ListHooks(ctx, run, cursor, limit)
	if err == nil {
		for i := range page.Items {
			page.Items[i].Metadata = b.read(page.Items[i].Metadata)
		}
	}
	return page, err
}

func (b readable) ReadStream(ctx context.Context, run, stream string, from int64) (workflow.ChunkReader, error) {
	r, err := b.Backend.ReadStream(ctx, run, stream, from)
	if err != nil {
		return nil, err
	}
	return readableChunks{r, b}, nil
}

type readableChunks struct {
	workflow.ChunkReader
	b readable
}

func (r readableChunks) ReadChunks(ctx context.Context) ([]workflow.Chunk, error) {
	chunks, err := r.ChunkReader.ReadChunks(ctx)
	shown := append([]workflow.Chunk(nil), chunks...)
	for i := range shown {
		shown[i].Data = r.b.read(shown[i].Data)
	}
	return shown, err
}
