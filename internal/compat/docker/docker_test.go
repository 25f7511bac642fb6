package docker

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
)

// long is a name as workerd gives it.
const long = "workerd-08a617e6761fc54d-a-project-SandboxClass-d72e5f11f55259e6c61a9f5ed05198a847664ab41ddc478982e746a374175675"

func filter(f m) string {
	b, _ := json.Marshal(f)
	return url.QueryEscape(string(b))
}

func TestLife(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	labels := m{"dev.workerd.session": "08a617e6761fc54d", "empty": ""}
	id := b.create(long, "echo out; echo err >&2; exit 3", m{"Labels": labels, "Env": []string{"A=1"}})
	b.do("POST", "/containers/create?name="+long, m{"Image": "debian"}).want(409)
	b.do("POST", "/containers/create?name=other", m{"Image": "missing"}).want(404)
	b.do("GET", "/containers/nobody/json", nil).want(404)
	b.do("POST", "/containers/"+id+"/kill", nil).want(409)

	// A command that cannot start is refused at once, with the reason.
	none := b.do("POST", "/containers/create", m{"Image": "debian", "Cmd": []string{"no-such-program"}}).want(201).at("Id")
	if a := b.do("POST", "/containers/"+none+"/start", nil).want(400); !strings.Contains(a.at("message"), "no-such-program") {
		t.Errorf("the reason is %s", a.body)
	}
	b.do("DELETE", "/containers/"+none+"?force=1", nil).want(204)

	for ref, status := range map[string]int{long: 200, id: 200, id[:12]: 200, "/" + long: 200, long[:20]: 404} {
		b.do("GET", "/v1.47/containers/"+url.PathEscape(ref)+"/json", nil).want(status)
	}
	created := b.do("GET", "/containers/"+id+"/json", nil)
	if got := created.at("State.Status") + created.at("Name") + created.at("Config.Env"); got != "created/"+long+"[A=1]" {
		t.Errorf("it is %s", got)
	}
	b.start(id)
	if code := b.wait(long); code != "3" {
		t.Errorf("it exits with %s", code)
	}
	ended := b.do("GET", "/containers/"+id+"/json", nil)
	for _, at := range []string{"NetworkSettings.", "NetworkSettings.Networks.bridge."} {
		if got := ended.at(at+"IPAddress") + ended.at(at+"GlobalIPv6Address") + ended.at(at+"GlobalIPv6PrefixLen"); got != "127.0.0.10" {
			t.Errorf("%s has the addresses %s", at, got)
		}
	}
	if got := ended.at("State.Status") + ended.at("State.ExitCode"); got != "exited3" {
		t.Errorf("it is %s", got)
	}
	logs := frames(t, b.do("GET", "/containers/"+id+"/logs?stdout=1&stderr=1&follow=1", nil).want(200).body)
	if logs[1] != "out\n" || logs[2] != "err\n" {
		t.Errorf("it says %q", logs)
	}
	b.do("GET", "/containers/"+id+"/logs", nil).want(400)

	for f, n := range map[string]int{
		filter(m{"label": []string{"dev.workerd.session=08a617e6761fc54d"}}):  1,
		filter(m{"label": []string{"dev.workerd.session=08a617e6761fc54"}}):   0, // miniflare deletes what it finds
		filter(m{"label": m{"empty": true}}):                                  1,
		filter(m{"label": []string{"dev.workerd.session", "empty=", "no"}}):   0,
		filter(m{"ancestor": []string{"docker.io/library/debian:latest"}}):    1,
		filter(m{"name": []string{"workerd-"}, "status": []string{"exited"}}): 1,
		filter(m{"exited": []string{"3"}, "id": []string{id[:6]}}):            1,
		filter(m{"status": []string{"running"}}):                              0,
	} {
		var list []any
		if err := json.Unmarshal(b.do("GET", "/containers/json?all=1&filters="+f, nil).want(200).body, &list); err != nil || len(list) != n {
			t.Errorf("%s finds %d, want %d: %v", f, len(list), n, err)
		}
	}
	b.do("GET", "/containers/json?filters="+filter(m{"volume": []string{"x"}}), nil).want(400)
	b.do("POST", "/containers/"+id+"/rename?name=short", nil).want(204)
	b.do("GET", "/containers/"+long+"/json", nil).want(404)
	b.start("short") // again
	b.wait("short")
	b.do("DELETE", "/containers/short", nil).want(204)
	b.do("DELETE", "/containers/short", nil).want(404)
}

