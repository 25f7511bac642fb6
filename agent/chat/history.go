package chat

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
)

// endTimeout is how long the handler waits for the end of a run whose answer is complete.
const endTimeout = 10 * time.Second

// remember builds the conversation of q from the runs of its chat, and the answers in the
// last message of q. Errors: invalid, permission_denied, conflict.
func (s *server) remember(r *http.Request, q *Request, user string) error {
	if q.ID == "" {
		return cay.Errorf(cay.Invalid, "id is empty: what was said before is known by the id of the chat")
	}
	last := q.last()
	said, err := Convert(q.Messages[len(q.Messages)-1:], s.o.Convert)
	if err != nil {
		return err
	}
	switch {
	case last.Role == agent.Assistant:
		before, err := s.before(r, q, user, "")
		if err != nil {
			return err
		}
		q.Call.Messages, err = answered(before, said)
		return err
	case last.Role != agent.User || len(said) != 1:
		return cay.Errorf(cay.Invalid, "the last message is of the role %s, or says nothing: there is nothing to answer", last.Role)
	case last.ID == "":
		return cay.Errorf(cay.Invalid, "the last message has no id")
	}
	var before []agent.Message
	if q.Trigger == RegenerateMessage || q.MessageID == last.ID { // answered anew, or replaced
		if before, err = s.before(r, q, user, last.ID); before != nil {
			before = before[:len(before)-1]
		}
	}
	if before == nil && err == nil {
		before, err = s.before(r, q, user, "")
	}
	q.Call.Messages = append(before, said...)
	return err
}

// before returns the conversation before a request: all messages of the newest run of a
// chat, or, if message is set, the input of the run that answers that message. It returns
// nil if there is no such run.
func (s *server) before(r *http.Request, q *Request, user, message string) ([]agent.Message, error) {
	find := s.attributes(q, user)
	if message != "" {
		find[AttributeMessage] = message
	}
	page, err := s.client.List(r.Context(), workflow.Query{Workflow: s.workflow, Attributes: find, Limit: 1})
	if err != nil || len(page.Items) == 0 {
		return nil, err
	}
	run := &page.Items[0]
	over, err := s.isOver(r.Context(), run)
	if err != nil {
		return nil, err
	}
	if message == "" && over && (!run.Status.Terminal() || run.Status == workflow.StatusCompleted) {
		ctx, cancel := context.WithTimeout(r.Context(), endTimeout)
		defer cancel()
		result, err := workflow.GetRun[*agent.Result](s.client, run.ID).Result(ctx)
		if err == nil {
			return result.Messages, nil
		}
		if run, err = s.client.Get(r.Context(), run.ID); err != nil {
			return nil, err
		}
		if !run.Status.Terminal() {
			return nil, cay.Errorf(cay.Unavailable, "the answer before this one has not ended: try again")
		}
		if run.Status == workflow.StatusCompleted {
			return nil, cay.Errorf(cay.Conflict, "what was said before in this chat is not kept any more")
		}
	}
	// A run that has failed, or still runs, adds nothing to the conversation.
	events, err := s.client.Events(r.Context(), run.ID, 1, 1)
	if err != nil {
		return nil, err
	}
	var call agent.Call
	if len(events) == 0 || s.client.Value(events[0].Payload, &call) != nil || len(call.Messages) == 0 {
		return nil, cay.Errorf(cay.Conflict, "what was said before in this chat is not kept any more")
	}
	return call.Messages, nil
}

// joined returns the run that already has the answers in q; "" if there is none. Errors:
// permission_denied if the run has other answers.
func (s *server) joined(r *http.Request, q *Request, user string) (id string, err error) {
	said, err := Convert(q.Messages[len(q.Messages)-1:], s.o.Convert)
	if err != nil {
		return "", err
	}
	question, answer, err := agent.Answers(said)
	if err != nil {
		return "", err
	}
	key := q.key(s.o.Name, user, 0)
	if question != "" {
		key = q.answerKey(s.o.Name, user, question)
	}
	page, err := s.client.List(r.Context(), workflow.Query{Workflow: s.workflow, Key: key, Limit: 1})
	if err != nil || len(page.Items) == 0 {
		return "", err
	}
	run := &page.Items[0]
	if question != "" {
		return run.ID, sameAnswer(run, answer)
	}
	if joins, err := s.joins(r, q, run); err != nil || !joins {
		return "", err
	}
	return run.ID, nil
}

// answered adds a page's answers to a conversation: approvals, and outputs of the
// client's tools. Everything else in the page's messages is ignored.
func answered(before, said []agent.Message) ([]agent.Message, error) {
	open := make(map[string]bool)  // calls of the client's tools without an output
	asked := make(map[string]bool) // approvals
	for i := range before {
		for _, p := range before[i].Parts {
			switch p.Type {
			case agent.ToolCallPart:
				open[p.CallID] = !p.ProviderExecuted
			case agent.ToolResultPart:
				delete(open, p.CallID)
			case agent.ApprovalRequest:
				asked[p.ApprovalID] = true
				delete(open, p.CallID) // the agent makes it
			case agent.ApprovalResponse:
				delete(asked, p.ApprovalID)
			}
		}
	}
	out := agent.Message{Role: agent.FromTool}
	for i := range said {
		for _, p := range said[i].Parts {
			switch {
			case p.Type == agent.ApprovalResponse && asked[p.ApprovalID]:
				delete(asked, p.ApprovalID)
			case p.Type == agent.ToolResultPart && open[p.CallID]:
				delete(open, p.CallID)
			default:
				continue
			}
			out.Parts = append(out.Parts, p)
		}
	}
	if len(out.Parts) == 0 {
		return nil, cay.Errorf(cay.Invalid, "the last message is one of the assistant, and answers nothing that it was asked")
	}
	return append(slices.Clip(before), out), nil
}
