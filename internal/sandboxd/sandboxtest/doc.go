// Package sandboxtest tests the behavior that every sandboxd.Service must have: the
// engine on any Runtime, and the client that reaches an engine over HTTP.
//
// To test a service, write a test of a few lines that calls Run with a Config whose New
// starts the service:
//
//	func TestService(t *testing.T) {
//		sandboxtest.Run(t, sandboxtest.Config{New: func(t *testing.T) *sandboxtest.Env { ... }})
//	}
//
// A nil field of Env stands for a feature that the service lacks; its cases are skipped.
// Package runtimetest tests commands and files in depth; here each method is called once
// or twice, to check that the call arrives.
package sandboxtest
