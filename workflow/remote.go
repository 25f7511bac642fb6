package workflow

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/workflowd/protocol"
)

// RemoteOptions identify a daemon, and the credentials and project of the program.
type RemoteOptions struct {
	// URL is the daemon's address. Empty means $CAY_URL, else http://127.0.0.1:7070.
	URL string
	// Token is sent with every request. Empty means $CAY_TOKEN, else, if the
	// daemon is on this machine, the admin token in its data directory.
	Token string
	// Team is the team of the requests. Only admin tokens may choose one; empty means the
	// token's own.
	Team string
	// Project is the id of the project whose runs the program uses. Empty means the
	// token's own, else the team's default.
	Project string
	// HTTPClient sends the requests. Nil means one shared by all clients. Redirects are
	// not followed, whatever the client's policy.
	HTTPClient *http.Client
}

// Dial returns the Backend of a daemon ("cay serve"). It does not connect; each call
// does, and returns unavailable if the daemon cannot be reached. Calls that wait survive
// an interruption: WaitRun and readers reconnect for up to ReconnectTimeout. A Session
// does not reconnect: its worker attaches again. Transactional steps are not_supported,
// because the daemon's database is not the worker's.
//
// Errors: invalid.
func Dial(o RemoteOptions) (Backend, error) {
	conn, err := wire.Target{URL: o.URL, Token: o.Token, Team: o.Team, HTTPClient: o.HTTPClient}.Resolve()
	if err != nil {
		return nil, err
	}
	return &remote{conn, o.Project}, nil
}

// ReconnectTimeout is how long a waiting call tries to reach the daemon again before it
// returns unavailable.
const ReconnectTimeout = time.Minute

// remote is the Backend of a daemon over HTTP.
type remote struct {
	conn    *wire.Conn
	project string
}

var _ Backend = (*remote)(nil)

const (
	pathRuns      = "/v1/workflows/runs"
	pathHooks     = "/v1/workflows/hooks"
	pathSchedules = "/v1/workflows/schedules"
	pathLimits    = "/v1/workflows/limits"
)

// runPath returns the path of a run, or of a resource below it.
func runPath(id string, elems ...string) (string, error) {
	// Servers and proxies do not treat these as names.
	if id == "" || id == "." || id == ".." {
		return "", cay.Errorf(cay.NotFound, "run %q not found", id)
	}
	p := pathRuns + "/" + url.PathEscape(id)
	for _, e := range elems {
		p += "/" + e
	}
	return p, nil
}

// query returns the parameters that every request has.
func (r *remote) query() url.Values {
	q := url.Values{}
	if r.project != "" {
		q.Set("project", r.project)
	}
	return q
}

func (r *remote) call(ctx context.Context, req wire.Request, out any) error {
	if req.Query == nil {
		req.Query = r.query()
	}
	return r.conn.Call(ctx, req, out)
}

// onRun calls an operation on a run whose answer is the run.
func (r *remote) onRun(ctx context.Context, method, id string, body any, elems ...string) (*RunInfo, error) {
	p, err := runPath(id, elems...)
	if err != nil {
		return nil, err
	}
	var run protocol.Run
	if err := r.call(ctx, wire.Request{Method: method, Path: p, JSON: body}, &run); err != nil {
		return nil, err
	}
	return run.Run(), nil
}

// checkSize refuses payloads that the daemon would refuse.
func checkSize(payloads ...[]byte) error {
	n := 0
	for _, p := range payloads {
		n += len(p)
	}
	if n > maxPayload {
		return cay.Errorf(cay.TooLarge, "%d bytes are more than the %d a daemon takes at one time", n, maxPayload)
	}
	return nil
}

// startBody returns the wire form of p.
func startBody(p NewRun) protocol.Start {
	return protocol.Start{
		ID: p.ID, Workflow: p.Workflow, Input: p.Input, Key: p.Key, Group: p.Group, Priority: p.Priority, Build: p.Build,
		Attributes: p.Attributes, StartAt: p.StartAt, RetentionMS: protocol.DurationMillis(p.Retention),
	}
}

