package guest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
)

// Files in a guest that was given certificates. See Client.Trust.
const (
	// ExtraFile has the given certificates, for programs that add a file to the
	// authorities they bring along.
	ExtraFile = "/etc/cay/trust/extra.pem"
	// BundleFile has the image's bundle and the given certificates, for programs that
	// take one file for all. It is a link to the distribution's own bundle if that bundle
	// could be changed, so that later additions to the bundle take effect.
	BundleFile = "/etc/cay/trust/bundle.pem"
)

const (
	// MaxConfigCertificates is how many bytes of certificates Config may carry. Config is
	// in an environment variable, which Linux limits to 128 KiB. Client.Trust installs
	// larger sets.
	MaxConfigCertificates = 64 << 10
	// MaxTrust bounds the bytes of all given certificates, and of a bundle of the image
	// that they are added to.
	MaxTrust = 16 << 20
)

// TrustRequest says which certificate authorities a guest is to trust.
type TrustRequest struct {
	// Certificates are PEM, at least one. They replace the certificates given before.
	Certificates string `json:"certificates"`
	// Public are the public authorities, PEM, for an image that has no bundle of its own.
	// Without Public nothing is installed in such an image, and Trust.Bare is set: a
	// bundle of Certificates alone would hide the authorities that programs bring along.
	Public string `json:"public,omitempty"`
}

// Trust describes the certificates that a guest has been made to trust.
type Trust struct {
	// ID is the TrustID of the certificates given last that are in ExtraFile and
	// BundleFile. Empty if these files have no given certificates.
	ID string `json:"id,omitempty"`
	// Bare says that the image has no bundle, so that Public is needed.
	Bare bool `json:"bare,omitempty"`
	// Problem says which files could not be written, for people. If ID is set, both of
	// these files were written.
	Problem string `json:"problem,omitempty"`
}

// TrustID names a set of certificates: the SHA-256 of its PEM text, in hex.
func TrustID(certificates []byte) string {
	sum := sha256.Sum256(certificates)
	return hex.EncodeToString(sum[:])
}

// Trust makes the programs of a guest trust the given certificates, in addition to the
// image's authorities. It writes ExtraFile and BundleFile, adds to the bundles of
// distributions, and puts the certificates where the distribution looks when it rebuilds
// its bundle. Calling it twice changes nothing.
//
// If the result's ID differs from the ID of the requested certificates, Bare or Problem
// says why.
func (c *Client) Trust(ctx context.Context, req TrustRequest) (Trust, error) {
	var t Trust
	if err := c.call(ctx, request{method: http.MethodPut, path: "/trust", body: encode(req), repeat: true}, &t); err != nil {
		return Trust{}, err
	}
	return t.printable(), nil
}

func (t Trust) printable() Trust {
	t.ID, t.Problem = printable(t.ID), printable(t.Problem)
	return t
}
