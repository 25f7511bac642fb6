// Package hub holds the words all wire formats of language models are translated
// through: what a caller asks for (Call), what comes back in pieces (Event) and
// as a whole (Result). They are those of the newest AI SDK provider
// specification, which of the public shapes loses least.
//
// A wire format is a package beside this one (messages, chatcompletions,
// responses, aisdk, gemini, converse). As a Surface it reads calls of clients and
// writes answers to them; as an Upstream it writes calls to a provider and reads
// its answers. Cross two of them and everything that both can say arrives:
//
//	client -> Surface.ReadCall -> Call -> Upstream.WriteCall -> provider
//	client <- Surface.NewWriter <- Event <- Upstream.NewReader <- provider
//
// Nothing is dropped silently. A Surface that meets a member of a request it does
// not know says so with a Warning in the Call; an Upstream that cannot carry a
// part of a Call returns a Warning, or fails with invalid where leaving it out
// would change what was asked (a file, a message, a tool).
//
// The package imports no HTTP and knows no provider, price or key.
package hub
