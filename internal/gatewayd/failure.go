package gatewayd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Reasons to cancel an attempt.
var (
	errFirstByte = errors.New("the provider did not begin to answer in time")
	errIdle      = errors.New("the provider stopped in the middle of its answer")
	errTotal     = errors.New("the call took longer than any may")
)

// broken returns the error for a provider that could not be called, or whose answer could
// not be read. The message contains no address, because addresses are the operator's
// business.
func broken(ctx context.Context, providerName string, err error) *hub.Error {
	e := &hub.Error{Kind: hub.UpstreamFailed, Provider: providerName, Cause: err}
	cause := context.Cause(ctx)
	if known, ok := errors.AsType[*hub.Error](err); ok {
		return known
	}
	var dns *net.DNSError
	var cert *x509.UnknownAuthorityError
	var timeout net.Error
	switch {
	case cause == errFirstByte, cause == errIdle, cause == errTotal:
		e.Kind, e.Message, e.Cause = hub.Timeout, providerName+": "+cause.Error(), cause
	case cause == errStopping:
		e.Kind, e.Message = hub.Overloaded, "the gateway is stopping"
	case cause != nil:
		return hub.Left()
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Message = "the provider " + providerName + " cannot be reached: connection refused"
	case errors.As(err, &dns):
		e.Message = "the provider " + providerName + " cannot be reached: its name is not known"
	case errors.As(err, &cert), isTLS(err):
		e.Message = "the provider " + providerName + " cannot be trusted: its certificate is not valid, or it does not speak TLS"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		e.Kind, e.Message = hub.Timeout, "the provider "+providerName+" cannot be reached in time"
	default:
		e.Message = "the connection to the provider " + providerName + " broke off"
	}
	return e
}

// verdict says how a call continues after a failed attempt.
type verdict int

const (
	again          verdict = iota // retry the same endpoint after a short pause
	nextCredential                // the credential is at fault
	nextProvider
	nextModel // this model cannot serve the request
	giveUp
)

// patience is the longest Retry-After that the gateway waits for; above it another
// provider is tried.
const patience = 2 * time.Second

// judge returns the verdict on e, an error before any content of an answer.
func judge(e *hub.Error) verdict {
	switch e.Kind {
	case hub.Canceled, hub.BudgetExceeded, hub.Internal, hub.Forbidden, hub.Unauthenticated:
		return giveUp
	case hub.BadRequest, hub.TooLarge, hub.FailedDependency:
		return nextModel
	case hub.ModelNotFound, hub.NotFound:
		return nextProvider
	case hub.RateLimited:
		switch {
		case e.Code == "insufficient_quota":
			return nextCredential
		case e.Provider == "": // our own limit
			return giveUp
		case e.RetryAfter > 0 && e.RetryAfter <= patience:
			return again
		}
		return nextCredential
	case hub.Timeout:
		if e.Status == http.StatusRequestTimeout {
			return again
		}
		return nextProvider
	}
	switch s := e.Status; {
	case s == http.StatusUnauthorized, s == http.StatusForbidden, s == http.StatusPaymentRequired:
		return nextCredential
	case s >= 500 && e.RetryAfter > patience:
		return nextProvider
	case s >= 500:
		return again
	case s > 0:
		return nextProvider // malformed answer, or unknown status
	case errors.Is(e.Cause, syscall.ECONNRESET), errors.Is(e.Cause, syscall.EPIPE), isEarlyEOF(e.Cause):
		return again
	}
	return nextProvider
}

func isTLS(err error) bool {
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var verify *tls.CertificateVerificationError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	return errors.As(err, &record) || errors.As(err, &alert) || errors.As(err, &verify) || errors.As(err, &host) || errors.As(err, &invalid) ||
		err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

// isEarlyEOF reports whether a connection ended before the answer began.
func isEarlyEOF(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		err != nil && strings.Contains(err.Error(), "server closed idle connection")
}
