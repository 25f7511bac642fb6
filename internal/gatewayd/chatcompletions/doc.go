// Package chatcompletions is the Chat Completions format of OpenAI: as a Surface
// for its clients, as an Upstream for OpenAI and the many servers that speak the
// same, each in its own way. What they answer is read with the tolerance that takes.
//
//	request.go    calls, read                  outgoing.go   calls, written
//	blocking.go   whole answers, both ways     reasoning.go  what the model thought
//	streaming.go  streams, read                writer.go     streams, written
//	errors.go     errors, both ways            tap.go        answers that pass
//	usage.go      tokens, both ways            thinktags.go  <think> in text
//	quirks.go     how servers differ           passes.go     what a server takes as it is
//
// Smaller formats that such servers have are here as well: embeddings.go, images.go
// and rerank.go.
//
// What a provider must get back with what its model thought (signatures, encrypted
// reasoning) is in reasoning_details[] of the message, and in the ids of tool
// calls (hub.PackID): clients send both back, and so nothing is to be stored.
//
// Members of a Call that only this format knows are kept in its Options under the
// name chatcompletions: includeUsage (a usage chunk is wanted at the end of the
// stream), encodingFormat (of embeddings), and member.NAME, a member of a request
// that no Call has a place for, in case the call goes to a server of this format.
package chatcompletions
