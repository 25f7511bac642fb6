package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/guest/agent"
	"github.com/cayhq/cay/sandbox"
)

const (
	imageHosts = "10.0.0.1\timage\n"
	freshHosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n127.0.1.1\tone\n"
	oneID      = "11111111111111111111111111111111"
	twoID      = "22222222222222222222222222222222"
)

// recordOf is a guest.IdentityFile.
func recordOf(t *testing.T, who guest.Identity) string {
	t.Helper()
	b, err := json.Marshal(who)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A machine that starts replaces the files of an image, but in saved files it replaces
// only the lines that it wrote itself.
func TestBoot(t *testing.T) {
	one := guest.Identity{Sandbox: "sbx_1", Hostname: "one", MachineID: oneID, Nameserver: "192.0.2.1"}
	two := guest.Identity{Sandbox: "sbx_2", Hostname: "two", MachineID: twoID, Nameserver: "192.0.2.2"}
	resumed := guest.Identity{Sandbox: "sbx_1", Hostname: "one", Nameserver: "192.0.2.1"}
	renamed := guest.Identity{Sandbox: "sbx_1", Hostname: "uno", Nameserver: "192.0.2.1"}
	saved := map[string]string{
		guest.IdentityFile: recordOf(t, one), "/etc/hostname": "one\n", "/etc/machine-id": oneID + "\n",
		"/etc/hosts": freshHosts, "/etc/resolv.conf": "nameserver 192.0.2.1\n",
	}
	edited := map[string]string{
		guest.IdentityFile: recordOf(t, one), "/etc/hostname": "mine\n", "/etc/machine-id": "theirs\n",
		"/etc/hosts":       "127.0.1.1\tone one.local\n192.0.2.9\tdb\n127.0.1.1\tone\n# end",
		"/etc/resolv.conf": "search example.com\nnameserver 192.0.2.1\nnameserver 192.0.2.10\n",
	}
	own := map[string]string{ // no line of ours is left
		guest.IdentityFile: recordOf(t, one), "/etc/hostname": "mine\n",
		"/etc/hosts": "127.0.0.1 localhost\n", "/etc/resolv.conf": "->/etc/elsewhere", "/etc/elsewhere": "nameserver 192.0.2.1\n",
	}
	for name, test := range map[string]struct {
		files map[string]string
		who   guest.Identity
		want  map[string]string
		named string
	}{
		"new": {map[string]string{"/etc/hosts": imageHosts, "/etc/hostname": "image\n", "/etc/resolv.conf": "->/nowhere"}, one,
			map[string]string{"/etc/hosts": freshHosts, "/etc/hostname": "one\n", "/etc/machine-id": oneID + "\n", "/etc/resolv.conf": "nameserver 192.0.2.1\n"}, "one"},
		"empty image": {nil, one, map[string]string{"/etc/hosts": freshHosts, "/etc/hostname": "one\n"}, "one"},
		"bad record": {map[string]string{guest.IdentityFile: "{", "/etc/hosts": imageHosts}, one,
			map[string]string{"/etc/hosts": freshHosts}, "one"},
		"resumed": {saved, resumed, saved, "one"},
		"resumed, edited": {edited, resumed, map[string]string{"/etc/hostname": "mine\n", "/etc/machine-id": "theirs\n",
			"/etc/hosts": edited["/etc/hosts"], "/etc/resolv.conf": edited["/etc/resolv.conf"]}, "mine"},
		"resumed, own": {own, resumed, map[string]string{"/etc/hosts": own["/etc/hosts"], "/etc/hostname": "mine\n", "/etc/elsewhere": own["/etc/elsewhere"]}, "mine"},
		"renamed": {saved, renamed, map[string]string{"/etc/hostname": "uno\n", "/etc/machine-id": oneID + "\n",
			"/etc/hosts": strings.ReplaceAll(freshHosts, "one", "uno")}, "uno"},
		"renamed, edited": {edited, renamed, map[string]string{"/etc/hostname": "mine\n", "/etc/machine-id": "theirs\n",
			"/etc/hosts": "127.0.1.1\tone one.local\n192.0.2.9\tdb\n127.0.1.1\tuno\n# end"}, "mine"},
		"another": {saved, two, map[string]string{"/etc/hostname": "two\n", "/etc/machine-id": twoID + "\n",
			"/etc/hosts": strings.ReplaceAll(freshHosts, "one", "two"), "/etc/resolv.conf": "nameserver 192.0.2.2\n"}, "two"},
		"another, edited": {edited, two, map[string]string{"/etc/hostname": "two\n", "/etc/machine-id": twoID + "\n",
			"/etc/hosts":       "127.0.1.1\tone one.local\n192.0.2.9\tdb\n127.0.1.1\ttwo\n# end",
			"/etc/resolv.conf": "search example.com\nnameserver 192.0.2.2\nnameserver 192.0.2.10\n"}, "two"},
		"another, own": {own, two, map[string]string{"/etc/hosts": own["/etc/hosts"], "/etc/elsewhere": own["/etc/elsewhere"]}, "two"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := image(t, test.files)
			var named string
			s := newServer(t, agent.Config{Root: root, SetHostname: func(name string) error { named = name; return nil }})
			s.Boot(test.who)
			for file, want := range test.want {
				if file == guest.IdentityFile {
					continue
				}
				if got := read(t, root, file); got != want {
					t.Errorf("%s has %q, want %q", file, got, want)
				}
			}
			if named != test.named {
				t.Errorf("the machine is called %q, want %q", named, test.named)
			}
			var now guest.Identity
			if err := json.Unmarshal([]byte(read(t, root, guest.IdentityFile)), &now); err != nil {
				t.Fatal(err)
			}
			if now.Sandbox != test.who.Sandbox || now.Hostname != test.who.Hostname || now.BootID == "" || !guest.ValidMachineID(now.MachineID) {
				t.Errorf("the record is %+v", now)
			}
		})
	}
}

