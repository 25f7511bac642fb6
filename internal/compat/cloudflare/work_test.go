package cloudflare

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

func TestExec(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.box()
	s.exec(box, `{"argv":["echo","hi"]}`).want(t, "hi\n", "", "0")
	s.exec(box, `{"argv":["printf","a b  c"]}`).want(t, "a b  c", "", "0") // byte for byte
	s.shell(box, "echo out; echo err >&2; exit 3").want(t, "out\n", "err\n", "3")
	s.shell(box, "kill -9 $$").want(t, "", "", "137")
	s.shell(box, "cat").want(t, "", "", "0") // its input is empty
	s.shell(box, `printf '\377\000\342\202\254\342'`).want(t, "\xff\x00€\xe2", "", "0")
	s.exec(box, `{"argv":["no-such-program"]}`).want(t, "", "*", "127")
	s.exec(box, `{"argv":["/no/such"]}`).want(t, "", "*", "127")
	s.exec(box, `{"argv":["type","cd"]}`).want(t, "cd is a shell builtin\n", "", "0")
	s.exec(box, `{"argv":["echo","$HOME","it's","*"]}`).want(t, "$HOME it's *\n", "", "0")

	s.shell(box, "mkdir -p sub").want(t, "", "", "0")
	for _, cwd := range []string{"sub", "/workspace/sub", "./x/../sub"} {
		got := s.exec(box, `{"argv":["pwd"],"cwd":"`+cwd+`"}`)
		if filepath.Base(strings.TrimSpace(got.stdout)) != "sub" {
			t.Errorf("%s: %+v", cwd, got)
		}
	}
	if got := s.exec(box, `{"argv":["pwd"],"cwd":"missing"}`); got.exit != `{"exit_code":1}` || !strings.Contains(got.stderr, "missing") {
		t.Errorf("%+v", got)
	}
	got := s.exec(box, `{"argv":["sleep","600"],"timeout_ms":100}`)
	got.want(t, "", "Command timed out after 100ms\n", "124")
	s.exec(box, `{"argv":["true"],"timeout_ms":1.5}`).want(t, "", "*", "0")
}

func TestExec_Refused(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const box = "/v1/sandbox/nobody"
	for _, c := range []struct {
		body   string
		status int
		text   string
	}{
		{"not json", 400, "Invalid JSON body"},
		{"", 400, "argv must be a non-empty array"},
		{"{}", 400, "argv must be a non-empty array"},
		{`{"argv":[]}`, 400, "argv must be a non-empty array"},
		{`{"argv":"ls"}`, 400, "argv"},
		{`{"argv":["ls",7]}`, 400, "argv"},
		{`{"argv":["ls"],"cwd":"/tmp"}`, 403, "/tmp"},
		{`{"argv":["ls"],"cwd":"/workspace/../../etc"}`, 403, "within /workspace"},
		{`{"argv":["ls"],"cwd":"/workspacex"}`, 403, "within /workspace"},
		{`{"argv":["ls"],"cwd":7}`, 400, "cwd"},
		{`{"argv":["ls"],"timeout_ms":0}`, 400, "timeout_ms is 0"},
		{`{"argv":["ls"],"timeout_ms":-5}`, 400, "timeout_ms is -5"},
		{`{"argv":["ls"],"timeout_ms":1e300}`, 400, "timeout_ms"},
		{`{"argv":["ls"],"timeout_ms":"1"}`, 400, "timeout_ms"},
	} {
		s.refused("POST", box+"/exec", c.body, c.status, codeInvalid, c.text)
	}
	if n := len(s.all(sandboxtest.ProjectA)); n != 0 {
		t.Errorf("%d sandboxes were made", n)
	}
	s.refused("POST", s.box()+"/exec", `{"argv":[""]}`, 400, codeInvalid, "argv")
	s.refused("POST", s.box()+"/exec", `{"argv":["a\u0000b"]}`, 400, codeInvalid, "NUL")
}