// A server that takes the place of another finds all that the other knew.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	port := sandboxtest.ServeEcho(t)
	key := strconv.Itoa(port) + "/tcp"
	ended := b.create("ended", "exit 5", nil)
	b.start(ended)
	b.wait(ended)
	id := b.create("runs", "read line; echo got $line; exit 4", m{
		"OpenStdin": true, "StdinOnce": true, "Labels": m{"k": "v"}, "ExposedPorts": m{key: m{}}, "HostConfig": m{"PublishAllPorts": true},
	})
	b.start(id)
	before := b.do("GET", "/containers/runs/json", nil).want(200)
	b.serve(sandboxtest.Default.TokenID)
	after := b.do("GET", "/containers/runs/json", nil).want(200)
	if !bytes.Equal(before.body, after.body) {
		t.Errorf("it was\n%s and is\n%s", before.body, after.body)
	}
	echo, err := net.Dial("tcp", "127.0.0.1:"+after.at("NetworkSettings.Ports."+key+".0.HostPort"))
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Talk(t, echo)
	echo.Close()
	s := b.upgrade("/containers/runs/attach?stream=1&stdin=1&stdout=1", "")
	io.WriteString(s.conn, "this\n")
	s.conn.CloseWrite()
	if got := frames(t, s.rest())[1]; got != "got this\n" {
		t.Errorf("it says %q", got)
	}
	if code := b.wait("runs"); code != "4" {
		t.Errorf("it exits with %s", code)
	}
	if code := b.do("GET", "/containers/ended/json", nil).at("State.ExitCode"); code != "5" {
		t.Errorf("what had ended has code %s", code)
	}
	b.serve(sandboxtest.ProjectA.TokenID)
	b.do("GET", "/containers/runs/json", nil).want(404)
	if list := b.do("GET", "/containers/json?all=1", nil).want(200); strings.TrimSpace(string(list.body)) != "[]" {
		t.Errorf("another project sees %s", list.body)
	}
}

// The order of "docker run --rm": attach, wait, start; all output arrives, and the
// wait is answered when the container is gone.
func TestRun(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	id := b.create("run", "cat; echo err >&2; exit 7", m{"OpenStdin": true, "StdinOnce": true, "HostConfig": m{"AutoRemove": true}})
	s := b.upgrade("/containers/"+id+"/attach?stream=1&stdin=1&stdout=1&stderr=1", "")
	if !strings.HasPrefix(s.head, "HTTP/1.1 101 ") || !strings.Contains(s.head, typeFrames) {
		t.Fatalf("the header is %q", s.head)
	}
	removed := b.upgrade("/containers/"+id+"/wait?condition=removed", "")
	b.start(id)
	io.WriteString(s.conn, "in\n")
	s.conn.CloseWrite()
	if got := frames(t, s.rest()); got[1] != "in\n" || got[2] != "err\n" {
		t.Errorf("it says %q", got)
	}
	if got := removed.object(); got != `{"StatusCode":7}` {
		t.Errorf("the wait says %q", got)
	}
	b.do("GET", "/containers/run/json", nil).want(404)
}

