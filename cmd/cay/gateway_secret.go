package main

import (
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
)

// secretFlags name the source of a credential for a provider. Other users of the
// machine can read arguments, so a credential can also come from the environment or
// a file.
type secretFlags struct {
	key, env, file, account string
	aws                     bool
}

func (f *secretFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.env, "key-env", "", "variable of this command's environment that has the key")
	fl.StringVar(&f.file, "key-file", "", "file that has the key")
	fl.StringVar(&f.key, "key", "", "the key; - reads it from standard input (an argument can be seen by others)")
	fl.StringVar(&f.account, "service-account", "", "key file of a Google service account, for Vertex; - reads it from standard input")
	fl.BoolVar(&f.aws, "aws", false, "take AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN of this command's environment, for Bedrock")
	c.MarkFlagsMutuallyExclusive("key-env", "key-file", "key", "service-account", "aws")
}

// maxSecret is how large a key, or a key file, may be.
const maxSecret = 64 << 10

// read returns the credential: a key, a service account's JSON, or AWS keys; nothing
// if no flag says where it is. Errors: invalid.
func (f *secretFlags) read(a *app) (key, account string, keys *gateway.AWSKeys, err error) {
	switch {
	case f.env != "":
		if key = strings.TrimSpace(os.Getenv(f.env)); key == "" {
			err = cay.Errorf(cay.Invalid, "the variable %s is not set", f.env)
		}
	case f.file != "":
		key, err = readSecret(a, f.file, false)
	case f.key == "-":
		key, err = readSecret(a, "-", true)
	case f.key != "":
		key = f.key
	case f.account != "":
		account, err = readSecret(a, f.account, f.account == "-")
	case f.aws:
		keys = &gateway.AWSKeys{AccessKeyID: os.Getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: os.Getenv("AWS_SECRET_ACCESS_KEY"), SessionToken: os.Getenv("AWS_SESSION_TOKEN")}
		if keys.AccessKeyID == "" || keys.SecretAccessKey == "" {
			err = cay.Errorf(cay.Invalid, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not both set")
		}
	}
	return key, account, keys, err
}

// readSecret reads a file, or standard input, and trims it.
func readSecret(a *app, path string, stdin bool) (string, error) {
	what, src := path, io.Reader(a.stdin)
	if stdin {
		what = "standard input"
	} else {
		f, err := os.Open(path)
		if err != nil {
			return "", cay.Errorf(cay.Invalid, "cannot read the key: %w", err)
		}
		defer f.Close()
		src = f
	}
	b, err := io.ReadAll(io.LimitReader(src, maxSecret+1))
	text := strings.TrimSpace(string(b))
	switch {
	case err != nil:
		return "", cay.Errorf(cay.Invalid, "cannot read the key: %w", err)
	case len(b) > maxSecret:
		return "", cay.Errorf(cay.Invalid, "%s is larger than 64 KiB: it is no key", what)
	case text == "":
		return "", cay.Errorf(cay.Invalid, "%s is empty", what)
	}
	return text, nil
}
