package gateway

import "testing"

// TestVercel runs the AI SDK as users of Vercel do, with models named by texts: "cay
// vercel exec" directs the gateway's host name, which is fixed in the client, to this
// gateway.
func TestVercel(t *testing.T) {
	need(t, "node_modules")
	s := &site{providers: &providers{}}
	s.start(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	run(t, s.world, "", s.program, "--url", s.url, "--token", s.token, "vercel", "exec", "--",
		"node", "--test-reporter=../vercel/reporter.mjs", "vercel.test.mjs")
}
