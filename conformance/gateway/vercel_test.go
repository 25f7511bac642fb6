package gateway

import "testing"

// TestVercel runs the AI SDK as users of Vercel do, with models named by texts: "cay
// vercel exec" leads the gateway's host, which is written into the client, to this one.
func TestVercel(t *testing.T) {
	need(t, "node_modules")
	s := &site{providers: &providers{}}
	s.start(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	run(t, s.world, "", s.program, "--url", s.url, "--token", s.token, "vercel", "exec", "--",
		"node", "--test-reporter=../vercel/reporter.mjs", "vercel.test.mjs")
}
