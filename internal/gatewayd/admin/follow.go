package admin

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"slices"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/wire"
)

// FollowRequests implements Service.
func (m *Manager) FollowRequests(ctx context.Context, f gateway.RequestFilter, after string) iter.Seq2[gateway.Request, error] {
	return func(yield func(gateway.Request, error) bool) {
		who, err := principal(ctx)
		if err == nil {
			err = validateStatus(f.Status)
		}
		if err != nil {
			yield(gateway.Request{}, err)
			return
		}
		feed, err := m.Book.Follow(ctx, who.TeamID, who.ProjectID, f, after)
		if err != nil {
			yield(gateway.Request{}, err)
			return
		}
		defer feed.Close()
		for {
			r, err := feed.Next(ctx)
			if err == io.EOF {
				err = cay.Errorf(cay.Unavailable, "the gateway is stopping")
			}
			if err != nil {
				yield(gateway.Request{}, err)
				return
			}
			told := []gateway.Request{*r}
			if err := m.bodiesOf(ctx, told); err != nil {
				yield(gateway.Request{}, err)
				return
			}
			if !yield(told[0], nil) {
				return
			}
		}
	}
}

func validateStatus(s gateway.RequestStatus) error {
	statuses := []gateway.RequestStatus{"", gateway.Succeeded, gateway.Failed, gateway.Cancelled, gateway.Refused}
	if !slices.Contains(statuses, s) {
		return cay.Errorf(cay.Invalid, "status %q is not one of succeeded, failed, cancelled, refused", s)
	}
	return nil
}

// requestFilter reads the filter parameters, except times and pages.
func requestFilter(q *api.Query) gateway.RequestFilter {
	return gateway.RequestFilter{
		ProjectID: q.String("project_id"), KeyID: q.String("key_id"),
		User: q.String("user"), Tag: q.String("tag"), Model: q.String("model"), Session: q.String("session"), Provider: q.String("provider"),
		Status: gateway.RequestStatus(q.String("status")),
	}
}

// followRequests answers with server-sent events, one per request, with the record as
// data and the generation id as event id, so that a client can resume.
func (h managing) followRequests(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	f := requestFilter(q)
	if err := q.Err(); err != nil {
		return err
	}
	if err := validateStatus(f.Status); err != nil { // while it can be a status
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	next, stop := iter.Pull2(h.svc.FollowRequests(ctx, f, r.Header.Get("Last-Event-ID")))
	defer stop()
	return api.ServeEvents(w, r, &pulled{next, cancel}, events{})
}

// pulled turns a sequence that cancel ends into an api.Source.
type pulled struct {
	next   func() (gateway.Request, error, bool)
	cancel context.CancelFunc
}

func (p *pulled) Next() (gateway.Request, error) {
	r, err, ok := p.next()
	if !ok {
		return r, io.EOF
	}
	return r, err
}

func (p *pulled) Close() error {
	p.cancel()
	return nil
}

// events encodes records as server-sent events.
type events struct{}

func (events) Append(dst []byte, r gateway.Request) ([]byte, error) {
	data, err := json.Marshal(&r) // on one line
	if err != nil {
		return dst, err
	}
	dst = append(append(dst, "id: "...), r.ID...)
	return append(append(append(dst, "\ndata: "...), data...), "\n\n"...), nil
}

func (events) Held() bool                { return false }
func (events) Release(dst []byte) []byte { return dst }

func (events) AppendError(dst []byte, e *cay.Error) []byte {
	data, err := json.Marshal(wire.ErrorBody{Error: wire.FromError(e)})
	if err != nil { // texts always encode
		return dst
	}
	return append(append(append(dst, "event: error\ndata: "...), data...), "\n\n"...)
}
