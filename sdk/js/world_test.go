package js

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// run runs a program that has a World of @cayhq/world, and returns its output.
func run(t *testing.T, daemon http.HandlerFunc, program string) string {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is missing")
	}
	module, err := filepath.Abs("world/dist/index.js")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(daemon)
	t.Cleanup(server.CloseClientConnections)
	t.Cleanup(server.Close)
	for name, value := range map[string]string{"CAY_URL": server.URL, "CAY_TOKEN": "cay_token", "CAY_DEPLOYMENT": "dpl_1", "NODE_OPTIONS": ""} {
		t.Setenv(name, value)
	}
	cmd := exec.CommandContext(t.Context(), node, "--input-type=module", "-e", `
		const { createWorld } = await import(process.argv[1]);
		const world = await createWorld();`+program, module)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	return string(out)
}

// A reader may give up at any time, and the process goes on: before anything has come, and when
// everything has.
func TestStreams_cancel(t *testing.T) {
	got := run(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/strm_empty") {
			fmt.Fprint(w, "all")
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		if !strings.HasSuffix(r.URL.Path, "/strm_ended") {
			<-r.Context().Done()
		}
	}, `
		for (const name of ['strm_empty', 'strm_open', 'strm_ended']) {
			for (let turns = 0; turns < 20; turns++) {
				const reader = (await world.streams.get('wrun_1', name)).getReader();
				if (name !== 'strm_empty') await reader.read();
				for (let i = 0; i < turns; i++) await (i % 2 ? null : new Promise(setImmediate));
				await reader.cancel();
			}
		}
		setTimeout(() => { console.log('goes on'); process.exit(); }, 50);`)
	if got != "goes on\n" {
		t.Errorf("it prints %q", got)
	}
}

// Requests that may be sent again are, when the daemon or a proxy before it fails.
func TestClient_serverErrors(t *testing.T) {
	n := map[string]int{}
	got := run(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		kind := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		if n[kind]++; n[kind] <= 3 {
			w.WriteHeader([]int{http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout}[n[kind]-1])
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{}`)
	}, `
		for (const eventType of ['step_completed', 'step_started']) {
			await world.events.create('wrun_1', { eventType, correlationId: 'step_1' }).then(() => console.log('done'), (e) => console.log(e.status));
		}
		process.exit();`)
	if got != "done\n500\n" || n["step_completed"] != 4 || n["step_started"] != 1 {
		t.Errorf("it prints %q after %v requests", got, n)
	}
}

// The 4.x line finds the code of a failed run in its error.
func TestRuns_errorCode(t *testing.T) {
	got := run(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		one := `{"status":"failed","error":{"message":"m"},"errorCode":"USER_ERROR"}`
		if strings.HasSuffix(r.URL.Path, "/runs") {
			one = `{"data":[` + one + `,{"status":"running"}],"cursor":null,"hasMore":false}`
		}
		fmt.Fprint(w, one)
	}, `
		const { data } = await world.runs.list();
		for (const run of [await world.runs.get('wrun_1'), await world.runs.waitForTerminalStatus('wrun_1'), ...data]) console.log(JSON.stringify(run.error));
		process.exit();`)
	const one = `{"message":"m","code":"USER_ERROR"}` + "\n"
	if want := one + one + one + "undefined\n"; got != want {
		t.Errorf("it prints %q, want %q", got, want)
	}
}