func (r *remote) CreateRun(ctx context.Context, p NewRun) (*RunInfo, bool, error) {
	if p.Parent != "" || p.Root != "" || p.Previous != "" || p.ParentCall != "" {
		return nil, false, cay.Errorf(cay.Invalid, "a run with a parent is started by its parent's code")
	}
	if err := checkSize(p.Input); err != nil {
		return nil, false, err
	}
	var out protocol.Started
	// With an id or a key, a repeated request finds the run of the first request.
	err := r.call(ctx, wire.Request{Method: http.MethodPost, Path: pathRuns, JSON: startBody(p), Repeat: p.ID != "" || p.Key != ""}, &out)
	if err != nil {
		return nil, false, err
	}
	if out.Run == nil {
		return nil, false, cay.Errorf(cay.Internal, "the daemon's answer has no run")
	}
	return out.Run.Run(), out.Created, nil
}

func (r *remote) GetRun(ctx context.Context, id string) (*RunInfo, error) {
	return r.onRun(ctx, http.MethodGet, id, nil)
}

// selection returns the parameters that select runs.
func (r *remote) selection(q Query) url.Values {
	v := r.query()
	set := func(name, value string) {
		if value != "" {
			v.Set(name, value)
		}
	}
	set("workflow", q.Workflow)
	for _, s := range q.Statuses {
		v.Add("status", string(s))
	}
	for k, val := range q.Attributes {
		v.Add("attribute", attributeName(k)+"="+val)
	}
	for _, k := range q.HasAttributes {
		v.Add("attribute", attributeName(k))
	}
	set("key", q.Key)
	set("parent", q.Parent)
	set("schedule", q.Schedule)
	if q.Since != 0 {
		v.Set("since", protocol.Time(q.Since).Format(time.RFC3339Nano))
	}
	if q.Until != 0 {
		v.Set("until", protocol.Time(q.Until).Format(time.RFC3339Nano))
	}
	return v
}

// attributeName escapes the name of an attribute for a parameter.
func attributeName(name string) string { return strings.ReplaceAll(url.PathEscape(name), "=", "%3D") }

func (r *remote) ListRuns(ctx context.Context, q Query) (*history.Page[RunInfo], error) {
	v := r.selection(q)
	if q.Ascending {
		v.Set("ascending", "true")
	}
	if q.Cursor != "" {
		v.Set("cursor", q.Cursor)
	}
	if q.Limit != 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	var page protocol.Page[protocol.Run]
	if err := r.call(ctx, wire.Request{Method: http.MethodGet, Path: pathRuns, Query: v}, &page); err != nil {
		return nil, err
	}
	return pageOf(&page, func(run *protocol.Run) *RunInfo { return run.Run() }), nil
}

func (r *remote) CountRuns(ctx context.Context, q Query) (RunCounts, error) {
	var out protocol.Counts
	err := r.call(ctx, wire.Request{Method: http.MethodGet, Path: pathRuns + "/counts", Query: r.selection(q)}, &out)
	return out.Counts, err
}

// pageOf converts the items of a page.
func pageOf[From, To any](page *protocol.Page[From], convert func(*From) *To) *history.Page[To] {
	out := &history.Page[To]{Cursor: page.Next}
	for i := range page.Items {
		out.Items = append(out.Items, *convert(&page.Items[i]))
	}
	return out
}

func (r *remote) WaitEnd(ctx context.Context, id string) (*RunInfo, *Event, error) {
	run, err := r.WaitRun(ctx, id)
	return run, nil, err
}

func (r *remote) WaitRun(ctx context.Context, id string) (*RunInfo, error) {
	p, err := runPath(id, "wait")
	if err != nil {
		return nil, err
	}
	var again patience
	for connected := false; ; {
		in, err := r.open(ctx, wire.Request{Method: http.MethodGet, Path: p, Query: r.query()})
		if err == nil {
			connected = true
			again.reset()
			var run *RunInfo
			if run, err = awaitRun(ctx, in); err == nil {
				return run, nil
			}
		}
		if !connected || !again.wait(ctx, err) {
			return nil, err
		}
	}
}

// awaitRun reads the answer to a request that waits for a run.
func awaitRun(ctx context.Context, in *lines) (*RunInfo, error) {
	defer in.close()
	// The answer begins with blank lines while the run goes on, so that an error after
	// the first blank line comes in the body.
	var answer struct {
		protocol.Run
		Error *wire.Error `json:"error"`
	}
	switch err := in.next(&answer); {
	case err != nil:
		return nil, in.explain(ctx, err)
	case answer.Error != nil:
		return nil, answer.Error.Err()
	}
	return answer.Run.Run(), nil
}

