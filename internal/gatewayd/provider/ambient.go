package provider

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Ambient credentials are the credentials that a cloud gives to the machine, the
// container or the user that the daemon runs as. The clouds' own packages find them, in
// the daemon's environment: variables, files, and the metadata addresses on the machine's
// network. So only the operator may enable ambient credentials; no value from a request
// or from a project reaches this code.

// foreverFor is how long a credential without an expiry is used before it is read again,
// because its file may change.
const foreverFor = 15 * time.Minute

// AWSDefault returns the credential that signs with the keys that the AWS SDK finds:
// variables, a web identity, a profile of the shared files, a container's endpoint, an
// instance's role (IMDSv2). profile selects a profile of the shared files; if it is
// empty, the environment decides. Errors: invalid.
func AWSDefault(o Owner, region, profile string) (Credential, error) {
	if region != "" && !place().MatchString(region) {
		return nil, cay.Errorf(cay.Invalid, "region %.80q is none of AWS, such as us-east-1", region)
	}
	keys := newRenewed("AWS", func(ctx context.Context) (aws.Credentials, time.Time, error) {
		options := []func(*config.LoadOptions) error{config.WithSharedConfigProfile(profile)}
		if region != "" {
			options = append(options, config.WithRegion(region))
		}
		var keys aws.Credentials
		c, err := config.LoadDefaultConfig(ctx, options...)
		if err == nil {
			keys, err = c.Credentials.Retrieve(ctx)
		}
		if err != nil {
			return keys, time.Time{}, noneFound("AWS", err)
		}
		if !keys.CanExpire {
			return keys, time.Now().Add(foreverFor), nil
		}
		return keys, keys.Expires, nil
	})
	return newAWS(o, "AWS identity", region, keys.get), nil
}

// GoogleDefault returns the credential that sends access tokens of the Application
// Default Credentials: the file that GOOGLE_APPLICATION_CREDENTIALS names (a user, a
// service account, a workload identity), gcloud's own, or the metadata server. client
// requests the tokens, except from the metadata server; nil: a default client.
func GoogleDefault(o Owner, client *http.Client) Credential {
	return &googleAccount{owned: owned{o, "Google identity"}, token: newRenewed("Google", func(ctx context.Context) (string, time.Time, error) {
		if client != nil {
			ctx = context.WithValue(ctx, oauth2.HTTPClient, withoutRedirects(client))
		}
		var token *oauth2.Token
		found, err := google.FindDefaultCredentials(ctx, googleScope)
		if err == nil {
			token, err = found.TokenSource.Token()
		}
		if err != nil {
			return "", time.Time{}, noneFound("Google", err)
		}
		return sendable("Google", token.AccessToken, token.Expiry)
	})}
}

// azureScope is the token scope of Azure OpenAI and of Foundry.
const azureScope = "https://cognitiveservices.azure.com/.default"

// AzureDefault returns the credential that sends access tokens of Microsoft Entra: for
// the application that AZURE_CLIENT_ID and related variables describe, for a Kubernetes
// workload identity, or for a managed identity (AZURE_CLIENT_ID selects one of several).
// client requests the tokens; nil: a default client. Errors: invalid.
func AzureDefault(o Owner, a Azure, client *http.Client) (Credential, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	var options azcore.ClientOptions
	if client != nil {
		options.Transport = withoutRedirects(client)
	}
	return &azureKey{owned{o, "Entra identity"}, a, newRenewed("Microsoft Entra", func(ctx context.Context) (string, time.Time, error) {
		var token azcore.AccessToken
		source, err := entra(options)
		if err == nil {
			token, err = source.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{azureScope}})
		}
		if err != nil {
			return "", time.Time{}, noneFound("Microsoft Entra", err)
		}
		return sendable("Microsoft Entra", token.Token, token.ExpiresOn)
	})}, nil
}

// entra returns the first sign-in method that the environment describes, otherwise a
// managed identity.
func entra(o azcore.ClientOptions) (azcore.TokenCredential, error) {
	if c, err := azidentity.NewEnvironmentCredential(&azidentity.EnvironmentCredentialOptions{ClientOptions: o}); err == nil {
		return c, nil
	}
	if c, err := azidentity.NewWorkloadIdentityCredential(&azidentity.WorkloadIdentityCredentialOptions{ClientOptions: o}); err == nil {
		return c, nil
	}
	managed := azidentity.ManagedIdentityCredentialOptions{ClientOptions: o}
	if id := os.Getenv("AZURE_CLIENT_ID"); id != "" {
		managed.ID = azidentity.ClientID(id)
	}
	return azidentity.NewManagedIdentityCredential(&managed)
}

// sendable returns a token checked for use in a header, and its expiry.
func sendable(from, text string, end time.Time) (string, time.Time, error) {
	token, err := NewSecret(text)
	if err != nil {
		return "", time.Time{}, failed(from+"'s access token cannot be sent", errors.Unwrap(err))
	}
	if end.IsZero() {
		end = time.Now().Add(foreverFor)
	}
	return token.reveal(), end, nil
}

// maxReason is how many bytes of a cloud package's error message are shown.
const maxReason = 500

// noneFound returns the error for a machine that has no credentials, or cannot get them.
func noneFound(from string, err error) *hub.Error {
	said := hub.Redact(strings.Join(strings.Fields(err.Error()), " "))
	return failed("the daemon has no credentials of "+from+": "+said[:min(len(said), maxReason)], err)
}

// The Auth values of Known kinds that use ambient credentials.
const (
	AWSAmbient    = "aws-default"
	GoogleAmbient = "google-default"
	AzureAmbient  = "azure-default"
)

// AmbientFor returns the name of the ambient credentials for an Auth, "" if there are
// none.
func AmbientFor(a Auth) string {
	switch a {
	case AuthAWS:
		return AWSAmbient
	case AuthVertex:
		return GoogleAmbient
	case AuthAzure:
		return AzureAmbient
	}
	return ""
}
