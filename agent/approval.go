package agent

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// Approval is a person's answer to the question whether a tool may be called.
type Approval struct {
	Approved bool   `json:"approved"`
	Reason   string `json:"reason,omitempty"` // told to the model if it is not
	By       string `json:"by,omitempty"`     // the person who answers, for the log
	// Signature is made by ApprovalQuestion.Sign, for agents that require it.
	Signature string `json:"signature,omitempty"`
}

// UnmarshalJSON implements json.Unmarshaler. It takes true and false, too.
func (a *Approval) UnmarshalJSON(b []byte) error {
	*a = Approval{}
	if json.Unmarshal(b, &a.Approved) == nil && string(b) != "null" {
		return nil
	}
	var w struct {
		Approved  *bool  `json:"approved"`
		Reason    string `json:"reason"`
		By        string `json:"by"`
		Signature string `json:"signature"`
	}
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	if w.Approved == nil {
		return cay.Errorf(cay.Invalid, "the approval does not say whether it is approved: give {\"approved\": true} or {\"approved\": false}")
	}
	a.Approved, a.Reason, a.By, a.Signature = *w.Approved, w.Reason, w.By, w.Signature
	return nil
}

// ApprovalQuestion is a call of a tool that waits at a hook for an Approval. It is
// the hook's metadata.
type ApprovalQuestion struct {
	Run        string          `json:"run"`
	ApprovalID string          `json:"approval_id"` // "approval-" and CallID
	CallID     string          `json:"call_id"`
	Agent      string          `json:"agent"`
	Tool       string          `json:"tool"`
	Input      json.RawMessage `json:"input"`
	// Signed says that only a signed answer is accepted: see Sign.
	Signed bool `json:"signed,omitempty"`
	// Token is the hook's token. It is not in the metadata; Questions sets it.
	Token string `json:"token,omitempty"`
}

// approvalID is the id of the question about a call. Source: the AI SDK.
func approvalID(callID string) string { return "approval-" + callID }

// Questions lists the calls of a run that wait for approval at hooks. Errors:
// not_found.
func Questions(ctx context.Context, c *workflow.Client, run string) ([]ApprovalQuestion, error) {
	var all []ApprovalQuestion
	for cursor := ""; ; {
		page, err := c.Hooks(ctx, run, cursor, 0)
		if err != nil {
			return nil, err
		}
		for _, h := range page.Items {
			var q ApprovalQuestion
			if len(h.Metadata) == 0 || c.Value(h.Metadata, &q) != nil || q.ApprovalID == "" || q.ApprovalID != approvalID(q.CallID) {
				continue // another hook of the program
			}
			q.Token = h.Token
			all = append(all, q)
		}
		if cursor = page.Cursor; cursor == "" {
			return all, nil
		}
	}
}

// Approve answers a question by the token of its hook: see Questions. The run drops and
// logs an answer that it cannot accept, because its signature is missing or wrong: the
// question stays open. Errors: not_found (the question was answered, or the run has
// ended).
func Approve(ctx context.Context, c *workflow.Client, token string, a Approval) error {
	return workflow.ResumeHook(ctx, c, token, a)
}

// wait asks for approval of a call at a hook, and waits for the answer.
func (l *loop) wait(ctx workflow.Context, c ToolCall) (Approval, error) {
	q := ApprovalQuestion{
		Run: ctx.Info().RunID, ApprovalID: approvalID(c.ID), CallID: c.ID, Agent: l.config.Name, Tool: c.Name, Input: c.Input,
		Signed: l.config.Approvals.RequireSignature,
	}
	hook, err := workflow.NewHook[Approval](ctx, "", workflow.Metadata(q))
	if err != nil {
		return Approval{}, err
	}
	defer hook.Dispose(ctx)
	q.Token = hook.Token()
	if err := l.show(ctx, &q); err != nil {
		return Approval{}, err
	}
	bounded := ctx
	if d := l.config.Approvals.Timeout; d > 0 {
		var cancel workflow.CancelFunc
		bounded, cancel = workflow.WithTimeout(ctx, d)
		defer cancel()
	}
	for {
		a, err := hook.Receive(bounded)
		switch {
		case err == nil:
			if ok, err := l.counts(ctx, q, a); ok || err != nil {
				return a, err
			}
			continue
		case ctx.Err() != nil:
			return Approval{}, ctx.Err()
		case bounded.Err() != nil:
			return Approval{Reason: "Nobody answered in time."}, nil
		case !errors.Is(err, &cay.Error{Code: cay.Invalid}):
			return Approval{}, err
		}
		// The hook received a value that is not an Approval: nothing is approved, and
		// the question stays open.
	}
}

// show writes a question to the stream. If the secret for verifying the answer is
// missing, show fails now, before anyone answers.
func (l *loop) show(ctx workflow.Context, q *ApprovalQuestion) error {
	quiet, env := l.call.Quiet, l.config.Approvals.SecretEnv
	if quiet && env == "" {
		return nil
	}
	chunk := Chunk{Type: ChunkApprovalRequest, ApprovalID: q.ApprovalID, ToolCallID: q.CallID}
	_, err := workflow.Do(ctx, StepAsk, func(ctx context.Context) (none, error) {
		if env != "" {
			if _, err := secretOf(env); err != nil {
				return none{}, workflow.Fatal(err)
			}
		}
		if quiet {
			return none{}, nil
		}
		return none{}, sent(workflow.Stream[Chunk](ctx, StreamName), chunk)
	})
	return err
}