func (r *remote) Events(ctx context.Context, id string, from int64, limit int) ([]Event, error) {
	req, err := r.eventsRequest(id, from, false, limit)
	if err != nil {
		return nil, err
	}
	in, err := r.open(ctx, req)
	if err != nil {
		return nil, err
	}
	defer in.close()
	var events []Event
	for {
		e, err := nextEvent(in)
		switch {
		case err == errEndOfLines:
			return events, nil
		case err != nil:
			return nil, in.explain(ctx, err)
		}
		events = append(events, e)
	}
}

func (r *remote) CancelRun(ctx context.Context, id string, p CancelParams) (*RunInfo, error) {
	return r.onRun(ctx, http.MethodPost, id, protocol.Cancel{Reason: p.Reason, Force: p.Force}, "cancel")
}

func (r *remote) CancelRuns(ctx context.Context, q Query, p CancelParams) ([]CancelResult, error) {
	var out protocol.Page[CancelResult]
	body := protocol.CancelManyOf(q, protocol.Cancel{Reason: p.Reason, Force: p.Force})
	err := r.call(ctx, wire.Request{Method: http.MethodPost, Path: pathRuns + "/cancel", JSON: body}, &out)
	return out.Items, err
}

func (r *remote) WakeRun(ctx context.Context, id string, waits []string) (int, error) {
	p, err := runPath(id, "wake")
	if err != nil {
		return 0, err
	}
	var out protocol.Woken
	err = r.call(ctx, wire.Request{Method: http.MethodPost, Path: p, JSON: protocol.Wake{Waits: waits}}, &out)
	return out.Count, err
}

func (r *remote) RerunRun(ctx context.Context, id string, p RerunParams) (*RunInfo, error) {
	return r.onRun(ctx, http.MethodPost, id, protocol.Rerun{Build: p.Build, Key: p.Key}, "rerun")
}

func (r *remote) DeleteRun(ctx context.Context, id string) error {
	p, err := runPath(id)
	if err != nil {
		return err
	}
	return r.call(ctx, wire.Request{Method: http.MethodDelete, Path: p}, nil)
}

func (r *remote) SetAttributes(ctx context.Context, id string, attributes map[string]string) (*RunInfo, error) {
	return r.onRun(ctx, http.MethodPatch, id, protocol.Update{Attributes: attributes})
}

func (r *remote) ResumeHook(ctx context.Context, p ResumeParams) (*Hook, error) {
	if err := checkSize(p.Payload); err != nil {
		return nil, err
	}
	var out protocol.Hook
	body := protocol.Resume{Token: p.Token, Payload: p.Payload, Key: p.Key, Webhook: p.Webhook}
	// With a key a repeated call does nothing.
	err := r.call(ctx, wire.Request{Method: http.MethodPost, Path: pathHooks + "/resume", JSON: body, Repeat: p.Key != ""}, &out)
	if err != nil {
		return nil, err
	}
	return out.Hook(), nil
}

func (r *remote) GetHook(ctx context.Context, token string) (*Hook, error) {
	q := r.query()
	q.Set("token", token)
	var out protocol.Page[protocol.Hook]
	if err := r.call(ctx, wire.Request{Method: http.MethodGet, Path: pathHooks, Query: q}, &out); err != nil {
		return nil, err
	}
	if len(out.Items) == 0 {
		return nil, cay.Errorf(cay.NotFound, "there is no hook with the token %q", token)
	}
	return out.Items[0].Hook(), nil
}

func (r *remote) ListHooks(ctx context.Context, run, cursor string, limit int) (*history.Page[Hook], error) {
	q := r.query()
	if run != "" {
		q.Set("run", run)
	}
	if cursor != "" {
		q.Set("cursor", cursor)
	}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	var page protocol.Page[protocol.Hook]
	if err := r.call(ctx, wire.Request{Method: http.MethodGet, Path: pathHooks, Query: q}, &page); err != nil {
		return nil, err
	}
	return pageOf(&page, func(h *protocol.Hook) *Hook { return h.Hook() }), nil
}

func (r *remote) WriteStream(ctx context.Context, run, stream string, chunks [][]byte, closeIt bool) error {
	p, err := runPath(run, "stream")
	if err != nil {
		return err
	}
	q := r.query()
	q.Set("name", stream)
	if err := checkSize(chunks...); err != nil {
		return err
	}
	body := protocol.WriteStream{Close: closeIt}
	for _, c := range chunks {
		body.Chunks = append(body.Chunks, c)
	}
	return r.call(ctx, wire.Request{Method: http.MethodPost, Path: p, Query: q, JSON: body}, nil)
}

