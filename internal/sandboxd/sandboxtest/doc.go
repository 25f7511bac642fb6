// Package sandboxtest is the behaviour every sandboxd.Service shows: the engine
// on any Runtime, and the client that reaches an engine over HTTP.
//
// To hold a service to it, write a test of a few lines that calls Run with a
// Config whose New starts the service:
//
//	func TestService(t *testing.T) {
//		sandboxtest.Run(t, sandboxtest.Config{New: func(t *testing.T) *sandboxtest.Env { ... }})
//	}
//
// What a service cannot do is a nil field of Env, and its cases are skipped.
// How commands and files behave in depth is runtimetest's business; here each
// method is called once or twice, to see that it arrives.
package sandboxtest
