package vercelworkflow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

// Pusher delivers messages to apps, as the hosted queue does: a POST with the message as
// its body, and what the queue says of it in headers. The app acknowledges by itself,
// with the receipt.
type Pusher struct {
	client *http.Client
	// Pulls takes the messages of deployments whose processes have connected. Set it before the first push.
	Pulls *Pulls
	// Admit reports whether a message may be sent: nil, or an error, such as
	// *queue.ParkedError. Set it before the first push; nil means always.
	Admit func(ctx context.Context, m *queue.Message) error
}

var _ queue.Pusher = (*Pusher)(nil)

// deliveryHeader proves to an app that a delivery is the daemon's: it has the secret that
// the app's process has registered with.
const deliveryHeader = "X-Cay-Delivery"

// maxIdle bounds the connections to one app that wait for the next delivery.
const maxIdle = 32

// NewPusher returns a Pusher. Close it.
func NewPusher() *Pusher {
	dialer := &net.Dialer{Timeout: 10 * time.Second, ControlContext: refuseLinkLocal}
	return &Pusher{client: &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: 4 * time.Second,
			TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close drops idle connections.
func (p *Pusher) Close() { p.client.CloseIdleConnections() }

// refuseLinkLocal keeps a token from having the daemon talk to the metadata service of a
// cloud.
func refuseLinkLocal(_ context.Context, _, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if ip := at.Addr().Unmap(); ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() {
		return fmt.Errorf("%s is no address that an app can have", ip)
	}
	return nil
}

// flowPath is where an app takes deliveries, and health checks.
const flowPath = "/.well-known/workflow/v1/flow"

// healthy is how the SDK answers a health check: the second before its version 4.2.
var healthy = regexp.MustCompile(`"healthy"\s*:\s*true|endpoint is healthy`)

// checkPatience bounds a health check.
const checkPatience = 15 * time.Second

// Check asks whether an app of the SDK answers at an address, so that nobody has the daemon
// send messages to what is none. Errors: conflict.
func (p *Pusher) Check(ctx context.Context, d queue.Deployment) error {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(d.URL, "/")+flowPath+"?__health", nil)
	if err != nil {
		return cay.Errorf(cay.Invalid, "url is %.100q: %v", d.URL, err)
	}
	req.Header.Set(deliveryHeader, d.Secret)
	resp, err := p.client.Do(req)
	if err != nil {
		return cay.Errorf(cay.Conflict, "no app answers at %s: %v", d.URL, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil || resp.StatusCode != http.StatusOK || !healthy.Match(said) {
		return cay.Errorf(cay.Conflict, "what answers at %s is no app of the Workflow SDK: %s to POST %s?__health", d.URL, resp.Status, flowPath)
	}
	return nil
}

// stepTopic is the topic of a step's messages, which the 4.x line takes at another path.
var stepTopic = regexp.MustCompile(`^__([a-z][a-z0-9]*_)?wkf_step_`)

// Push implements queue.Pusher.
func (p *Pusher) Push(ctx context.Context, to queue.Deployment, m queue.Message) error {
	if p.Admit != nil {
		if err := p.Admit(ctx, &m); err != nil {
			return fmt.Errorf("%w: %w", queue.ErrBroken, err)
		}
	}
	if to.URL == queue.Pulled {
		return p.Pulls.push(ctx, to, m)
	}
	kind := "flow"
	if stepTopic.MatchString(m.Topic) {
		kind = "step"
	}
	url := strings.TrimSuffix(to.URL, "/") + strings.TrimSuffix(flowPath, "flow") + kind
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(m.Body))
	if err != nil {
		return fmt.Errorf("%w at %s: %w", queue.ErrUnreachable, to.URL, err)
	}
	for name, value := range map[string]string{
		"Content-Type": m.ContentType, deliveryHeader: to.Secret,
		"ce-specversion": "1.0", "ce-type": "com.vercel.queue.v2beta", "ce-source": "/topic/" + m.Topic + "/consumer/default",
		"ce-id": m.ID, "ce-time": time.Now().UTC().Format(time.RFC3339Nano),
		"ce-vqsqueuename": m.Topic, "ce-vqsconsumergroup": "default", "ce-vqsmessageid": m.ID,
		"ce-vqsreceipthandle": m.Receipt, "ce-vqsdeliverycount": strconv.Itoa(m.Attempt),
		"ce-vqscreatedat": at(m.CreatedAt).Format(time.RFC3339Nano), "ce-vqsregion": "iad1",
		"ce-vqsvisibilitydeadline": at(m.LeaseUntil).Format(time.RFC3339Nano),
	} {
		req.Header.Set(name, value)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return pushError(to.URL, err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	}
	switch {
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusBadGateway || resp.StatusCode == http.StatusServiceUnavailable:
		return fmt.Errorf("%w at %s: it answers %s to POST %s", queue.ErrUnreachable, to.URL, resp.Status, "/.well-known/workflow/v1/"+kind)
	case resp.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%w at %s: another process of it has that address now, which has not registered", queue.ErrUnreachable, to.URL)
	case err != nil:
		return fmt.Errorf("%w: %w", queue.ErrBroken, err)
	case resp.StatusCode >= 500:
		return fmt.Errorf("the app answered %s: %.200s", resp.Status, strings.TrimSpace(string(said)))
	}
	return nil
}

// pushError wraps ErrUnreachable if the client could not connect, and ErrBroken otherwise.
func pushError(url string, err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("%w at %s: %w", queue.ErrUnreachable, url, op.Err)
	}
	return fmt.Errorf("%w: %w", queue.ErrBroken, err)
}
