package preview

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/limit"
	"github.com/cayhq/cay/internal/sandboxd/upload"
	"github.com/cayhq/cay/sandbox"
)

const (
	// lookupTimeout is how long a visitor waits for a sandbox that is starting
	// before a page says so.
	lookupTimeout = 30 * time.Second

	// The defaults of Config.
	labelRequests = 256
	allRequests   = 8192
	answerTimeout = time.Minute
)

// Targets knows where labels lead.
type Targets interface {
	// Preview returns the target of a label; it waits for a sandbox that is starting.
	// Errors: not_found (there never was such a label), sandbox_stopped (the port was
	// removed, or the sandbox has ended), conflict (the sandbox is paused), unavailable.
	Preview(ctx context.Context, label string) (*Target, error)
	// WakePreview is Preview for a visitor who may see the port: it wakes a sandbox that
	// is asleep. Further errors: quota_exceeded, no_space, not_supported.
	WakePreview(ctx context.Context, label string) (*Target, error)
	// CheckLink returns when the token of a link to the label's port expires. Errors:
	// unauthenticated if the token is invalid, or for another port.
	CheckLink(ctx context.Context, label, token string) (time.Time, error)
}

// Target is a declared port of a sandbox.
type Target struct {
	SandboxID string
	TeamID    string
	Port      int
	Access    sandbox.PortAccess
	// Asleep says that the sandbox is asleep, and that WakePreview wakes it. The other
	// fields are not set then.
	Asleep bool
	// Dial connects to the port. Errors: unavailable if nothing listens,
	// sandbox_stopped.
	Dial func(ctx context.Context) (net.Conn, error)
	// Context ends when this Target is no longer valid: its port was removed, its access
	// changed, or the sandbox ended. Nil: never.
	Context context.Context
}

// Config describes a Handler. Targets and Domain are required.
type Config struct {
	// Domain is the parent domain of all previews, such as "localhost".
	Domain string
	// Aliases are further domains, whose visitors use https as far as they can tell.
	Aliases []string
	Targets Targets
	Logger  *slog.Logger
	// Secure says that visitors use https even if this process sees plain HTTP, as behind
	// a proxy that ends TLS.
	Secure bool
	// HasSecret reports whether a text contains a possible credential of the API, which
	// no guest may see. Nil: it never does.
	HasSecret func(text string) bool

	// LabelRequests and Requests bound the concurrent requests for one label and for all
	// labels, WebSockets included. 0 means 256 and 8192. The previews of one team have at
	// most half of Requests.
	LabelRequests, Requests int
	// AnswerTimeout bounds the wait for the head of a guest's answer. 0 means 1 minute.
	// No other part of a visit has a time limit.
	AnswerTimeout time.Duration
}

// Handler serves previews. Make it with New; Close ends all visits.
type Handler struct {
	cfg   Config
	below []string // "." and the domain, in lower case; and so the aliases
	log   *slog.Logger
	slots *limit.Limit // of visits; by label
	teams *limit.Limit // by team
	proxy *proxy

	// ctx ends with the Handler, and all visits with it.
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu     sync.Mutex // guards closed, and visits against a Wait that has begun
	closed bool
	visits sync.WaitGroup
}

var errClosing = cay.Errorf(cay.Unavailable, "the daemon is stopping").WithHint("try again in a moment")

// New returns a Handler.
func New(cfg Config) *Handler {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.HasSecret == nil {
		cfg.HasSecret = func(string) bool { return false }
	}
	if cfg.LabelRequests == 0 {
		cfg.LabelRequests = labelRequests
	}
	if cfg.Requests == 0 {
		cfg.Requests = allRequests
	}
	if cfg.AnswerTimeout == 0 {
		cfg.AnswerTimeout = answerTimeout
	}
	h := &Handler{
		cfg: cfg, log: cfg.Logger.With("component", "preview"),
		slots: limit.New(limit.Bounds{All: cfg.Requests, Each: cfg.LabelRequests}),
		teams: limit.New(limit.Bounds{All: cfg.Requests, Each: max(1, cfg.Requests/2)}),
	}
	for _, domain := range append([]string{cfg.Domain}, cfg.Aliases...) {
		h.below = append(h.below, "."+strings.ToLower(domain))
	}
	h.ctx, h.cancel = context.WithCancelCause(context.Background())
	h.proxy = newProxy(h)
	return h
}

// Close ends all visits and waits for them. Later visitors get a page that says so.
func (h *Handler) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.cancel(errClosing)
	h.visits.Wait()
	h.proxy.close()
}

// begin registers a visit, which calls visits.Done; false if h is closed.
func (h *Handler) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.visits.Add(1)
	return true
}