// A client that leaves ends its command with all of its process group.
func TestExec_Left(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.box()
	ctx, leave := context.WithCancel(t.Context())
	// The grandchild holds the other end of the pipe for as long as it lives.
	s.shell(box, "mkfifo pipe").want(t, "", "", "0")
	resp := s.request(ctx, mine, "POST", box+"/exec", strings.NewReader(`{"argv":["/bin/sh","-c","(echo up; exec cat > pipe < /dev/zero) & wait"]}`))
	if _, err := io.ReadFull(resp.Body, make([]byte, len("event: stdout"))); err != nil {
		t.Fatal(err)
	}
	bound, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	held := s.request(bound, mine, "POST", box+"/exec", strings.NewReader(`{"argv":["/bin/sh","-c","exec 3< pipe; echo open; cat <&3 > /dev/null; echo released"]}`))
	if _, err := io.ReadFull(held.Body, make([]byte, len("event: stdout\ndata: b3Blbgo=\n\n"))); err != nil {
		t.Fatal(err)
	}
	leave()
	readEvents(t, held.Body).want(t, "released\n", "", "0")

	owner := sandboxtest.As(t.Context(), sandboxtest.ProjectA)
	all, err := s.ListCommands(owner, strings.TrimPrefix(box, "/v1/sandbox/"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if strings.Contains(strings.Join(c.Argv, " "), "exec cat") {
			if c, err := s.Wait(owner, c.SandboxID, c.ID); err != nil || c.Exit.Signal != 15 { // why it ended is kept
				t.Errorf("%+v %v", c, err)
			}
		}
	}
}

// A stream whose sandbox is deleted ends with an error, not with an exit.
func TestExec_Deleted(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.box()
	resp := s.request(t.Context(), mine, "POST", box+"/exec", strings.NewReader(`{"argv":["/bin/sh","-c","echo up; exec sleep 600"]}`))
	if _, err := io.ReadFull(resp.Body, make([]byte, len("event: stdout\ndata: dXAK\n\n"))); err != nil {
		t.Fatal(err)
	}
	s.must("DELETE", box, "")
	got := readEvents(t, resp.Body)
	if got.last != "error" && got.exit != `{"exit_code":137}` {
		t.Errorf("the stream ends with %+v", got)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.box()
	binary := string([]byte{0, 255, 128, '\n', 0xe2}) + strings.Repeat("x", 1<<20)
	if a := s.must("PUT", box+"/file/workspace/deep/er/raw.bin", binary); a.body != "{\"ok\":true}\n" {
		t.Errorf("got %s", a.body)
	}
	a := s.must("GET", box+"/file/workspace/deep/er/raw.bin", "")
	if a.body != binary || a.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%d bytes of %s", len(a.body), a.header)
	}
	s.must("PUT", box+"/file/workspace/empty", "")
	if a := s.must("GET", box+"/file/workspace/empty", ""); a.body != "" {
		t.Errorf("got %q", a.body)
	}
	s.must("PUT", box+"/file/workspace/a%20b%2Fc%25", "odd")
	s.shell(box, "cat 'a b/c%'").want(t, "odd", "", "0")

	s.refused("GET", box+"/file/workspace/missing", "", 404, codeFileNotFound, "missing")
	s.refused("GET", box+"/file/workspace/deep", "", 404, codeFileNotFound, "deep")
	s.refused("PUT", box+"/file/workspace/deep", "x", 502, codeArchiveWrite, "deep")
	s.refused("PUT", box+"/file/workspace/empty/below", "x", 502, codeArchiveWrite, "below")
	for _, path := range []string{"tmp/secret", "workspace%2F..%2Ftmp%2Fsecret", "%2e%2e/etc/passwd", "workspacex/a", "etc/passwd"} {
		for _, method := range []string{"GET", "PUT"} {
			s.refused(method, box+"/file/"+path, "", 403, codeInvalid, "within /workspace")
		}
	}
	s.refused("GET", box+"/file/", "", 400, codeInvalid, "must not be empty")

	large := make([]byte, maxUpload+1)
	if a := s.do(mine, "PUT", box+"/file/workspace/large", string(large)); a.status != 413 || a.at("code") != codeTooLarge {
		t.Errorf("%d %s", a.status, a.body)
	}
	// Without a length the file is refused when its end does not come, and nothing of it stays.
	resp := s.request(t.Context(), mine, "PUT", box+"/file/workspace/large", io.MultiReader(bytes.NewReader(large)))
	if resp.StatusCode != 413 {
		t.Errorf("status %d", resp.StatusCode)
	}
	s.refused("GET", box+"/file/workspace/large", "", 404, codeFileNotFound, "large")
	s.must("PUT", box+"/file/workspace/large", string(large[1:]))
}

// member is a member of an archive.
type member struct {
	name, content, link string
	kind                byte
}

func writeMembers(t testing.TB, w io.Writer, members []member) {
	t.Helper()
	tw := tar.NewWriter(w)
	for _, m := range members {
		h := &tar.Header{Name: m.name, Linkname: m.link, Typeflag: m.kind, Mode: 0o644, Size: int64(len(m.content))}
		if m.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, m.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
}

// listTar describes the members of an archive.
func listTar(t testing.TB, archive string) string {
	t.Helper()
	var b strings.Builder
	tr := tar.NewReader(strings.NewReader(archive))
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%c %s %s %s\n", h.Typeflag, h.Name, h.Linkname, content)
	}
}

func TestPersist(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.box()
	if got := listTar(t, s.must("POST", box+"/persist", "").body); got != "5 ./  \n" {
		t.Errorf("of nothing: %q", got)
	}
	s.shell(box, "mkdir -p d/e; printf one > d/one; ln d/one d/two; ln -s one d/link; printf x > d/e/f.log; printf y > y.log; mkfifo pipe").want(t, "", "", "0")
	a := s.must("POST", box+"/persist", "")
	const want = "5 ./  \n5 ./d/  \n5 ./d/e/  \n0 ./d/e/f.log  x\n2 ./d/link one \n0 ./d/one  one\n1 ./d/two ./d/one \n0 ./y.log  y\n"
	if got := listTar(t, a.body); got != want || a.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("got %q, want %q", got, want)
	}
	for excludes, want := range map[string]string{
		"d":              "5 ./  \n0 ./y.log  y\n",
		"./d/,y.log":     "5 ./  \n",
		"*.log,d/two":    "5 ./  \n5 ./d/  \n5 ./d/e/  \n2 ./d/link one \n0 ./d/one  one\n",
		"d/e,d/?ne,d/t*": "5 ./  \n5 ./d/  \n2 ./d/link one \n0 ./y.log  y\n",
		"e,.log,/y":      "", // none of them is a whole path
	} {
		if want == "" {
			want = listTar(t, a.body)
		}
		if got := listTar(t, s.must("POST", box+"/persist?excludes="+excludes, "").body); got != want {
			t.Errorf("without %s: %q, want %q", excludes, got, want)
		}
	}
	s.refused("POST", box+"/persist?excludes=../secret", "", 400, codeInvalid, `".."`)
	s.refused("POST", box+"/persist?excludes=a,b/../c", "", 400, codeInvalid, "b/../c")
	s.refused("POST", box+"/persist?excludes="+strings.Repeat("a,", 1001), "", 400, codeInvalid, "1000")

	// The archive can be unpacked where it came from.
	s.must("POST", box+"/hydrate", a.body)
	if got := listTar(t, s.must("POST", box+"/persist?excludes=pipe", "").body); got != want {
		t.Errorf("after its return: %q", got)
	}
}

