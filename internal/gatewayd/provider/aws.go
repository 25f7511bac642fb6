package provider

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/cayhq/cay"
)

// AWS holds the access keys of an Amazon Web Services account.
type AWS struct {
	AccessKeyID     string
	SecretAccessKey Secret
	SessionToken    Secret // for temporary keys only
	// Region is the region that requests are sent to and signed for. If it is empty, the
	// region comes from the host name.
	Region string
}

// awsKeys signs requests with Signature Version 4 for the service "bedrock".
type awsKeys struct {
	owned
	region string
	keys   func(context.Context) (aws.Credentials, error)
	signer *v4.Signer
	now    func() time.Time
}

var accessKey = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9_]{4,128}$`)
})

// SigV4 returns the credential that signs requests to Amazon Bedrock. Errors:
// invalid.
func SigV4(o Owner, keys AWS) (Credential, error) {
	switch {
	case !accessKey().MatchString(keys.AccessKeyID):
		return nil, cay.Errorf(cay.Invalid, "the access key id is not one of AWS, such as AKIA and 16 characters")
	case keys.SecretAccessKey.IsZero():
		return nil, cay.Errorf(cay.Invalid, "there is an access key id without its secret access key")
	case keys.Region != "" && !place().MatchString(keys.Region):
		return nil, cay.Errorf(cay.Invalid, "region %.80q is none of AWS, such as us-east-1", keys.Region)
	}
	fixed := aws.Credentials{AccessKeyID: keys.AccessKeyID, SecretAccessKey: keys.SecretAccessKey.reveal(), SessionToken: keys.SessionToken.reveal()}
	return newAWS(o, "AWS keys", keys.Region, func(context.Context) (aws.Credentials, error) { return fixed, nil }), nil
}

func newAWS(o Owner, what, region string, keys func(context.Context) (aws.Credentials, error)) *awsKeys {
	return &awsKeys{owned{o, what}, region, keys, v4.NewSigner(), time.Now}
}

// Authorize implements Credential.
func (c *awsKeys) Authorize(ctx context.Context, r *http.Request, body []byte) error {
	region := toRegion(r, c.region)
	if region == "" {
		return failed("no region is known for "+r.URL.Hostname()+": give the provider a region", nil)
	}
	sum := sha256.Sum256(body)
	keys, err := c.keys(ctx)
	if err != nil {
		return err
	}
	// Like all AWS services except S3, Bedrock signs paths that are escaped twice.
	err = c.signer.SignHTTP(ctx, keys, r, hex.EncodeToString(sum[:]), "bedrock", region, c.now())
	if err != nil {
		return failed("the request could not be signed for AWS", err)
	}
	return nil
}

// bedrockHost matches Bedrock's host names, such as
// bedrock-runtime.us-east-1.amazonaws.com.
var bedrockHost = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(bedrock(?:-[a-z-]+)?)\.([a-z0-9-]+)\.(amazonaws\.com(?:\.cn)?|api\.aws)$`)
})

// toRegion changes a Bedrock host in r to region's, unless region is empty, and returns
// the region of the host.
func toRegion(r *http.Request, region string) string {
	host := bedrockHost().FindStringSubmatch(r.URL.Host)
	switch {
	case host == nil || region == host[2]:
		return region // another host: a proxy, or an endpoint of the operator's
	case region == "":
		return host[2]
	}
	moveTo(r, func(u *url.URL) { u.Host = strings.Join([]string{host[1], region, host[3]}, ".") })
	return region
}

// regional is a Bedrock key for another region than the provider's.
type regional struct {
	header
	region string
}

// BedrockKey returns the credential for an API key of Amazon Bedrock
// (AWS_BEARER_TOKEN_BEDROCK). With an empty region, requests keep their host. Errors:
// invalid.
func BedrockKey(o Owner, s Secret, region string) (Credential, error) {
	if region != "" && !place().MatchString(region) {
		return nil, cay.Errorf(cay.Invalid, "region %.80q is none of AWS, such as us-east-1", region)
	}
	return &regional{header{owned{o, "Bedrock key"}, "Authorization", "Bearer ", s}, region}, nil
}

// Authorize implements Credential.
func (c *regional) Authorize(ctx context.Context, r *http.Request, body []byte) error {
	toRegion(r, c.region)
	return c.header.Authorize(ctx, r, body)
}
