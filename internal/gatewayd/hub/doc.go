// Package hub defines the neutral form through which all wire formats of language models
// are translated: the request (Call), the streamed answer (Event) and the whole answer
// (Result). The types follow the newest AI SDK provider specification, because among the
// public formats it loses the least.
//
// A wire format is a package beside this one (messages, chatcompletions, responses,
// aisdk, gemini, converse). As a Surface it reads calls of clients and writes answers to
// them; as an Upstream it writes calls to a provider and reads its answers. In a
// translation between two formats, everything that both can express arrives:
//
//	client -> Surface.ReadCall -> Call -> Upstream.WriteCall -> provider
//	client <- Surface.NewWriter <- Event <- Upstream.NewReader <- provider
//
// Nothing is dropped silently. A Surface that finds an unknown member in a request adds a
// Warning to the Call; an Upstream that cannot express a part of a Call returns a
// Warning, or fails with invalid if leaving it out would change the request (a file, a
// message, a tool).
//
// The package imports no HTTP and knows no provider, price or key.
package hub
