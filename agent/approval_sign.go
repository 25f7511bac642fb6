package agent

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// hookSignature is the prefix of signatures of answers at hooks.
const hookSignature = "h1."

// Sign returns the answer a, signed with the secret (at least 32 bytes) that the agent
// has in Approvals.SecretEnv. The signer has seen the question, and the signature
// covers the run, the hook, the call, the tool and the input: a signed answer approves
// nothing else, and only once, as a hook takes one answer. The signature also covers
// the whole answer: whether the call is approved, the reason, and by whom.
//
// The signature is "h1." and, in base64 (URL alphabet, no padding), the HMAC-SHA256 of
// these texts, each after its length in bytes and a colon: "cay approval at a hook 1",
// Run, Token, Agent, ApprovalID, CallID, Tool, Input as encoding/json writes it
// (members sorted, no spaces, <, > and & as \u003c and so on, numbers as JavaScript
// writes them), "approved" or "denied", Reason, By.
//
// Errors: invalid for a secret that is too short, and a question that has no Run or
// Token: take one that Questions returned.
func (q ApprovalQuestion) Sign(key []byte, a Approval) (Approval, error) {
	if len(key) < minSecret {
		return Approval{}, cay.Errorf(cay.Invalid, "the secret that approvals are signed with has %d bytes and must have at least %d", len(key), minSecret)
	}
	if q.Run == "" || q.Token == "" {
		return Approval{}, cay.Errorf(cay.Invalid, "the question about the call %.64q does not say its run and hook: take it from Questions", q.CallID)
	}
	sum, err := secret(key).sumAtHook(&q, a)
	if err != nil {
		return Approval{}, cay.Errorf(cay.Invalid, "the question about the call %.64q: %w", q.CallID, err)
	}
	a.Signature = hookSignature + base64.RawURLEncoding.EncodeToString(sum)
	return a, nil
}

func (s secret) sumAtHook(q *ApprovalQuestion, a Approval) ([]byte, error) {
	input, err := canonical(q.Input)
	if err != nil {
		return nil, err
	}
	verdict := "denied"
	if a.Approved {
		verdict = "approved"
	}
	mac := hmac.New(sha256.New, s)
	for _, part := range []string{
		"cay approval at a hook 1", q.Run, q.Token, q.Agent, q.ApprovalID, q.CallID, q.Tool, input, verdict, a.Reason, a.By,
	} {
		fmt.Fprintf(mac, "%d:%s", len(part), part)
	}
	return mac.Sum(nil), nil
}

// problem returns why a's signature is not valid for the question, "" if it is valid.
func (s secret) problem(q *ApprovalQuestion, a Approval) string {
	want, err := s.sumAtHook(q, a)
	if err != nil {
		return err.Error()
	}
	given := []byte(a.Signature)
	if !hmac.Equal(given, []byte(hookSignature+base64.RawURLEncoding.EncodeToString(want))) {
		return "its signature is of another run, call, tool, input or answer, or with another secret"
	}
	return ""
}

// counts reports whether the value sent to a hook is a valid answer.
func (l *loop) counts(ctx workflow.Context, q ApprovalQuestion, a Approval) (bool, error) {
	p := l.config.Approvals
	problem := ""
	switch {
	case a.Signature == "":
		if p.RequireSignature {
			problem = "it is not signed"
		}
	case p.SecretEnv != "":
		var err error
		problem, err = workflow.Do(ctx, StepVerify, func(context.Context) (string, error) {
			key, err := secretOf(p.SecretEnv)
			if err != nil {
				return "", workflow.Fatal(err)
			}
			return key.problem(&q, a), nil
		})
		if err != nil {
			return false, err
		}
	}
	if problem != "" {
		ctx.Logger().Warn("an answer to a question does not count", "agent", q.Agent, "tool", q.Tool, "call", q.CallID, "why", problem)
	}
	return problem == "", nil
}
