// Package gatewaytest supports tests of the gateway with recorded answers of providers,
// and with a simulated provider that speaks all their wire formats.
//
//	Fixtures   recorded answers, whole and streamed
//	Frames     encodes events as a stream of any format
//	Reply      an answer independent of formats; Render encodes it in any format
//	Upstream   a server that answers with any of these, records requests, refuses
//	           what real providers refuse, and simulates their failures
//	Asked      the content of a request, independent of formats
//
// The package implements the formats independently of the packages that translate them,
// so that requests are checked by a second parser.
package gatewaytest
