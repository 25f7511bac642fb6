package agent

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// question signs the questions about calls, and writes them to the stream. The
// questions come back with the answers, in the messages of another Call.
func (l *loop) question(ctx workflow.Context, calls []ToolCall) ([]Part, error) {
	agent, conversation := l.config.Name, l.call.Conversation
	secret, quiet := l.config.Approvals.SecretEnv, l.call.Quiet
	signatures, err := workflow.Do(ctx, StepAsk, func(ctx context.Context) ([]string, error) {
		key, err := secretOf(secret)
		if err != nil {
			return nil, workflow.Fatal(err)
		}
		about := asking{agent, conversation, questionID(ctx), time.Now()}
		signatures := make([]string, len(calls))
		chunks := make([]Chunk, len(calls))
		for i, c := range calls {
			if signatures[i], err = key.sign(about, c); err != nil {
				return nil, workflow.Fatal(err)
			}
			chunks[i] = Chunk{Type: ChunkApprovalRequest, ApprovalID: approvalID(c.ID), ToolCallID: c.ID, Signature: signatures[i]}
		}
		if quiet {
			return signatures, nil
		}
		return signatures, sent(workflow.Stream[Chunk](ctx, StreamName), chunks...)
	})
	if err != nil {
		return nil, err
	}
	parts := make([]Part, len(calls))
	for i, c := range calls {
		parts[i] = Part{Type: ApprovalRequest, ApprovalID: approvalID(c.ID), CallID: c.ID, Signature: signatures[i]}
	}
	return parts, nil
}

// reply is an answer to a question, with the call that the question is about.
type reply struct {
	call      ToolCall
	id        string
	approved  bool
	reason    string
	signature string
	at        int // the message the answer is in
}

// replies finds the answers in a conversation whose calls have no result yet. Errors:
// permission_denied for an answer without a question.
func replies(messages []Message) ([]reply, error) {
	calls := make(map[string]ToolCall)
	asked := make(map[string]*Part) // by approval id
	results := make(map[string]bool)
	var all []reply
	eachPart(messages, func(_ *Message, p *Part) {
		switch p.Type {
		case ToolCallPart:
			calls[p.CallID] = ToolCall{ID: p.CallID, Name: p.ToolName, Input: p.Input, ProviderExecuted: p.ProviderExecuted}
		case ToolResultPart:
			results[p.CallID] = true
		case ApprovalRequest:
			asked[p.ApprovalID] = p
		}
	})
	for at := range messages {
		for i := range messages[at].Parts {
			p := &messages[at].Parts[i]
			if p.Type != ApprovalResponse {
				continue
			}
			question := asked[p.ApprovalID]
			if question == nil {
				return nil, cay.Errorf(cay.PermissionDenied, "there is an answer to the approval %.64q, and no question", p.ApprovalID)
			}
			call, ok := calls[question.CallID]
			switch {
			case !ok:
				return nil, cay.Errorf(cay.PermissionDenied, "the approval %.64q is of the call %.64q, and there is none", p.ApprovalID, question.CallID)
			case call.ProviderExecuted, results[call.ID]:
				continue
			}
			r := reply{call: call, id: p.ApprovalID, approved: p.Approved, reason: p.Reason, signature: question.Signature, at: at}
			if same := slices.IndexFunc(all, func(o reply) bool { return o.call.ID == call.ID }); same < 0 {
				all = append(all, r)
			} else if !r.approved { // an answer that says both counts as a denial
				r.at = all[same].at
				all[same] = r
			}
		}
	}
	return all, nil
}

// Answers returns the ids of the question that the messages of a Call answer, and of
// the answer; both are empty if the messages answer no open question. Answers verifies
// nothing: the agent does. A program that wants each question answered only once
// starts the run that gets the messages with a workflow.Key made of the question's id,
// and refuses the Call if the run with that key has another answer, as agent/chat
// does.
//
// Errors: permission_denied if they answer what was not asked, or questions of several
// answers of the model.
func Answers(messages []Message) (question, answer string, err error) {
	all, err := replies(messages)
	if err != nil {
		return "", "", err
	}
	var said []string
	for i := range all {
		sig, ok := readSignature(all[i].signature)
		switch {
		case !ok: // the agent refuses it, or asks at a hook
			continue
		case question != "" && question != sig.question:
			return "", "", cay.Errorf(cay.PermissionDenied, "the messages answer questions of several answers of the model, and only those of the last one can be: give the results of the calls before it")
		}
		question = sig.question
		said = append(said, fmt.Sprintf("%q %v %q", all[i].id, all[i].approved, all[i].reason))
	}
	if question == "" {
		return "", "", nil
	}
	slices.Sort(said)
	sum := sha256.Sum256([]byte(strings.Join(said, "\n")))
	return question, base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// settle makes the calls that were approved, and writes the denials of the others.
func (l *loop) settle(ctx workflow.Context) error {
	if l.config.Approvals.Mode != ApproveByMessage {
		return nil
	}
	all, err := replies(l.messages)
	if err != nil || len(all) == 0 {
		return err
	}
	problems, err := l.verify(ctx, all)
	if err != nil {
		return err
	}
	results := make([]*workflow.Future[ToolResult], len(all))
	for i := range all {
		r := &all[i]
		results[i] = workflow.Go(ctx, func(ctx workflow.Context) (ToolResult, error) {
			if !r.approved {
				return l.tell(ctx, r.call, denied(r.reason))
			}
			if problem := problems[i]; problem != "" {
				return l.tell(ctx, r.call, refused(errors.New(problem)))
			}
			return l.make(ctx, l.agent.tools[r.call.Name], r.call, false)
		})
	}
	made := make(map[int][]ToolResult) // by the message they come after
	for i := range all {
		r, err := results[i].Get(ctx)
		if err != nil {
			return err
		}
		if r.Usage != nil {
			l.usage.Add(*r.Usage)
		}
		made[all[i].at] = append(made[all[i].at], r)
	}
	for at := len(l.messages) - 1; at >= 0; at-- {
		if len(made[at]) > 0 {
			l.messages = slices.Insert(l.messages, at+1, resultMessage(made[at]))
			l.added++
		}
	}
	return nil
}

// verify checks that each approved call was asked about with the same tool and input,
// and returns, for each, why it cannot be made.
func (l *loop) verify(ctx workflow.Context, all []reply) ([]string, error) {
	if !slices.ContainsFunc(all, func(r reply) bool { return r.approved }) {
		return make([]string, len(all)), nil
	}
	agent, conversation, tools := l.config.Name, l.call.Conversation, l.agent.tools
	secret, patience := l.config.Approvals.SecretEnv, l.config.Approvals.Timeout
	return workflow.Do(ctx, StepVerify, func(context.Context) ([]string, error) {
		problems := make([]string, len(all))
		key, err := secretOf(secret)
		if err != nil {
			return nil, workflow.Fatal(err)
		}
		for i := range all {
			r := &all[i]
			if !r.approved {
				continue
			}
			if err := key.verify(agent, conversation, r, patience, time.Now()); err != nil {
				return nil, workflow.Fatal(err)
			}
			if err := fits(tools, r.call.Name, r.call.Input); err != nil {
				problems[i] = err.Error()
			} else if !tools[r.call.Name].local() {
				problems[i] = "the tool is not executed here"
			}
		}
		return problems, nil
	})
}