// Edits keep the owner and mode of a file.
func TestBoot_mode(t *testing.T) {
	t.Parallel()
	root := image(t, map[string]string{guest.IdentityFile: recordOf(t, guest.Identity{Sandbox: "a", Hostname: "one", MachineID: oneID}), "/etc/hosts": freshHosts})
	if err := os.Chmod(filepath.Join(root, "etc/hosts"), 0o664); err != nil {
		t.Fatal(err)
	}
	newServer(t, agent.Config{Root: root}).Boot(guest.Identity{Sandbox: "b", Hostname: "two"})
	info, err := os.Stat(filepath.Join(root, "etc/hosts"))
	if err != nil || info.Mode() != 0o664 || !strings.Contains(read(t, root, "/etc/hosts"), "two") {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
}

func newServer(t testing.TB, cfg agent.Config) *agent.Server {
	t.Helper()
	s, err := agent.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// become is a request for another machine.
func become() guest.IdentityRequest {
	return guest.IdentityRequest{Sandbox: "sbx_2", Hostname: "two", MachineID: twoID}
}

// A guest that becomes another machine accepts only the new token; its running commands
// continue.
func TestIdentify(t *testing.T) {
	t.Parallel()
	root := image(t, map[string]string{"/etc/hosts": imageHosts})
	var named string
	var server *agent.Server
	c, addr := serveServer(t, func(c *agent.Config) {
		c.Root, c.SetHostname = root, func(name string) error { named = name; return nil }
	}, &server)
	server.Boot(guest.Identity{Sandbox: "sbx_1", Hostname: "one"})
	old := clientOf(t, addr, "token")
	before, err := c.Health(t.Context())
	if err != nil || before.Sandbox != "sbx_1" {
		t.Fatal(before, err)
	}
	cmd, err := c.Start(t.Context(), sandbox.CommandParams{Argv: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Identify(t.Context(), become(), "new")
	if err != nil || res.Problem != "" {
		t.Fatal(res, err)
	}
	after, err := c.Health(t.Context())
	if err != nil || after.Sandbox != "sbx_2" || after.BootID == before.BootID || after.BootID != res.BootID {
		t.Fatal(after, err)
	}
	if named != "two" || read(t, root, "/etc/machine-id") != twoID+"\n" || !strings.Contains(read(t, root, "/etc/hosts"), "127.0.1.1\ttwo\n") {
		t.Errorf("called %q; %s", named, read(t, root, "/etc/hosts"))
	}
	var file guest.Identity
	if err := json.Unmarshal([]byte(read(t, root, guest.IdentityFile)), &file); err != nil || file != res.Identity {
		t.Errorf("the file has %+v, %v, want %+v", file, err, res.Identity)
	}
	if _, err := old.Health(t.Context()); cay.CodeOf(err) != cay.Unavailable || !strings.Contains(err.Error(), "token") {
		t.Errorf("with the old token: %v", err)
	}
	if err := c.WriteStdin(t.Context(), cmd.ID, strings.NewReader("on"), true); err != nil {
		t.Fatal(err)
	}
	if cmd, err = c.Wait(t.Context(), cmd.ID); err != nil || cmd.Exit.Code != 0 || cmd.OutputEnd != 2 {
		t.Errorf("%+v, %v", cmd, err)
	}
	// Repeated requests, also from clients without the new token, change nothing.
	for _, c := range []*guest.Client{c, clientOf(t, addr, "token"), clientOf(t, addr, "new")} {
		again, err := c.Identify(t.Context(), become(), "new")
		if err != nil || again != res {
			t.Errorf("got %+v, %v, want %+v", again, err, res)
		}
	}
	// The same sandbox keeps its machine id.
	req := become()
	req.Hostname, req.MachineID = "three", ""
	if again, err := c.Identify(t.Context(), req, "newer"); err != nil || again.MachineID != twoID || again.BootID == res.BootID {
		t.Errorf("got %+v, %v", again, err)
	}
	req.Sandbox = "sbx_3"
	if again, err := c.Identify(t.Context(), req, "newest"); err != nil || again.MachineID == twoID {
		t.Errorf("got %+v, %v", again, err)
	}
}

// Exactly one of several concurrent requests with the same token succeeds.
func TestIdentify_race(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, nil)
	var mu sync.Mutex
	var made []string
	var all sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		c := clientOf(t, addr, "token")
		all.Go(func() {
			req := become()
			req.Hostname = name
			if _, err := c.Identify(t.Context(), req, name); err == nil {
				mu.Lock()
				made = append(made, name)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(made) != 1 {
		t.Fatalf("made: %q", made)
	}
	if _, err := clientOf(t, addr, made[0]).Health(t.Context()); err != nil {
		t.Error(err)
	}
}

// If the answer is lost, the client finds out that the new token is valid.
func TestIdentify_lost(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, nil)
	dials := 0
	c := guest.NewClient(func(ctx context.Context) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if dials++; dials == 1 {
			return lossy{conn}, err
		}
		return conn, err
	}, "token")
	t.Cleanup(c.CloseIdleConnections)
	if _, err := c.Identify(t.Context(), become(), "new"); err != nil || dials != 2 {
		t.Fatal(dials, err)
	}
	if _, err := c.Health(t.Context()); err != nil {
		t.Error(err)
	}
}

// lossy is a connection that loses answers.
type lossy struct{ net.Conn }

func (c lossy) Read(p []byte) (int, error) {
	if _, err := c.Conn.Read(p); err != nil {
		return 0, err
	}
	return 0, errors.New("connection reset")
}

func TestIdentify_invalid(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, nil)
	for name, change := range map[string]func(*guest.IdentityRequest){
		"sandbox":    func(r *guest.IdentityRequest) { r.Sandbox = "" },
		"hostname":   func(r *guest.IdentityRequest) { r.Hostname = "a\nb" },
		"machine_id": func(r *guest.IdentityRequest) { r.MachineID = strings.ToUpper("abcdef") + twoID[6:] },
		"workdir":    func(r *guest.IdentityRequest) { r.WorkDir = "relative" },
	} {
		req := become()
		change(&req)
		if _, err := c.Identify(t.Context(), req, "new"); cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Health(t.Context()); err != nil {
		t.Error(err)
	}
}

// Files that cannot be written are reported; the others are written.
func TestIdentify_problem(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, func(c *agent.Config) { c.Root = image(t, map[string]string{"/etc/machine-id/directory": ""}) })
	var boots []string
	for range 2 {
		res, err := c.Identify(t.Context(), become(), "new")
		if err != nil || !strings.Contains(res.Problem, "write /etc/machine-id: file exists") && !strings.Contains(res.Problem, "write /etc/machine-id: is a directory") {
			t.Fatal(res.Problem, err)
		}
		boots = append(boots, res.BootID)
	}
	if boots[0] != boots[1] {
		t.Errorf("it has become two machines: %q", boots)
	}
	h, err := c.Health(t.Context())
	if err != nil || h.Problem == "" || h.Sandbox != "sbx_2" {
		t.Errorf("%+v, %v", h, err)
	}
}

// The defaults change, too.
func TestIdentify_workDir(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, nil)
	req := become()
	req.WorkDir = "/home/made"
	if res, err := c.Identify(t.Context(), req, "new"); err != nil || res.Problem != "" {
		t.Fatal(res, err)
	}
	cmd := wait(t, c, sandbox.CommandParams{Argv: []string{"true"}})
	if cmd.WorkDir != "/home/made" {
		t.Errorf("it runs in %s", cmd.WorkDir)
	}
}
