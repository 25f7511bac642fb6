package agent

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

const minSecret = 32 // bytes

// secret is the key that signs the questions whether tools may be called.
type secret []byte

// secretOf reads the secret. Errors: invalid.
func secretOf(env string) (secret, error) {
	s := os.Getenv(env)
	if len(s) < minSecret {
		return nil, cay.Errorf(cay.Invalid, "the environment variable %s, which approvals are signed with, has %d bytes and must have at least %d", env, len(s), minSecret)
	}
	return secret(s), nil
}

// asking is the context of a question about calls.
type asking struct {
	agent        string
	conversation string // Call.Conversation
	question     string // an id of it: all calls that are asked about at once have one
	at           time.Time
}

// questionID returns the id of the question that a step asks: the same at each
// attempt.
func questionID(ctx context.Context) string {
	sum := sha256.Sum256([]byte(workflow.StepInfo(ctx).IdempotencyKey))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// sign signs the question about a call: "v2", the time in seconds, the question's id,
// and an HMAC-SHA256 in base64, with dots between.
func (s secret) sign(a asking, c ToolCall) (string, error) {
	seconds := strconv.FormatInt(a.at.Unix(), 10)
	sum, err := s.sum(a, approvalID(c.ID), c, seconds)
	if err != nil {
		return "", err
	}
	return "v2." + seconds + "." + a.question + "." + base64.RawURLEncoding.EncodeToString(sum), nil
}

func (s secret) sum(a asking, id string, c ToolCall, seconds string) ([]byte, error) {
	input, err := canonical(c.Input)
	if err != nil {
		return nil, err
	}
	// Each text has its length before it, so that different questions never give the
	// same input.
	mac := hmac.New(sha256.New, s)
	for _, part := range []string{"cay approval 2", a.agent, a.conversation, a.question, id, c.ID, c.Name, input, seconds} {
		fmt.Fprintf(mac, "%d:%s", len(part), part)
	}
	return mac.Sum(nil), nil
}

// signed is a signature split into its parts.
type signed struct{ seconds, question, sum string }

// readSignature splits a signature into its parts. signed reports whether s has the
// form of a signature.
func readSignature(s string) (signed, bool) {
	part := strings.Split(s, ".")
	if len(part) != 4 || part[0] != "v2" || len(part[2]) != base64.RawURLEncoding.EncodedLen(16) {
		return signed{}, false
	}
	return signed{part[1], part[2], part[3]}, true
}

// verify checks the answer to a question. Errors: permission_denied.
func (s secret) verify(agent, conversation string, r *reply, patience time.Duration, now time.Time) error {
	sig, ok := readSignature(r.signature)
	asked, err := strconv.ParseInt(sig.seconds, 10, 64)
	if !ok || err != nil || r.id != approvalID(r.call.ID) {
		return cay.Errorf(cay.PermissionDenied, "the approval of the call %.64q is not signed by this agent", r.call.ID)
	}
	want, err := s.sum(asking{agent: agent, conversation: conversation, question: sig.question}, r.id, r.call, sig.seconds)
	if err != nil {
		return cay.Errorf(cay.PermissionDenied, "the approval of the call %.64q: %w", r.call.ID, err)
	}
	// The texts are compared, not the decoded bytes: decoders ignore line breaks, and
	// the last bits.
	if !hmac.Equal([]byte(sig.sum), []byte(base64.RawURLEncoding.EncodeToString(want))) {
		return cay.Errorf(cay.PermissionDenied, "the approval of the call %.64q is of another call, another tool, another input or another conversation", r.call.ID)
	}
	if patience > 0 && now.Sub(time.Unix(asked, 0)) > patience {
		return cay.Errorf(cay.PermissionDenied, "the approval of the call %.64q came later than the %s that are allowed for it", r.call.ID, patience)
	}
	return nil
}

// canonical returns the canonical text of a JSON value: members are sorted, and
// numbers are written as JavaScript writes them, unless that would change their
// value.
func canonical(value json.RawMessage) (string, error) {
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return "", fmt.Errorf("the input is not JSON: %w", err)
	}
	b, err := json.Marshal(numbers(v))
	return string(b), err
}

// numbers replaces numbers that JavaScript represents exactly by floats.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = numbers(e)
		}
	case []any:
		for i, e := range v {
			v[i] = numbers(e)
		}
	case json.Number:
		f, err := v.Float64()
		if err != nil || len(v) > 400 {
			return v
		}
		if f == 0 { // an exponent may be of any size then
			digits, _, _ := strings.Cut(strings.ToLower(string(v)), "e")
			if strings.Trim(digits, "-0.") == "" {
				return 0.0 // JavaScript writes -0 as 0
			}
			return v
		}
		exact, ok := new(big.Rat).SetString(string(v))
		if !ok {
			return v
		}
		// Most decimals have no float with exactly their value; a decimal is kept as
		// a float if formatting the float gives back the same decimal.
		short, ok := new(big.Rat).SetString(strconv.FormatFloat(f, 'g', -1, 64))
		if ok && short.Cmp(exact) == 0 {
			return f
		}
	}
	return v
}
