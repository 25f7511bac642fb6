// Package gatewaytest supports tests of the gateway with recorded answers of providers,
// and with a simulated provider that speaks all their wire formats.
//
//	Fixtures   recorded answers, whole and streamed
//	Frames     events as the bytes of a stream, as each format frames them
//	Reply      an answer in no format; Render says it in any of them
//	Upstream   a server that answers with any of these, keeps what it was asked,
//	           refuses what real providers refuse, and fails in every way they do
//	Asked      what a request says, in the same words for all formats
//
// The package implements the formats independently of the packages that translate them,
// so that requests are checked by a second parser.
package gatewaytest
