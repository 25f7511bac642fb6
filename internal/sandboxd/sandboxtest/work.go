package sandboxtest

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/sandbox"
)

func testCommands(t *testing.T, cfg Config) {
	t.Run("Exec", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		out, err := u.Exec(u.ctx, s.Name, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}})
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		var streams []string
		for {
			ev, err := out.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case ev.Command != nil:
				if ev.Command.SandboxID != s.ID || !strings.HasPrefix(ev.Command.ID, "cmd_") || len(ev.Command.Argv) != 3 {
					t.Errorf("command is %+v", ev.Command)
				}
			case ev.Exit != nil:
				if ev.Exit.Code != 3 {
					t.Errorf("exit code is %d, want 3", ev.Exit.Code)
				}
			case len(ev.Data) > 0:
				streams = append(streams, fmt.Sprintf("%s:%s", ev.Stream, ev.Data))
			}
		}
		slices.Sort(streams)
		if want := []string{"stderr:err\n", "stdout:out\n"}; !slices.Equal(streams, want) {
			t.Errorf("got %q, want %q", streams, want)
		}
	})
	t.Run("Env", func(t *testing.T) {
		// The command's variable overrides the sandbox's, which overrides the image's.
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{Env: map[string]string{"A": "sandbox", "B": "sandbox"}})
		text, _ := u.run(s.ID, sandbox.CommandParams{Argv: []string{"sh", "-c", `echo "$A $B $C"; echo "$PATH"`},
			Env: map[string]string{"B": "command", "C": "command"}})
		lines := strings.Split(text, "\n")
		if lines[0] != "sandbox command command" {
			t.Errorf("got %q", lines[0])
		}
		if !strings.HasPrefix(lines[1], "/vercel/runtimes/node24/bin:") {
			t.Errorf("PATH is %q, want the runtime first", lines[1])
		}
		s = u.create(sandbox.CreateParams{Env: map[string]string{"PATH": "/bin:/usr/bin"}})
		if got := u.sh(s.ID, `echo "$PATH"`); got != "/bin:/usr/bin\n" {
			t.Errorf("PATH is %q, want the sandbox's own", got)
		}
	})
	t.Run("Repeated", func(t *testing.T) {
		// A key starts one command in each sandbox, and a failed start does not use up
		// the key.
		u := setup(t, cfg)
		a, b := u.create(sandbox.CreateParams{}), u.create(sandbox.CreateParams{})
		start := func(ref, key, script string) *sandbox.Command {
			t.Helper()
			c, err := u.Start(u.ctx, ref, sandbox.CommandParams{Argv: []string{"sh", "-c", script}, IdempotencyKey: key})
			if err != nil {
				t.Fatal(err)
			}
			if c, err = u.Wait(u.ctx, ref, c.ID); err != nil {
				t.Fatal(err)
			}
			return c
		}
		_, err := u.Start(u.ctx, a.ID, sandbox.CommandParams{Argv: []string{"/no/such/program"}, IdempotencyKey: "k"})
		checktest.Code(t, err, cay.ExecutableMissing)
		const count = "echo x >> count"
		first := start(a.ID, "k", count)
		if again := start(a.Name, "k", count); again.ID != first.ID || !again.StartedAt.Equal(first.StartedAt) {
			t.Errorf("the same key started %s at %v, before it was %s at %v", again.ID, again.StartedAt, first.ID, first.StartedAt)
		}
		for ref, key := range map[string]string{a.ID: "other", b.ID: "k"} {
			if c := start(ref, key, count); c.ID == first.ID {
				t.Errorf("key %q of sandbox %s is that of %s", key, ref, first.SandboxID)
			}
		}
		if got := u.sh(a.ID, "cat count"); got != "x\nx\n" {
			t.Errorf("the commands of two keys have run %q", got)
		}
	})
	t.Run("StdinEndsWithSandbox", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		cmd, err := u.Start(u.ctx, s.ID, sandbox.CommandParams{Argv: []string{"cat"}, Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		r, w := io.Pipe()
		defer w.Close() // ends a Read that may still be under way
		wrote := make(chan error, 1)
		go func() { wrote <- u.WriteStdin(u.ctx, s.ID, cmd.ID, r, true) }()
		if _, err := io.WriteString(w, "x"); err != nil {
			t.Fatal(err)
		}
		for ev := range u.follow(s.ID, cmd.ID) {
			if len(ev.Data) > 0 {
				break // the upload is under way, and waits for more data
			}
		}
		u.stop(s.ID)
		select {
		case err := <-wrote:
			checktest.Code(t, err, cay.Stopped)
		case <-time.After(time.Minute):
			t.Error("who types nothing is not told that the sandbox has stopped")
		}
	})
	t.Run("Detached", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		cmd, err := u.Start(u.ctx, s.ID, sandbox.CommandParams{Argv: []string{"cat"}, Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		if cmd.SandboxID != s.ID || cmd.Exit != nil {
			t.Fatalf("got %+v", cmd)
		}
		list, err := u.ListCommands(u.ctx, s.ID)
		if err != nil || len(list) != 1 || list[0].ID != cmd.ID || list[0].SandboxID != s.ID {
			t.Fatalf("got %+v, %v", list, err)
		}
		for i, text := range []string{"hello ", "world"} {
			if err := u.WriteStdin(u.ctx, s.ID, cmd.ID, strings.NewReader(text), i == 1); err != nil {
				t.Fatal(err)
			}
		}
		done, err := u.Wait(u.ctx, s.ID, cmd.ID)
		if err != nil || done.Exit == nil || done.Exit.Code != 0 {
			t.Fatalf("got %+v, %v", done, err)
		}
		out, err := u.Output(u.ctx, s.ID, cmd.ID, sandbox.OutputParams{Cursor: 6})
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if text, _, err := readAll(out); text != "world" || err != nil {
			t.Fatalf("got %q, %v", text, err)
		}
		checktest.Code(t, u.Signal(u.ctx, s.ID, cmd.ID, 15), cay.Conflict)
		checktest.Code(t, u.Resize(u.ctx, s.ID, cmd.ID, sandbox.WindowSize{Cols: 80, Rows: 24}), cay.Conflict)
	})
	t.Run("Terminal", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		cmd, err := u.Start(u.ctx, s.ID, sandbox.CommandParams{
			Argv: []string{"sh", "-c", "read x; stty size"}, PTY: &sandbox.WindowSize{Cols: 80, Rows: 24}, Stdin: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := u.Resize(u.ctx, s.ID, cmd.ID, sandbox.WindowSize{Cols: 132, Rows: 43}); err != nil {
			t.Fatal(err)
		}
		if err := u.WriteStdin(u.ctx, s.ID, cmd.ID, strings.NewReader("go\n"), false); err != nil {
			t.Fatal(err)
		}
		out, err := u.Output(u.ctx, s.ID, cmd.ID, sandbox.OutputParams{Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if text, _, err := readAll(out); !strings.Contains(text, "43 132") || err != nil {
			t.Fatalf("got %q, %v; want the new size", text, err)
		}
	})
	t.Run("TimeoutSignal", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		for signal, code := range map[sandbox.Signal]int{0: 124, 9: 137} {
			cmd, err := u.Start(u.ctx, s.ID, sandbox.CommandParams{Argv: []string{"sleep", "1000"},
				Timeout: sandbox.Duration(100 * time.Millisecond), TimeoutSignal: signal})
			if err != nil {
				t.Fatal(err)
			}
			if cmd, err = u.Wait(u.ctx, s.ID, cmd.ID); err != nil || cmd.Exit.Code != code || !cmd.Exit.TimedOut {
				t.Errorf("signal %d: got %+v, %v; want code %d", signal, cmd, err, code)
			}
		}
	})
	t.Run("Errors", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		start := func(p sandbox.CommandParams) error { _, err := u.Start(u.ctx, s.ID, p); return err }
		argv := []string{"true"}
		for _, c := range []struct {
			name string
			err  error
			code cay.Code
		}{
			{"NoProgram", start(sandbox.CommandParams{}), cay.Invalid},
			{"MissingProgram", start(sandbox.CommandParams{Argv: []string{"no-such-program"}}), cay.ExecutableMissing},
			{"ManyArgs", start(sandbox.CommandParams{Argv: make([]string, 5000)}), cay.Invalid},
			{"NUL", start(sandbox.CommandParams{Argv: []string{"true", "\x00"}}), cay.Invalid},
			{"WorkDir", start(sandbox.CommandParams{Argv: argv, WorkDir: "/no/such/dir"}), cay.Invalid},
			{"Timeout", start(sandbox.CommandParams{Argv: argv, Timeout: sandbox.Duration(99 * time.Millisecond)}), cay.Invalid},
			{"TimeoutSignal", start(sandbox.CommandParams{Argv: argv, Timeout: sandbox.Duration(time.Second), TimeoutSignal: 65}), cay.Invalid},
			{"TimeoutSignalAlone", start(sandbox.CommandParams{Argv: argv, TimeoutSignal: 9}), cay.Invalid},
			{"PTY", start(sandbox.CommandParams{Argv: argv, PTY: &sandbox.WindowSize{}}), cay.Invalid},
			{"Signal", u.Signal(u.ctx, s.ID, "cmd_x", 65), cay.Invalid},
			{"UnknownCommand", u.Signal(u.ctx, s.ID, "cmd_00000000000000000000", 9), cay.NotFound},
			{"UnknownSandbox", u.Signal(u.ctx, "nobody", "cmd_00000000000000000000", 9), cay.NotFound},
		} {
			t.Run(c.name, func(t *testing.T) { checktest.Code(t, c.err, c.code) })
		}
	})
}

func testFiles(t *testing.T, cfg Config) {
	t.Run("EveryMethod", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		ctx, id := u.ctx, s.ID
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(u.Mkdir(ctx, id, "d/e", sandbox.MkdirParams{Parents: true}))
		info, err := u.WriteFile(ctx, id, "d/a.txt", strings.NewReader("hello"), sandbox.WriteParams{Mode: 0o600})
		must(err)
		if info.Size != 5 || info.Mode != 0o600 || info.Type != sandbox.TypeFile {
			t.Errorf("wrote %+v", info)
		}
		r, info, err := u.ReadFile(ctx, id, "d/a.txt", sandbox.ReadParams{Offset: 1, Length: 3})
		must(err)
		data, err := io.ReadAll(r)
		must(err)
		must(r.Close())
		if string(data) != "ell" || info.Size != 5 {
			t.Errorf("read %q of %+v", data, info)
		}
		must(u.Copy(ctx, id, "d/a.txt", "d/b.txt"))
		must(u.Rename(ctx, id, "d/b.txt", "d/e/c.txt"))
		must(u.Symlink(ctx, id, "e/c.txt", "d/link"))
		must(u.Chmod(ctx, id, "d/a.txt", 0o755))
		if info, err = u.Stat(ctx, id, "d/link", false); err != nil || info.Type != sandbox.TypeSymlink || info.Target != "e/c.txt" {
			t.Errorf("stat: %+v, %v", info, err)
		}
		if info, err = u.Stat(ctx, id, "d/a.txt", true); err != nil || info.Mode != 0o755 {
			t.Errorf("stat: %+v, %v", info, err)
		}
		page, err := u.ReadDir(ctx, id, "d", sandbox.ReadDirParams{Limit: 2})
		must(err)
		if len(page.Items) != 2 || page.Items[0].Name != "a.txt" || page.Next == "" {
			t.Errorf("first page is %+v", page)
		}
		page, err = u.ReadDir(ctx, id, "d", sandbox.ReadDirParams{Limit: 2, Cursor: page.Next})
		must(err)
		if len(page.Items) != 1 || page.Items[0].Name != "link" || page.Next != "" {
			t.Errorf("last page is %+v", page)
		}
		found, err := u.Glob(ctx, id, "d/**/*.txt")
		must(err)
		if len(found) != 2 {
			t.Errorf("glob found %q", found)
		}

		archive, err := u.Archive(ctx, id, "d", sandbox.TarGz)
		must(err)
		packed, err := io.ReadAll(archive)
		must(err)
		must(archive.Close())
		must(u.Extract(ctx, id, "copy", bytes.NewReader(packed), sandbox.ExtractParams{Format: sandbox.TarGz}))
		if got := u.sh(id, "cat copy/d/e/c.txt"); got != "hello" {
			t.Errorf("extracted %q", got)
		}
		w, err := u.Watch(ctx, id, "d", sandbox.WatchParams{})
		must(err)
		must(u.Remove(ctx, id, "d/link", false))
		ev, err := w.Next()
		if err != nil || ev.Op != sandbox.OpRemove || !strings.HasSuffix(ev.Path, "/d/link") {
			t.Errorf("watched %+v, %v", ev, err)
		}
		must(w.Close())
		must(u.Remove(ctx, id, "d", true))
		_, err = u.Stat(ctx, id, "d", false)
		checktest.Code(t, err, cay.FileNotFound)
	})
	t.Run("Large", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		const size = 20 << 20
		if _, err := u.WriteFile(u.ctx, s.ID, "big", &repeat{n: size}, sandbox.WriteParams{Size: size}); err != nil {
			t.Fatal(err)
		}
		r, _, err := u.ReadFile(u.ctx, s.ID, "big", sandbox.ReadParams{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if n, err := io.Copy(io.Discard, r); n != size || err != nil {
			t.Fatalf("read %d bytes, %v", n, err)
		}
	})
	t.Run("Errors", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		u.sh(s.ID, "mkdir -p dir/sub")
		ctx, id := u.ctx, s.ID
		stat := func(path string) error { _, err := u.Stat(ctx, id, path, false); return err }
		write := func(path string, p sandbox.WriteParams) error {
			_, err := u.WriteFile(ctx, id, path, strings.NewReader("x"), p)
			return err
		}
		read := func(path string) error {
			r, _, err := u.ReadFile(ctx, id, path, sandbox.ReadParams{})
			if err == nil {
				r.Close()
			}
			return err
		}
		var member bytes.Buffer
		tw := tar.NewWriter(&member)
		if err := tw.WriteHeader(&tar.Header{Name: "../../escape", Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if err := tw.Close(); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name string
			err  error
			code cay.Code
		}{
			{"StatMissing", stat("none"), cay.FileNotFound},
			{"StatEmpty", stat(""), cay.Invalid},
			{"StatNUL", stat("a\x00b"), cay.Invalid},
			{"StatLong", stat(strings.Repeat("x", 5000)), cay.Invalid},
			{"ReadMissing", read("none"), cay.FileNotFound},
			{"ReadDir", read("dir"), cay.Invalid},
			{"WriteMissingParent", write("none/x", sandbox.WriteParams{}), cay.FileNotFound},
			{"WriteMode", write("x", sandbox.WriteParams{Mode: 0o10000}), cay.Invalid},
			{"MkdirExists", u.Mkdir(ctx, id, "dir", sandbox.MkdirParams{}), cay.AlreadyExists},
			{"RemoveFull", u.Remove(ctx, id, "dir", false), cay.Conflict},
			{"RemoveMissing", u.Remove(ctx, id, "none", false), cay.FileNotFound},
			{"ChmodMode", u.Chmod(ctx, id, "dir", 0o10000), cay.Invalid},
			{"SymlinkExists", u.Symlink(ctx, id, "x", "dir"), cay.AlreadyExists},
			{"ArchiveMissing", func() error { _, err := u.Archive(ctx, id, "none", sandbox.Tar); return err }(), cay.FileNotFound},
			{"ArchiveFormat", func() error { _, err := u.Archive(ctx, id, "dir", "zip"); return err }(), cay.Invalid},
			{"ExtractEscape", u.Extract(ctx, id, "dir", &member, sandbox.ExtractParams{}), cay.Invalid},
			{"WatchMissing", func() error { _, err := u.Watch(ctx, id, "none", sandbox.WatchParams{}); return err }(), cay.FileNotFound},
		} {
			t.Run(c.name, func(t *testing.T) {
				checktest.Code(t, c.err, c.code)
				// The error matches the same targets as an error of the host's files.
				for target, code := range map[error]cay.Code{fs.ErrNotExist: cay.FileNotFound, fs.ErrExist: cay.AlreadyExists, fs.ErrPermission: cay.PermissionDenied} {
					if got := errors.Is(c.err, target); got != (c.code == code) {
						t.Errorf("%v is %v: %t", c.err, target, got)
					}
				}
			})
		}
	})
}

func testTenancy(t *testing.T, cfg Config) {
	env := cfg.New(t)
	a, a2, b := env.user(t, ProjectA), env.user(t, ProjectA2), env.user(t, ProjectB)
	team, nobody := env.user(t, TeamA), env.user(t, Nobody)
	s := a.create(sandbox.CreateParams{Name: "mine"})
	cmd := a.start(s.ID, "sleep", "1000")

	// Every method, by id and by name, of another tenant and of another project.
	for name, u := range map[string]*user{"OtherTeam": b, "OtherProject": a2, "OtherTeamWide": env.user(t, TeamB)} {
		for _, ref := range []string{s.ID, "mine", "sbx_00000000000000000000"} {
			for method, f := range everyMethod(u, ref, cmd.ID) {
				t.Run(name+"/"+method+"/"+ref, func(t *testing.T) { checktest.Code(t, f(), cay.NotFound) })
			}
		}
	}
	for method, f := range everyMethod(nobody, s.ID, cmd.ID) {
		t.Run("Nobody/"+method, func(t *testing.T) { checktest.Code(t, f(), cay.Unauthenticated) })
	}
	t.Run("NobodyCreates", func(t *testing.T) {
		_, err := nobody.Create(nobody.ctx, sandbox.CreateParams{})
		checktest.Code(t, err, cay.Unauthenticated)
		_, err = nobody.List(nobody.ctx, sandbox.ListParams{})
		checktest.Code(t, err, cay.Unauthenticated)
	})
	t.Run("List", func(t *testing.T) {
		for _, c := range []struct {
			u    *user
			p    sandbox.ListParams
			want int
		}{
			{a, sandbox.ListParams{}, 1}, {a, sandbox.ListParams{ProjectID: "*"}, 1}, {a2, sandbox.ListParams{}, 0}, {a2, sandbox.ListParams{ProjectID: "*"}, 0},
			{b, sandbox.ListParams{ProjectID: "*"}, 0}, {team, sandbox.ListParams{ProjectID: "*"}, 1}, {team, sandbox.ListParams{}, 1}, {team, sandbox.ListParams{ProjectID: "prj_a2"}, 0},
		} {
			page, err := c.u.List(c.u.ctx, c.p)
			if err != nil || len(page.Items) != c.want {
				t.Errorf("%+v: %v, want %d", c.p, err, c.want)
			}
		}
		_, err := a2.List(a2.ctx, sandbox.ListParams{ProjectID: "prj_a"})
		checktest.Code(t, err, cay.NotFound)
		_, err = team.List(team.ctx, sandbox.ListParams{ProjectID: "prj_b"})
		checktest.Code(t, err, cay.NotFound)
	})
	t.Run("NamesAreOfAProject", func(t *testing.T) {
		other := a2.create(sandbox.CreateParams{Name: "mine"})
		if other.ID == s.ID || a2.get("mine").ID != other.ID || a.get("mine").ID != s.ID {
			t.Error("a name leads to another project's sandbox")
		}
		_, err := team.Get(team.ctx, "mine")
		checktest.Code(t, err, cay.Conflict) // two projects have a sandbox of this name
		if team.get(s.ID).ID != s.ID {
			t.Error("a token of the team does not reach its project")
		}
	})
	t.Run("CreateElsewhere", func(t *testing.T) {
		_, err := a.Create(a.ctx, sandbox.CreateParams{ProjectID: "prj_a2"})
		checktest.Code(t, err, cay.NotFound)
		_, err = team.Create(team.ctx, sandbox.CreateParams{ProjectID: "prj_b"})
		checktest.Code(t, err, cay.NotFound)
		if got := team.create(sandbox.CreateParams{ProjectID: "prj_a"}); got.ProjectID != "prj_a" {
			t.Errorf("it was made in %q", got.ProjectID)
		}
	})
	wantStatus(t, a.get(s.ID), sandbox.Running, "") // the calls have not affected it
}

// everyMethod calls each method that takes a ref.
func everyMethod(u *user, ref, cmd string) map[string]func() error {
	ctx := u.ctx
	argv := sandbox.CommandParams{Argv: []string{"true"}}
	return map[string]func() error{
		"Get": func() error { _, err := u.Get(ctx, ref); return err },
		"Update": func() error {
			_, err := u.Update(ctx, ref, sandbox.UpdateParams{Tags: map[string]string{"x": "y"}})
			return err
		},
		"Extend":        func() error { _, err := u.Extend(ctx, ref, seconds(1)); return err },
		"Stop":          func() error { _, err := u.Stop(ctx, ref); return err },
		"Pause":         func() error { _, err := u.Pause(ctx, ref); return err },
		"Resume":        func() error { _, err := u.Resume(ctx, ref, sandbox.ResumeParams{}); return err },
		"Delete":        func() error { return u.Delete(ctx, ref) },
		"Stats":         func() error { _, err := u.Stats(ctx, ref); return err },
		"Start":         func() error { _, err := u.Start(ctx, ref, argv); return err },
		"Exec":          func() error { _, err := u.Exec(ctx, ref, argv); return err },
		"GetCommand":    func() error { _, err := u.GetCommand(ctx, ref, cmd); return err },
		"ListCommands":  func() error { _, err := u.ListCommands(ctx, ref); return err },
		"WatchStats":    func() error { _, err := u.WatchStats(ctx, ref); return err },
		"WatchCommands": func() error { _, err := u.WatchCommands(ctx, ref); return err },
		"Wait":          func() error { _, err := u.Wait(ctx, ref, cmd); return err },
		"Signal":        func() error { return u.Signal(ctx, ref, cmd, 9) },
		"Output":        func() error { _, err := u.Output(ctx, ref, cmd, sandbox.OutputParams{}); return err },
		"WriteStdin":    func() error { return u.WriteStdin(ctx, ref, cmd, strings.NewReader("x"), false) },
		"Resize":        func() error { return u.Resize(ctx, ref, cmd, sandbox.WindowSize{Cols: 1, Rows: 1}) },
		"Stat":          func() error { _, err := u.Stat(ctx, ref, "/", false); return err },
		"ReadDir":       func() error { _, err := u.ReadDir(ctx, ref, "/", sandbox.ReadDirParams{}); return err },
		"Glob":          func() error { _, err := u.Glob(ctx, ref, "*"); return err },
		"ReadFile":      func() error { _, _, err := u.ReadFile(ctx, ref, "x", sandbox.ReadParams{}); return err },
		"WriteFile": func() error {
			_, err := u.WriteFile(ctx, ref, "x", strings.NewReader("x"), sandbox.WriteParams{})
			return err
		},
		"Mkdir":   func() error { return u.Mkdir(ctx, ref, "x", sandbox.MkdirParams{}) },
		"Rename":  func() error { return u.Rename(ctx, ref, "x", "y") },
		"Copy":    func() error { return u.Copy(ctx, ref, "x", "y") },
		"Remove":  func() error { return u.Remove(ctx, ref, "x", true) },
		"Symlink": func() error { return u.Symlink(ctx, ref, "x", "y") },
		"Chmod":   func() error { return u.Chmod(ctx, ref, "x", 0o600) },
		"Extract": func() error { return u.Extract(ctx, ref, "x", strings.NewReader(""), sandbox.ExtractParams{}) },
		"Archive": func() error { _, err := u.Archive(ctx, ref, "x", sandbox.Tar); return err },
		"Watch":   func() error { _, err := u.Watch(ctx, ref, "x", sandbox.WatchParams{}); return err },

		"Hibernate": func() error { _, err := u.Hibernate(ctx, ref); return err },
		"Fork":      func() error { _, err := u.Fork(ctx, ref, sandbox.ForkParams{}); return err },
		"Sessions":  func() error { _, err := u.Sessions(ctx, ref, sandbox.SessionParams{}); return err },
		"CreateSnapshot": func() error {
			_, err := u.CreateSnapshot(ctx, ref, sandbox.SnapshotParams{})
			return err
		},
	}
}
