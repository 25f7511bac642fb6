package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

// outcome is the result of a failed request, in words for the caller. The cause holds the
// details for the operators of this machine: addresses, name servers, and URLs, which can
// contain credentials.
type outcome struct {
	text  string
	cause error
}

func (o *outcome) Error() string { return o.text }
func (o *outcome) Unwrap() error { return o.cause }

// errStalled is the error of a transfer in which nothing moved: for a minute in a
// download, for two in an upload.
var errStalled = errors.New("it is silent for too long")

// statusError is a server's answer with an error status.
type statusError string

func (s statusError) Error() string { return "the server answers " + string(s) }

// outcomeOf says why a request had no good answer.
func outcomeOf(err error) *outcome {
	var (
		name      *net.DNSError
		timeout   net.Error
		status    statusError
		answer    *transport.Error
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		plain     tls.RecordHeaderError
		coded     *cay.Error
		text      = "the connection failed"
	)
	switch {
	case errors.As(err, &coded) && coded.Code == cay.PermissionDenied:
		text = "it is at no address of the public internet"
	case errors.As(err, &name) && name.IsNotFound:
		text = "there is no host of that name"
	case errors.As(err, &name):
		text = "its name could not be looked up"
	case errors.Is(err, unix.ECONNREFUSED):
		text = "it takes no connections"
	case errors.As(err, &authority), errors.As(err, &host), errors.As(err, &invalid):
		text = "its certificate is not one to trust"
	case errors.As(err, &plain):
		text = "it does not speak TLS"
	case errors.Is(err, errStalled):
		text = errStalled.Error()
	case errors.As(err, &status):
		text = status.Error()
	case errors.As(err, &answer):
		text = statusError(statusText(answer.StatusCode)).Error()
	case errors.As(err, &timeout) && timeout.Timeout():
		text = "it does not answer"
	}
	return &outcome{text, err}
}

// diskError gives a full disk its code.
func diskError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return errNoSpace(err)
	}
	return err
}

func errNoSpace(err error) error {
	return cay.Errorf(cay.NoSpace, "the disk that holds the images is full: %w", err).
		WithHint("free space there, for example with: cay image remove NAME")
}

// workError gives the error of a piece of work its code.
func workError(ctx context.Context, err error) error {
	var coded *cay.Error
	switch {
	case err == nil || errors.As(err, &coded):
		return err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return cay.Errorf(cay.DeadlineExceeded, "the time given was not enough: %w", err)
	case ctx.Err() != nil:
		return cay.Errorf(cay.Canceled, "canceled: %w", err)
	default:
		return diskError(err)
	}
}