// Match returns, in lower case, the label of a host that is one label below the domain or
// an alias. It ignores a port and a final dot. Every such host belongs to previews,
// whether the label exists or not.
func (h *Handler) Match(host string) (label string, ok bool) {
	label, _, ok = h.match(host)
	return label, ok
}

// match is Match, and tells whether the domain is an alias.
func (h *Handler) match(host string) (label string, alias, ok bool) {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i:], ']') < 0 {
		host = host[:i]
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	for i, below := range h.below {
		label, ok := strings.CutSuffix(host, below)
		if ok && label != "" && !strings.Contains(label, ".") {
			return label, i > 0, true
		}
	}
	return "", false, false
}

// Before returns a handler that passes requests for previews to h and all other requests
// to next.
func (h *Handler) Before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := h.Match(r.Host); ok {
			h.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// visit is one request for a preview.
type visit struct {
	label  string
	target *Target // nil until the label was looked up
	body   *upload.Body
	failed bool // there was no answer of the guest, but a page of ours
	// admitted is the time until which the visitor may stay; zero for a public port.
	admitted time.Time
}

type visitKey struct{}

func visitOf(ctx context.Context) *visit { return ctx.Value(visitKey{}).(*visit) }

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	rw, err := record(w, r)
	v := &visit{body: rw.body}
	defer func() {
		rw.body.Finish()
		// Neither the label nor the query: both may open something.
		attrs := []slog.Attr{slog.String("method", r.Method), slog.Int("status", rw.status), slog.Duration("took", time.Since(start))}
		if v.target != nil {
			attrs = append(attrs, slog.String("sandbox", v.target.SandboxID), slog.Int("port", v.target.Port))
		}
		h.log.LogAttrs(r.Context(), slog.LevelDebug, "preview", attrs...)
	}()
	if err != nil {
		h.fail(rw, r, v, err)
		return
	}
	label, ok := h.Match(r.Host)
	if !ok || !validLabel(label) {
		writePage(rw, r, pageUnknown)
		return
	}
	v.label = label
	if !h.begin() {
		writePage(rw, r, pageClosing)
		return
	}
	defer h.visits.Done()
	if !h.slots.Take(label) {
		writePage(rw, r, pageBusy)
		return
	}
	defer h.slots.Leave(label)
	h.serve(rw, r, v)
}

// validLabel reports whether a label has the form of a host name, as all labels have.
func validLabel(label string) bool {
	if len(label) > 63 {
		return false
	}
	return strings.IndexFunc(label, func(r rune) bool { return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') }) < 0
}

func (h *Handler) serve(w *recorder, r *http.Request, v *visit) {
	if r.Method == http.MethodConnect {
		writePage(w, r, pageConnect)
		return
	}
	if h.cfg.HasSecret(r.URL.Path) {
		writePage(w, r, pageSecret)
		return
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), visitKey{}, v))
	defer cancel(nil)
	defer context.AfterFunc(h.ctx, func() { cancel(errClosing) })()

	lookUp := func(find func(context.Context, string) (*Target, error)) bool {
		ctx, done := context.WithTimeoutCause(ctx, lookupTimeout, errStarting)
		defer done()
		target, err := find(ctx, v.label)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			h.fail(w, r, v, err)
			return false
		}
		v.target = target
		return true
	}
	if !lookUp(h.cfg.Targets.Preview) {
		return
	}
	target := v.target
	if !h.teams.Take(target.TeamID) {
		writePage(w, r, pageBusy)
		return
	}
	defer h.teams.Leave(target.TeamID)
	if !h.admit(w, r, v) {
		return
	}
	if target.Asleep { // only an admitted visitor wakes the sandbox
		if !lookUp(h.cfg.Targets.WakePreview) {
			return
		}
		target = v.target
	}
	if target.Context != nil {
		defer context.AfterFunc(target.Context, func() { cancel(errChanged) })()
	}
	if !v.admitted.IsZero() {
		var expire context.CancelFunc
		ctx, expire = context.WithDeadlineCause(ctx, v.admitted, errExpired)
		defer expire()
	}
	h.proxy.serve(w, r.WithContext(ctx))
}

// Why visits end early.
var (
	errStarting = errors.New("the sandbox is still starting")
	errChanged  = errors.New("the port is no longer what it was")
	errExpired  = errors.New("the link has expired")
)

// fail answers a visit that cannot be served.
func (h *Handler) fail(w *recorder, r *http.Request, v *visit, err error) {
	p, ok := pageFor(err, v)
	if !ok {
		h.log.ErrorContext(r.Context(), "preview failed", "error", err)
	}
	writePage(w, r, p)
}
