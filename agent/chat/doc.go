// Package chat serves agents to chat pages that are built with the AI SDK: useChat
// of @ai-sdk/react, with WorkflowChatTransport of @workflow/ai or
// @ai-sdk/workflow/client, or with the SDK's own DefaultChatTransport.
//
//	answer := assistant.Workflow()
//	mux.Handle("/api/chat", chat.Handler(client, answer, chat.Options{}))
//	mux.Handle("/api/chat/", chat.Handler(client, answer, chat.Options{}))
//
// An answer is a run of the agent's workflow. The page that asked reads the answer
// as it is written, and any other page that knows the run's id can read it: from the
// beginning or from any chunk on, during the answer or after it, even after this
// program or the daemon was killed and restarted. A page that leaves does not end
// the answer.
//
//	POST   /api/chat               {id, messages, trigger, messageId} starts a run
//	GET    /api/chat/{run}/stream  ?startIndex=N reads it
//	DELETE /api/chat/{run}         cancels it
//
// The answers of POST and GET are server-sent events, one chunk each, with comments
// in between that keep the connection from timing out, and [DONE] at the end. The
// header x-workflow-run-id has the run's id, x-workflow-stream-tail-index the index
// of the last chunk there was (-1: none). A connection that ends without [DONE] was
// cut: the client reconnects, with the number of chunks that it has as startIndex.
//
// In place of a run's id, GET and DELETE take the id of a chat, for its newest run;
// if that run has ended, or the chat has no run, the answer is 204 (no content), or,
// for a GET with startIndex, a stream that ends at once.
//
// # Answers given again
//
// A step that asks a model and is retried, because the model broke off or the
// program was killed, may give another answer than the one that is on the stream
// already: see agent.StreamName. A reader that starts after the retry gets chunks of
// the type data-skip in place of the chunks of the failed attempt; clients ignore
// data-skip, and chunks keep their index. A reader that has received some of the
// failed attempt gets, where the new answer begins, a chunk reset-step if
// Options.ResetStep is set, which clients of AI SDK 7 obey, or else a chunk of the
// type data-reset-step, which useChat passes to onData: the page can then read the
// run again from its beginning. Clients of AI SDK 5 and 6 know no chunk that takes
// text back.
//
// # Repeated requests
//
// Each message of a page starts one run, even if the page sends the message twice:
// see Request.ID. A question of the agent, such as whether a tool may be called, is
// answered once. A single run gets the answer, and as long as that run is kept,
// another answer is refused. An answer is valid only in the chat, and from the user,
// that the agent asked (agent.Call.Conversation).
//
// # Access and trust
//
// A run's id cannot be guessed, but is no secret: Options.User returns the user of a
// request, and the runs of other users are not found. The program must add around
// the handler whatever else it needs: access control, rate limits, and protection
// against requests from other origins, which the handler accepts: see
// http.CrossOriginProtection. (Transports of the AI SDK send JSON as text/plain, so
// browsers send no preflight request.)
//
// The handler trusts the conversation that a page sends, unless Options.Remember is
// set: then it takes the conversation from the runs of the chat. Answers to
// approvals are verified in any case, by the agent (agent.Approvals).
package chat
