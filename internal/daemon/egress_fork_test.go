package daemon_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/sandbox"
)

// Row S2: a sandbox that is resumed or copied from saved memory has the current
// secrets, not the secrets that it was saved with.
func TestEgress_Fork(t *testing.T) {
	t.Parallel()
	s := openSite(t)
	policy := func(value string) sandbox.Network {
		return sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{
			{Name: "api.example.com", Rules: []sandbox.Rule{{SetHeaders: map[string]string{"X-Key": value}}}},
		}}
	}
	st := openStation(t, s, "python", policy("old"))
	const script = `
import sys, urllib.request
for line in sys.stdin:
    print(urllib.request.urlopen("https://api.example.com/" + line.strip(), timeout=60).status, flush=True)
`
	ctx := t.Context()
	cmd, err := st.site.Start(ctx, st.Ref(), sandbox.CommandParams{Argv: []string{"python3", "-c", script}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	// ask makes the process in a sandbox send its nth request.
	ask := func(ref string, n int) {
		t.Helper()
		if err := st.site.WriteStdin(ctx, ref, cmd.ID, strings.NewReader(ref+"\n"), false); err != nil {
			t.Fatal(err)
		}
		out, err := st.site.Output(ctx, ref, cmd.ID, sandbox.OutputParams{Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		var text string
		for strings.Count(text, "\n") < n {
			e, err := out.Next()
			if err != nil || e.Exit != nil || e.Stream == sandbox.Stderr {
				t.Fatalf("%s says %q, and then %+v %s, %v", ref, text, e.Exit, e.Data, err)
			}
			text += string(e.Data)
		}
		if text != strings.Repeat("200\n", n) {
			t.Errorf("%s says %q", ref, text)
		}
	}
	begin := s.net.Mark()
	ask(st.Ref(), 1)
	snap, err := st.site.CreateSnapshot(ctx, st.Ref(), sandbox.SnapshotParams{Kind: sandbox.MemorySnapshot})
	if err != nil {
		t.Fatal(err)
	}
	st.setNetwork(t, policy("rotated"))
	fork := func(ref string, p sandbox.ForkParams) {
		t.Helper()
		p.Kind = sandbox.MemorySnapshot
		f, err := st.site.Fork(ctx, ref, p)
		if err != nil {
			t.Fatal(err)
		}
		ask(f.Sandboxes[0].ID, 2)
		if err := st.site.Delete(ctx, f.Sandboxes[0].ID); err != nil {
			t.Error(err)
		}
	}
	own := policy("own")
	fork(st.Ref(), sandbox.ForkParams{})
	fork(st.Ref(), sandbox.ForkParams{Network: &own})
	fork(snap.ID, sandbox.ForkParams{Network: &own})
	fork(snap.ID, sandbox.ForkParams{}) // the snapshot's policy has no credentials
	var keys []string
	for _, r := range s.net.Requests(begin) {
		keys = append(keys, r.Header.Get("X-Key"))
	}
	if want := []string{"old", "rotated", "own", "own", ""}; !slices.Equal(keys, want) {
		t.Errorf("the server sees the keys %q, want %q", keys, want)
	}
}
