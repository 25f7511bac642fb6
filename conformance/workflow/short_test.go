package workflow

import (
	"os"
	"path/filepath"
	"testing"
)

// TestShort is the part of this suite that every change runs: the app with the 4.x line, over the
// SDK's own client and then over @cayhq/world. It has the results of steps, errors, hooks, streams
// and cancellation, and kills the app and the daemon.
func TestShort(t *testing.T) {
	if os.Getenv("CAY_CONFORMANCE") != "short" {
		t.Skip("make conformance-workflow-short runs this; the other tests cover it")
	}
	const installed = "short"
	need(t, installed)
	d := startDaemon(t)
	a := buildApp(t, installed, d.URL, d.Token)
	a.start(t)
	t.Run("results", a.testResults)
	t.Run("errors", a.testErrors)
	t.Run("hook", a.testHook)
	t.Run("webhook", a.testWebhook)
	t.Run("stream", a.testStream)
	t.Run("cancel", a.testCancel)
	t.Run("secret", a.testSecret)
	t.Run("daemon killed", func(t *testing.T) { a.testUnderWay(t, d) })
	t.Run("app killed", func(t *testing.T) { a.testKilled(t, a.start) }) // the new one ends with this test

	installWorld(t, filepath.Dir(a.dir), d.URL)
	a.startWorld(t)
	t.Run("world", func(t *testing.T) {
		t.Run("errors", a.testErrors)
		t.Run("hook", a.testHook)
		t.Run("stream", a.testStream)
		t.Run("secret", a.testWorldSecret)
		t.Run("daemon killed", func(t *testing.T) { a.testUnderWay(t, d) })
		t.Run("app killed", func(t *testing.T) { a.testKilled(t, a.startWorld) })
	})
}
