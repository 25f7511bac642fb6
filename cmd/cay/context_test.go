package main

import "testing"

// systemd gives a service neither HOME nor XDG_CONFIG_HOME.
func TestUseContext_NoHome(t *testing.T) {
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME", "CAY_URL", "CAY_CONTEXT"} {
		t.Setenv(name, "")
	}
	var a app
	if err := a.useContext(); err != nil || a.inContext != localContext {
		t.Errorf("got the context %q, %v", a.inContext, err)
	}
}