func (r *remote) ListStreams(ctx context.Context, run string) ([]StreamInfo, error) {
	p, err := runPath(run, "streams")
	if err != nil {
		return nil, err
	}
	var page protocol.Page[StreamInfo]
	err = r.call(ctx, wire.Request{Method: http.MethodGet, Path: p}, &page)
	return page.Items, err
}

func (r *remote) ListSchedules(ctx context.Context) ([]Schedule, error) {
	var page protocol.Page[protocol.Schedule]
	if err := r.call(ctx, wire.Request{Method: http.MethodGet, Path: pathSchedules}, &page); err != nil {
		return nil, err
	}
	return pageOf(&page, func(s *protocol.Schedule) *Schedule { return s.Schedule() }).Items, nil
}

// schedulePath is the path of a schedule.
func schedulePath(id string) (string, error) {
	if id == "" || id == "." || id == ".." {
		return "", cay.Errorf(cay.Invalid, "%q cannot be the id of a schedule", id)
	}
	return pathSchedules + "/" + url.PathEscape(id), nil
}

func (r *remote) PutSchedule(ctx context.Context, s Schedule) (*Schedule, error) {
	p, err := schedulePath(s.ID)
	if err != nil {
		return nil, err
	}
	if err := checkSize(s.Input); err != nil {
		return nil, err
	}
	body := protocol.PutSchedule{Workflow: s.Workflow, Cron: s.Cron, Zone: s.Zone, Input: s.Input, Overlap: s.Overlap, Paused: s.Paused}
	var out protocol.Schedule
	if err := r.call(ctx, wire.Request{Method: http.MethodPut, Path: p, JSON: body, Repeat: true}, &out); err != nil {
		return nil, err
	}
	return out.Schedule(), nil
}

func (r *remote) UpdateSchedule(ctx context.Context, id string, u ScheduleUpdate) (*Schedule, error) {
	p, err := schedulePath(id)
	if err != nil {
		return nil, err
	}
	body := protocol.UpdateSchedule{Cron: u.Cron, Zone: u.Zone, Overlap: u.Overlap, Paused: u.Paused}
	var out protocol.Schedule
	if err := r.call(ctx, wire.Request{Method: http.MethodPatch, Path: p, JSON: body, Repeat: true}, &out); err != nil {
		return nil, err
	}
	return out.Schedule(), nil
}

func (r *remote) DeleteSchedule(ctx context.Context, id string) error {
	p, err := schedulePath(id)
	if err != nil {
		return err
	}
	return r.call(ctx, wire.Request{Method: http.MethodDelete, Path: p}, nil)
}

func (r *remote) ListLimits(ctx context.Context) ([]Limit, error) {
	var page protocol.Page[protocol.Limit]
	if err := r.call(ctx, wire.Request{Method: http.MethodGet, Path: pathLimits}, &page); err != nil {
		return nil, err
	}
	return pageOf(&page, func(l *protocol.Limit) *Limit { return l.Limit() }).Items, nil
}

func (r *remote) PutLimit(ctx context.Context, l Limit) (*Limit, error) {
	l.Project = "" // that of the client
	var out protocol.Limit
	if err := r.call(ctx, wire.Request{Method: http.MethodPut, Path: pathLimits, JSON: protocol.LimitOf(&l), Repeat: true}, &out); err != nil {
		return nil, err
	}
	return out.Limit(), nil
}

func (r *remote) DeleteLimit(ctx context.Context, workflow string) error {
	return r.call(ctx, wire.Request{Method: http.MethodDelete, Path: pathLimits, Query: url.Values{"workflow": {workflow}}}, nil)
}

// Close implements Backend. The openers of sessions and readers close them.
func (r *remote) Close() error { return nil }

// helloBody returns the wire form of a worker's description.
func helloBody(w WorkerInfo) ([]byte, error) {
	hello := protocol.Hello{Version: protocol.SessionVersion, Name: w.Name, Build: w.Build, Accept: w.Accept, MaxRuns: w.MaxRuns, Survived: w.HeldRuns}
	for _, d := range w.Definitions {
		hello.Definitions = append(hello.Definitions, protocol.Definition{
			Name: d.Name, MaxRunning: d.MaxRunning, MaxRunningPerGroup: d.MaxRunningPerGroup,
			Rate: d.Rate, RatePerGroup: d.RatePerGroup, RatePeriodMS: protocol.DurationMillis(d.RatePeriod),
			RetentionMS: protocol.DurationMillis(d.Retention), Priority: d.Priority, MaxEvents: d.MaxEvents,
		})
	}
	return json.Marshal(hello)
}