func TestStop(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	ready := func(id string) {
		t.Helper()
		s := b.upgrade("/containers/"+id+"/attach?logs=1&stream=1&stdout=1", "")
		if _, err := io.ReadFull(s.r, make([]byte, 8+len("up\n"))); err != nil {
			t.Fatal(err)
		}
		s.conn.Close()
	}
	id := b.create("polite", "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done", nil)
	b.start(id)
	b.do("POST", "/containers/"+id+"/start", nil).want(304)
	b.do("DELETE", "/containers/"+id, nil).want(409)
	ready(id)
	b.do("POST", "/containers/"+id+"/stop?t=60", nil).want(204)
	b.do("POST", "/containers/"+id+"/stop", nil).want(304)
	if code := b.do("GET", "/containers/"+id+"/json", nil).at("State.ExitCode"); code != "9" {
		t.Errorf("the polite one exits with %s", code)
	}
	id = b.create("stubborn", "trap '' TERM; echo up; while :; do sleep 0.05; done", nil)
	b.start(id)
	ready(id)
	b.do("POST", "/containers/"+id+"/kill?signal=NONE", nil).want(400)
	b.do("POST", "/containers/"+id+"/stop?t=0", nil).want(204)
	if code := b.wait(id); code != "137" {
		t.Errorf("the stubborn one exits with %s", code)
	}
	id = b.create("again", "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done", nil)
	b.start(id)
	ready(id)
	b.do("POST", "/containers/"+id+"/restart", nil).want(204)
	if st := b.do("GET", "/containers/"+id+"/json", nil).at("State.Status"); st != "running" {
		t.Errorf("it is %s", st)
	}
	b.do("POST", "/containers/"+id+"/kill?signal=9", nil).want(204)
	if code := b.wait(id); code != "137" {
		t.Errorf("it exits with %s", code)
	}
	id = b.create("forced", "sleep 60", nil)
	b.start(id)
	w := b.upgrade("/containers/"+id+"/wait", "")
	b.do("DELETE", "/containers/"+id+"?force=true", nil).want(204)
	if got := w.object(); got != `{"StatusCode":137}` {
		t.Errorf("the wait says %q", got)
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	id := b.create("box", "sleep 60", nil)
	b.do("POST", "/containers/box/exec", m{"Cmd": []string{"true"}}).want(409)
	b.start(id)
	b.do("POST", "/containers/box/exec", m{"Cmd": []string{"true"}, "Privileged": true}).want(400)
	b.do("POST", "/containers/box/exec", m{"Cmd": []string{}}).want(400)
	make := func(body m) string { t.Helper(); return b.do("POST", "/containers/box/exec", body).want(201).at("Id") }

	e := make(m{"Cmd": []string{"sh", "-c", "cat; echo $E >&2; exit 3"}, "Env": []string{"E=err"}, "AttachStdin": true, "AttachStdout": true, "AttachStderr": true})
	s := b.upgrade("/exec/"+e+"/start", `{"Detach":false,"Tty":false}`)
	if !strings.HasPrefix(s.head, "HTTP/1.1 101 ") {
		t.Fatalf("the header is %q", s.head)
	}
	if got := b.do("GET", "/exec/"+e+"/json", nil).at("Running"); got != "true" {
		t.Errorf("running: %s", got)
	}
	io.WriteString(s.conn, "in\n")
	s.conn.CloseWrite()
	if got := frames(t, s.rest()); got[1] != "in\n" || got[2] != "err\n" {
		t.Errorf("it says %q", got)
	}
	if a := b.do("GET", "/exec/"+e+"/json", nil); a.at("Running")+a.at("ExitCode") != "false3" {
		t.Errorf("it is %s", a.body)
	}
	b.do("POST", "/exec/"+e+"/start", m{}).want(409)

	e = make(m{"Cmd": []string{"sh", "-c", "stty size; exit 2"}, "Tty": true, "AttachStdout": true, "ConsoleSize": []int{10, 20}})
	s = b.upgrade("/exec/"+e+"/start", `{"Tty":true}`)
	if got := string(s.rest()); got != "10 20\r\n" || !strings.Contains(s.head, typeRaw) {
		t.Errorf("on a terminal it says %q after %q", got, s.head)
	}
	e = make(m{"Cmd": []string{"sh", "-c", "exit 6"}})
	b.do("POST", "/exec/"+e+"/start", m{"Detach": true}).want(200)
	for b.do("GET", "/exec/"+e+"/json", nil).at("Running") == "true" {
	}
	if code := b.do("GET", "/exec/"+e+"/json", nil).at("ExitCode"); code != "6" {
		t.Errorf("the detached one exits with %s", code)
	}
	e = make(m{"Cmd": []string{"no-such-program"}})
	s = b.upgrade("/exec/"+e+"/start", "{}")
	if got := frames(t, s.rest()); !strings.Contains(got[2], "executable file not found in $PATH") {
		t.Errorf("of a program that is not there it says %q", got)
	}
	if code := b.do("GET", "/exec/"+e+"/json", nil).at("ExitCode"); code != "127" {
		t.Errorf("a program that is not there exits with %s", code)
	}
	b.do("GET", "/exec/none/json", nil).want(404)
}

func TestLogs(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	id := b.create("log", `printf '1\n2\n3\n4\n'; read x`, m{"OpenStdin": true})
	b.start(id)
	s := b.upgrade("/containers/log/attach?logs=1&stream=1&stdout=1", "")
	if _, err := io.ReadFull(s.r, make([]byte, 8+len("1\n2\n3\n4\n"))); err != nil {
		t.Fatal(err)
	}
	s.conn.Close()
	resp, err := b.http.Get("http://localhost/containers/log/logs?stdout=1&follow=1&tail=2")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b.do("POST", "/containers/log/kill", nil).want(204)
	if text, err := io.ReadAll(resp.Body); err != nil || frames(t, text)[1] != "3\n4\n" {
		t.Errorf("who follows the last two lines reads %q, %v", text, err)
	}
	b.wait(id)
	for query, want := range map[string]string{"tail=2": "3\n4\n", "tail=0": "", "tail=all": "1\n2\n3\n4\n", "tail=9&follow=1": "1\n2\n3\n4\n"} {
		if got := frames(t, b.do("GET", "/containers/log/logs?stdout=1&"+query, nil).want(200).body)[1]; got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	b.do("GET", "/containers/log/logs?stdout=1&tail=x", nil).want(400)
	for _, query := range []string{"since=yesterday", "until=1.x", "since=-1", "since=1.1234567890"} {
		b.do("GET", "/containers/log/logs?stdout=1&"+query, nil).want(400)
	}
	id = b.create("tty", "echo raw", m{"Tty": true})
	b.start(id)
	b.wait(id)
	if a := b.do("GET", "/containers/tty/logs?stdout=1", nil); string(a.body) != "raw\r\n" || a.header.Get("Content-Type") != typeRaw {
		t.Errorf("of a terminal: %q %s", a.body, a.header.Get("Content-Type"))
	}
}

func TestLogs_times(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	before := time.Now().Truncate(time.Second)
	// Each write follows another stream's, so that the sandbox keeps it apart, with its own time.
	id := b.create("log", `echo first; read x; echo wrong >&2; read x; printf sec; read x; echo more >&2; read x; printf 'ond\nthird\n'; read x`, m{"OpenStdin": true})
	b.start(id)
	s := b.upgrade("/containers/log/attach?logs=1&stream=1&stdout=1&stderr=1&stdin=1", "")
	send := func() {
		t.Helper()
		if _, err := io.WriteString(s.conn, "\n"); err != nil {
			t.Fatal(err)
		}
	}
	for i, text := range []string{"first\n", "wrong\n", "sec", "more\n", "ond\nthird\n"} {
		if i > 0 {
			send()
		}
		if _, err := io.ReadFull(s.r, make([]byte, 8+len(text))); err != nil {
			t.Fatal(err)
		}
	}
	unix := func(at time.Time) string { return fmt.Sprintf("%d.%09d", at.Unix(), at.Nanosecond()) }
	get := func(query string) map[byte]string {
		t.Helper()
		return frames(t, b.do("GET", "/containers/log/logs?stdout=1&stderr=1&"+query, nil).want(200).body)
	}
	check := func(query, want string) {
		t.Helper()
		if got := get(query); got[1] != want {
			t.Errorf("%s: %q, want %q", query, got[1], want)
		}
	}
	times := func() []time.Time {
		t.Helper()
		stamped := get("timestamps=1")
		var at []time.Time
		last := before
		for i, line := range strings.Split(strings.TrimSuffix(stamped[1], "\n"), "\n") {
			stamp, text, _ := strings.Cut(line, " ")
			when, err := time.Parse(stampFormat, stamp)
			if err != nil || len(stamp) != len("2006-01-02T15:04:05.000000000Z") || when.Before(last) || text != []string{"first", "second", "third"}[i] {
				t.Fatalf("line %d is %q (%v), after %v", i, line, err, last)
			}
			at, last = append(at, when), when
		}
		if len(at) != 3 || !at[0].Before(at[1]) || !at[1].Before(at[2]) || !strings.HasSuffix(stamped[2], " more\n") {
			t.Fatalf("got %q", stamped)
		}
		return at
	}
	at := times()
	tests := func() {
		t.Helper()
		check("since="+unix(at[0]), "first\nsecond\nthird\n")
		check("since="+unix(at[1]), "second\nthird\n")
		check("since="+unix(at[2]), "third\n")
		check("since="+unix(at[2].Add(1)), "")
		check("since=0&until="+unix(at[1]), "first\nsecond\n")
		check("until="+unix(at[0].Add(-1)), "")
		check("since="+unix(at[1])+"&until="+unix(at[1]), "second\n")
		check("tail=3&since="+unix(at[1]), "second\nthird\n")
		check("follow=1&until="+unix(at[1]), "first\nsecond\n")
	}
	tests()
	// A client that follows until a later time gets its answer at that time.
	check("follow=1&since="+unix(at[2])+"&until="+unix(time.Now().Add(100*time.Millisecond)), "third\n")
	check("follow=1&tail=1&until="+unix(time.Now().Add(100*time.Millisecond)), "third\n")
	send()
	b.wait(id)
	s.conn.Close()
	// The times outlive the sandbox's session.
	if after := times(); !slices.Equal(after, at) {
		t.Errorf("the times were %v, and are %v when it has ended", at, after)
	}
	tests()
}

func TestArchive(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.create("files", "true", nil) // before the start, as workerd does it
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	w.WriteHeader(&tar.Header{Name: "in/a.txt", Mode: 0o640, Size: 5, Uid: os.Getuid(), Gid: os.Getgid()})
	io.WriteString(w, "hello")
	w.Close()
	b.do("PUT", "/containers/files/archive?path=/", archive.Bytes()).want(200)
	b.do("PUT", "/containers/files/archive?path=/none", archive.Bytes()).want(404)
	b.do("PUT", "/containers/files/archive?path=/in/a.txt", archive.Bytes()).want(400)
	head := b.do("HEAD", "/containers/files/archive?path=/in/a.txt", nil).want(200)
	text, err := base64.StdEncoding.DecodeString(head.header.Get("X-Docker-Container-Path-Stat"))
	var stat pathStat
	if err != nil || json.Unmarshal(text, &stat) != nil || stat.Name != "a.txt" || stat.Size != 5 || stat.Mode != 0o640 {
		t.Errorf("the file is %s, %v", text, err)
	}
	r := tar.NewReader(bytes.NewReader(b.do("GET", "/containers/files/archive?path=/in", nil).want(200).body))
	names := []string{}
	for {
		h, err := r.Next()
		if err != nil {
			break
		}
		names = append(names, strings.TrimSuffix(h.Name, "/"))
	}
	if !slices.Equal(names, []string{"in", "in/a.txt"}) {
		t.Errorf("the archive has %q", names)
	}
	names = nil
	for r := tar.NewReader(bytes.NewReader(b.do("GET", "/containers/files/archive?path=/in/.", nil).want(200).body)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if got := strings.Join(names, " "); got != "./ ./a.txt" {
		t.Errorf("the archive of what is in the directory has %q", names)
	}
	b.do("GET", "/containers/files/archive?path=/none", nil).want(404)
	b.do("GET", "/containers/files/archive", nil).want(400)
}

// Each field of the policy does what its rule says.
func TestPolicy(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	try := func(name string, value any) answer {
		t.Helper()
		return b.do("POST", "/containers/create", m{"Image": "debian", "HostConfig": m{name: value}})
	}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		if rules[name].verdict != refused {
			continue
		}
		if a := try(name, []string{"/:/host"}); a.status != 400 || !strings.Contains(a.at("message"), "cay refuses HostConfig."+name) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	raw := map[string]json.RawMessage{"Nonsense": json.RawMessage("1"), "Binds": json.RawMessage("null"), "Devices": json.RawMessage("[]")}
	want := 1
	for name, r := range rules {
		if r.verdict == warned {
			raw[name] = json.RawMessage("[1]")
			want++
		}
	}
	if warnings, err := judge(raw); err != nil || len(warnings) != want {
		t.Errorf("there are %d warnings of %d: %v", len(warnings), want, err)
	}
	for _, name := range hostModes {
		for _, mode := range []string{"host", "container:other"} {
			want := 400
			if name == "PidMode" && mode == "host" {
				want = 201
			}
			try(name, mode).want(want)
		}
	}
	try("NetworkMode", "host").want(400)
	try("NetworkMode", "mine").want(404)
	try("NetworkMode", "container:nobody").want(404)
	try("PortBindings", m{"80/tcp": []m{{"HostIp": "192.0.2.1", "HostPort": "80"}}}).want(400)
	try("PortBindings", m{"80/udp": []m{{}}}).want(400)
	try("PortBindings", m{"80/tcp": []m{{"HostPort": "1-9"}}}).want(400)
	if a := try("RestartPolicy", m{"Name": "on-failure"}).want(201); !strings.Contains(a.at("Warnings"), "stays exited") {
		t.Errorf("the warnings are %s", a.at("Warnings"))
	}
	id := try("NetworkMode", "none").want(201).at("Id")
	c, err := b.server.find(t.Context(), id)
	if err != nil || c.box.Network.Mode != "deny-all" {
		t.Errorf("without a network it has %+v, %v", c.box.Network, err)
	}
	b.do("POST", "/containers/create?name=-x", m{"Image": "debian"}).want(400)
	b.do("POST", "/containers/create", m{"Image": "debian", "Labels": m{"big": strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyz", 1)}, "Cmd": noise(60 << 10)}).want(400)
}

// noise is a text that cannot be compressed much.
func noise(n int) []string {
	var b strings.Builder
	x := uint64(88172645463325252)
	for b.Len() < n {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b.WriteString(strconv.FormatUint(x, 36))
	}
	return []string{b.String()}
}

func TestSystem(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if info, err := os.Stat(b.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v", info.Mode(), err)
	}
	if _, err := Listen(t.Context(), b.path); err == nil {
		t.Error("two servers have one socket")
	}
	if a := b.do("GET", "/_ping", nil).want(200); string(a.body) != "OK" || a.header.Get("Api-Version") != apiVersion {
		t.Errorf("ping: %s %v", a.body, a.header)
	}
	b.do("HEAD", "/v1.24/_ping", nil).want(200)
	b.do("GET", "/v1.99/_ping", nil).want(400)
	b.do("GET", "/nowhere", nil).want(404)
	if v := b.do("GET", "/version", nil).want(200).at("ApiVersion"); v != apiVersion {
		t.Errorf("version %s", v)
	}
	if v := b.do("GET", "/v1.47/info", nil).want(200).at("SecurityOptions"); v != "[name=gvisor]" {
		t.Errorf("security options %s", v)
	}
	if g := b.do("GET", "/networks/bridge", nil).want(200).at("IPAM.Config.0.Gateway"); g != "127.0.0.1" {
		t.Errorf("the gateway is %s", g)
	}
	b.do("GET", "/networks/other", nil).want(404)
	if v := b.do("GET", "/volumes?filters="+filter(m{"name": []string{"workerd-snap-"}}), nil).want(200).at("Volumes"); v != "[]" {
		t.Errorf("volumes %s", v)
	}
	if v := b.do("GET", "/images/json?filters="+filter(m{"reference": []string{"alpine"}}), nil).want(200).at("0.RepoTags"); v != "[alpine:3.22]" {
		t.Errorf("alpine is %s", v)
	}
	if v := b.do("GET", "/images/docker.io/library/debian:13/json", nil).want(200).at("Config.Cmd.0"); v != "sh" {
		t.Errorf("its command is %s", v)
	}
	b.do("GET", "/images/missing/json", nil).want(404)
	if v := b.do("GET", "/images/debian/json", nil).want(200).at("Config.ExposedPorts"); v != "map[80/tcp:map[]]" {
		t.Errorf("exposed ports: %s", v)
	}
	if v := b.do("GET", "/images/debian/json", nil).want(200).at("Config.Labels.made"); v != "here" {
		t.Errorf("label: %s", v)
	}
	b.do("POST", "/images/docker.io/library/debian:13/tag?repo=app&tag=2", nil).want(201)
	b.do("POST", "/images/debian/tag", nil).want(400)
	b.do("POST", "/images/missing/tag?repo=app&tag=2", nil).want(404)
	b.do("POST", "/images/debian/prune", nil).want(501)
	b.do("DELETE", "/images/team/app:1", nil).want(200)
	for ref, want := range map[string]string{"debian": "Downloading", "imported:1": "made here", "cloudflare/proxy-everything:3cb1195": "up to date"} {
		if a := b.do("POST", "/images/create?fromImage="+url.QueryEscape(ref), nil).want(200); !strings.Contains(string(a.body), want) {
			t.Errorf("a pull of %s says %s", ref, a.body)
		}
	}
	b.do("POST", "/images/create?fromImage=debian&platform=linux/s390x", nil).want(400)
	var routes []string
	for pattern := range b.server.table() {
		routes = append(routes, pattern)
	}
	slices.SortFunc(routes, func(a, b string) int {
		_, pa, _ := strings.Cut(a, " ")
		_, pb, _ := strings.Cut(b, " ")
		return strings.Compare(pa+a, pb+b)
	})
	golden, err := os.ReadFile("testdata/routes.txt")
	if got := strings.Join(routes, "\n") + "\n"; err != nil || got != string(golden) {
		t.Errorf("testdata/routes.txt is not the list of routes, which is (%v)\n%s", err, got)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	conn, err := net.Dial("unix", b.path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "GET /events?filters="+filter(m{"event": []string{"die"}, "label": []string{"k=v"}})+" HTTP/1.0\r\n\r\n")
	head := make([]byte, len("HTTP/1.0 200 OK"))
	if _, err := io.ReadFull(conn, head); err != nil || string(head) != "HTTP/1.0 200 OK" {
		t.Fatalf("%s %v", head, err)
	}
	for _, label := range []string{"x", "v"} {
		id := b.create("", "exit 4", m{"Labels": m{"k": label}})
		b.start(id)
		b.wait(id)
	}
	var seen strings.Builder
	for buf := make([]byte, 1024); !strings.Contains(seen.String(), `"exitCode":"4"`); {
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatalf("%v after %s", err, &seen)
		}
		seen.Write(buf[:n])
	}
	if strings.Contains(seen.String(), `"k":"x"`) || strings.Contains(seen.String(), `"Action":"start"`) {
		t.Errorf("it says %s", &seen)
	}
	b.do("GET", "/events?since=1", nil).want(501)
}

const helper = "CAY_DOCKER_TEST_HELPER"

// TestMain becomes a client that creates a container of workerd and stays, if told so.
func TestMain(m *testing.M) {
	if path := os.Getenv(helper); path != "" {
		c, err := net.Dial("unix", path)
		if err != nil {
			panic(err)
		}
		body := `{"Image":"debian","Labels":{"dev.workerd.session":"s"}}`
		io.WriteString(c, "POST /containers/create?name=orphan HTTP/1.0\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
		io.Copy(os.Stdout, c)
		os.Stdout.Close()
		io.Copy(io.Discard, os.Stdin) // until it is killed
		return
	}
	leaktest.Main(m)
}

// A container of a workerd that was killed is removed; others are not.
func TestSweep(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.create("kept", "true", m{"Labels": m{sessionLabel: "mine"}}) // of this process
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helper+"="+b.path)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if said, err := io.ReadAll(out); err != nil || !strings.Contains(string(said), " 201 ") {
		t.Errorf("the client is told %s, %v", said, err)
	}
	if err := b.server.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	b.do("GET", "/containers/orphan/json", nil).want(200)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // which says that it was killed
	// The server removes it without being told.
	b.do("POST", "/containers/orphan/wait?condition=removed", nil)
	b.do("GET", "/containers/orphan/json", nil).want(404)
	b.do("GET", "/containers/kept/json", nil).want(200)
	b.create("other", "true", nil)
	if err := b.server.RemoveSessions(t.Context()); err != nil {
		t.Error(err)
	}
	b.do("GET", "/containers/kept/json", nil).want(404)
	b.do("GET", "/containers/other/json", nil).want(200)
}

func TestListen(t *testing.T) {
	dir, err := os.MkdirTemp("", "cay")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, "/" + strings.Repeat("x", 120)} {
		if l, err := Listen(t.Context(), path); err == nil {
			l.Close()
			t.Errorf("it listens on %s", path)
		}
	}
	stale := filepath.Join(dir, "new", "stale")
	for range 2 { // the second finds a socket that nobody listens on
		l, err := Listen(t.Context(), stale)
		if err != nil {
			t.Fatal(err)
		}
		l.(*listener).UnixListener.Close()
	}
}
