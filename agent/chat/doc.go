// Package chat serves agents to chat pages that are built with the AI SDK: useChat
// of @ai-sdk/react, with WorkflowChatTransport of @workflow/ai or
// @ai-sdk/workflow/client, or with the SDK's own DefaultChatTransport.
//
//	answer := assistant.Workflow()
//	mux.Handle("/api/chat", chat.Handler(client, answer, chat.Options{}))
//	mux.Handle("/api/chat/", chat.Handler(client, answer, chat.Options{}))
//
// An answer is a run of the agent's workflow. The page that asked reads it as it is
// given, and so does any other that knows the run's id: from the beginning or from
// any chunk on, during the answer or after it, also after this program or the daemon
// was killed and started again. A page that leaves does not end the answer.
//
//	POST   /api/chat               {id, messages, trigger, messageId} starts a run
//	GET    /api/chat/{run}/stream  ?startIndex=N reads it
//	DELETE /api/chat/{run}         cancels it
//
// The answers of POST and GET are server-sent events, one chunk each, with comments
// in between so that nobody takes the connection for dead, and [DONE] at the end.
// The header x-workflow-run-id has the run's id, x-workflow-stream-tail-index the
// index of the last chunk there was (-1: none). A connection that ends without
// [DONE] was cut: who reads comes back with the number of chunks it has.
//
// In place of a run's id, GET and DELETE take the id of a chat, for its newest run;
// there is no content (204) if that has ended, or there is none, or, for a GET with
// startIndex, a stream that ends at once.
//
// # Answers given again
//
// A step that asks a model and is tried again, because the model broke off or the
// program was killed, may say something else than it has said already: see
// agent.StreamName. Whoever begins to read after that gets chunks of the type
// data-skip in place of what counts no more, which clients ignore: chunks keep their
// index. Whoever has seen some of it gets, where the answer begins anew, a reset-step
// if Options.ResetStep, which clients of AI SDK 7 obey, or else a chunk of the type
// data-reset-step, which useChat hands to onData: a page has what it should have if
// it reads the run again from its beginning. No chunk that clients of AI SDK 5 and 6
// know takes a text back.
//
// # What is sent twice
//
// A run is started once for what a page says: see Request.ID. An answer to what the
// agent asked, as whether a tool may be called, is given once: the run that gets it is
// the only one, as long as it is kept, and another answer is refused. It counts in the
// chat, and for the user, that were asked (agent.Call.Conversation).
//
// # Who may read, and what is believed
//
// A run's id cannot be guessed, but is no secret: Options.User says whose it is, and
// others do not find it. Everything else is around the handler: who may use it at
// all, how often, and requests of other origins, which are taken as they come: see
// http.CrossOriginProtection. (Transports of the AI SDK send JSON as text/plain, so
// a browser does not ask before.)
//
// What a page sends as the conversation so far is what it says it was, unless
// Options.Remember: then it is what the runs of the chat have said. Answers to
// approvals are proven in any case, by the agent (agent.Approvals).
package chat