func TestHydrate(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.box()
	s.must("PUT", box+"/file/workspace/mine", "mine")
	s.must("POST", box+"/hydrate", tarOf(t, member{name: "./", kind: tar.TypeDir}, member{name: "./a/b", content: "1"}, member{name: "c", content: "2"}))
	s.shell(box, "cat a/b c mine").want(t, "12mine", "", "0")

	s.refused("POST", box+"/hydrate", "", 400, codeInvalid, "Empty tar payload")
	s.refused("POST", box+"/hydrate", strings.Repeat("x", 1024), 502, codeArchiveWrite, "archive")
	s.refused("POST", box+"/hydrate", string(make([]byte, maxUpload+1)), 400, codeInvalid, "more than 33554432")
	if resp := s.request(t.Context(), mine, "POST", box+"/hydrate", io.MultiReader(bytes.NewReader(make([]byte, maxUpload+1)))); resp.StatusCode != 400 {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// No member of an archive leaves the workspace, by its name or through a link.
func TestHydrate_Hostile(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.box()
	out := t.TempDir()
	for name, members := range map[string][]member{
		"Up":          {{name: "../evil", content: "x"}},
		"DeepUp":      {{name: "a/../../evil", content: "x"}},
		"Absolute":    {{name: filepath.Join(out, "evil"), content: "x"}},
		"Link":        {{name: "l", link: out, kind: tar.TypeSymlink}, {name: "l/evil", content: "x"}},
		"LinkOfLink":  {{name: "up", link: "..", kind: tar.TypeSymlink}, {name: "l", link: "up/..", kind: tar.TypeSymlink}, {name: "l/evil", content: "x"}},
		"LinkedFile":  {{name: "h", link: "/etc/passwd", kind: tar.TypeLink}},
		"LinkedUp":    {{name: "h", link: "../x", kind: tar.TypeLink}},
		"Device":      {{name: "dev", kind: tar.TypeChar}},
		"Itself":      {{name: ".", content: "x"}},
		"EmptyName":   {{name: "", content: "x"}},
		"DirLink":     {{name: "l", link: out, kind: tar.TypeSymlink}, {name: "l/", kind: tar.TypeDir}, {name: "l/evil", content: "x"}},
		"NotReplaced": {{name: "l", link: filepath.Join(out, "evil"), kind: tar.TypeSymlink}, {name: "l", content: "x"}},
	} {
		a := s.do(mine, "POST", box+"/hydrate", tarOf(t, members...))
		if name == "NotReplaced" || name == "DirLink" {
			// The link is replaced, and nothing is written through it.
		} else if a.status != 502 || a.at("code") != codeArchiveWrite {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
		if left, err := filepath.Glob(filepath.Join(out, "*")); err != nil || len(left) > 0 {
			t.Fatalf("%s: %q is outside, %v", name, left, err)
		}
	}
}

// FuzzRepack is about archives of a hostile guest: their copy has only members of the
// workspace, or there is none.
func FuzzRepack(f *testing.F) {
	add := func(members ...member) {
		f.Add([]byte(tarOf(f, members...)), "a,*.log")
	}
	add(member{name: "workspace/", kind: tar.TypeDir}, member{name: "workspace/a", content: "x"}, member{name: "workspace/b", link: "workspace/a", kind: tar.TypeLink})
	add(member{name: "workspace/", kind: tar.TypeDir}, member{name: "workspace/x.log", content: "x"}, member{name: "workspace/l", link: "/etc", kind: tar.TypeSymlink})
	add(member{name: "workspace/", kind: tar.TypeDir}, member{name: "etc/passwd", content: "x"})
	f.Fuzz(func(t *testing.T, archive []byte, list string) {
		out, err := parseExcludes(list)
		if err != nil {
			return
		}
		tr := tar.NewReader(bytes.NewReader(archive))
		root, err := tr.Next()
		if err != nil {
			return
		}
		var copied bytes.Buffer
		if repack(&copied, root, tr, out) != nil {
			return
		}
		tr = tar.NewReader(&copied)
		for {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatalf("the copy cannot be read: %v", err)
			}
			if !strings.HasPrefix(h.Name, "./") || h.Typeflag == tar.TypeLink && !strings.HasPrefix(h.Linkname, "./") || out.has(h.Name[2:]) {
				t.Errorf("a member %q, link %q", h.Name, h.Linkname)
			}
		}
	})
}

// FuzzEvents cuts output anywhere: the events have the same bytes, and each of them
// whole characters if the output is text.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("€uro ¢ent 𝄞\n"), 1)
	f.Add([]byte("\xff\xe2\x82"), 2)
	f.Add([]byte("\xe2\xe2\xe2\x82\xac"), 1)
	f.Fuzz(func(t *testing.T, output []byte, size int) {
		size = max(1, min(size, 64))
		var enc events
		var stream []byte
		cursor := int64(0)
		for rest := output; len(rest) > 0; {
			n := min(size, len(rest))
			var err error
			if stream, err = enc.Append(stream, sandbox.Event{Stream: sandbox.Stdout, Data: rest[:n], Cursor: cursor}); err != nil {
				t.Fatal(err)
			}
			cursor, rest = cursor+int64(n), rest[n:]
		}
		stream, err := enc.Append(stream, sandbox.Event{Exit: &sandbox.Exit{}})
		if err != nil {
			t.Fatal(err)
		}
		got := readEvents(t, bytes.NewReader(stream))
		if got.stdout != string(output) || got.exit != `{"exit_code":0}` {
			t.Errorf("%q became %+v", output, got)
		}
		for line := range strings.Lines(string(stream)) {
			data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
			b, err := base64.StdEncoding.DecodeString(data)
			if ok && err == nil && utf8.Valid(output) && !utf8.Valid(b) {
				t.Errorf("an event has %q of %q", b, output)
			}
		}
	})
}

// Output that the guest has dropped is told, as is why a stream ended early.
func TestEvents(t *testing.T) {
	t.Parallel()
	var enc events
	b, err := enc.Append(nil, sandbox.Event{Truncated: true, Cursor: 4096})
	if err != nil {
		t.Fatal(err)
	}
	if got := readEvents(t, bytes.NewReader(b)); got.stderr != "[cay: 4096 bytes of output are no longer kept]\n" {
		t.Errorf("%+v", got)
	}
}

// FuzzSessionState gives the variables of a session to a shell, which must have them as
// they were.
func FuzzSessionState(f *testing.F) {
	f.Add("NAME", "plain", "/workspace")
	f.Add("_a1", "it's $HOME `id` \"x\" \\ \n\t$(touch evil); end", "/workspace/with space")
	f.Add("A", "'; exit 9; '", "/tmp/'$(id)'")
	f.Fuzz(func(t *testing.T, name, value, cwd string) {
		q := sessionRequest{Cwd: cwd, Env: map[string]string{name: value}}
		state, err := q.state()
		if err != nil || strings.ContainsRune(cwd, 0) || strings.HasPrefix(name, "PWD") || strings.HasPrefix(name, "LD_") || name == "IFS" || name == "PATH" {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		got, err := exec.CommandContext(ctx, "/bin/sh", "-c", state+`printf '%s|%s' "$`+name+`" "$PWD"`).Output()
		if err != nil || string(got) != value+"|"+cwd {
			t.Errorf("%q: %q, %v", state, got, err)
		}
	})
}

func TestLocks(t *testing.T) {
	t.Parallel()
	var l locks
	unlock, err := l.lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.lock(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("a lock that is held was given: %v", err)
	}
	unlock()
	if unlock, err = l.lock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	unlock()
	if len(l.byName) != 0 {
		t.Errorf("%d locks are left", len(l.byName))
	}
}
