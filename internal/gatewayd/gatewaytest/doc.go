// Package gatewaytest is what tests of the gateway stand on: recorded answers of
// providers, and a provider of its own that speaks all their wire formats.
//
//	Fixtures   recorded answers, whole and streamed
//	Frames     events as the bytes of a stream, as each format frames them
//	Reply      an answer in no format; Render says it in any of them
//	Upstream   a server that answers with any of these, keeps what it was asked,
//	           refuses what real providers refuse, and fails in every way they do
//	Asked      what a request says, in the same words for all formats
//
// It reads and writes the formats by itself and knows nothing of the packages that
// translate them: what it is asked is checked against a second reading.
package gatewaytest
