package workflow

import (
	"context"
	"net/http"

	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/workflowd/protocol"
)

func (r *remote) WatchRuns(ctx context.Context, q Query) (ChangeReader, error) {
	f := &follower[RunChange]{
		read: nextChange, position: func(RunChange) int64 { return 0 }, // each connection begins anew
		open: func(ctx context.Context, _ int64) (*lines, error) {
			return r.open(ctx, wire.Request{Method: http.MethodGet, Path: pathRuns + "/changes", Query: r.selection(q)})
		},
	}
	if err := f.start(ctx); err != nil {
		return nil, err
	}
	return &changeReader{f}, nil
}

func nextChange(in *lines) (RunChange, error) {
	var line struct {
		protocol.RunChange
		Error *wire.Error `json:"error"`
	}
	if err := in.next(&line); err != nil {
		return RunChange{}, err // it has no end but that of the connection
	}
	if line.Error != nil {
		return RunChange{}, line.Error.Err()
	}
	return line.Change(), nil
}

type changeReader struct{ *follower[RunChange] }

func (r *changeReader) ReadChanges(ctx context.Context) ([]RunChange, error) { return r.take(ctx) }
