package dockerfile

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/template"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// shelf has every image.
type shelf struct{ template.Images }

func (shelf) Get(_ context.Context, ref string) (*sandbox.Image, error) {
	return &sandbox.Image{Digest: "sha256:" + ref, Config: sandbox.ImageConfig{
		Env: []string{"PATH=/bin", "FROM=" + ref}, WorkDir: "/base", Entrypoint: []string{"/init"}, Cmd: []string{"serve"},
		Labels: map[string]string{"of": "base"}, ExposedPorts: []string{"1/tcp"},
	}}, nil
}

// builderOf returns a Builder with images, and without sandboxes; notes are its notes.
func builderOf() (b *Builder, notes *[]string) {
	notes = new([]string)
	return &Builder{
		Images: shelf{}, Ensure: func(context.Context, string) error { return nil },
		Note: func(text string) { *notes = append(*notes, text) },
	}, notes
}

// translate returns the single stage of a Dockerfile, without carrying it out.
func translate(t *testing.T, text string, args map[string]string) (*stage, []string) {
	t.Helper()
	b, notes := builderOf()
	parsed := checktest.Must(parser.Parse(strings.NewReader(text)))(t)
	stages, meta, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	u := &build{Builder: b, p: Params{File: "Dockerfile", Args: args, Context: t.TempDir()}, lex: shell.NewLex('\\'), stages: stages, meta: platformArgs(), used: map[string]bool{}}
	for _, arg := range meta {
		if err := u.declare(u.meta, arg.Args, func(w string) (string, error) { return u.expand(w, u.meta) }); err != nil {
			t.Fatal(err)
		}
	}
	st, err := u.begin(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range stages[0].Commands {
		if err := u.instruction(t.Context(), st, c); err != nil {
			t.Fatal(err)
		}
	}
	return st, *notes
}

// summary returns a step as a line.
func summary(s template.Step) string {
	switch {
	case s.Mkdir != "":
		return "mkdir " + s.Mkdir
	case len(s.Run) > 0:
		var env []string
		for _, k := range variables(s.Env).Keys() {
			if k != "PATH" && k != "FROM" {
				env = append(env, k+"="+s.Env[k])
			}
		}
		return fmt.Sprintf("run %q in %s as %q with %v", []string(s.Run), s.WorkDir, s.User, env)
	}
	mode := ""
	if s.Mode != nil {
		mode = fmt.Sprintf(" %04o", *s.Mode)
	}
	return fmt.Sprintf("copy %q to %s as %s from %q%s", []string(s.Copy), s.To, s.User, s.Source.Image, mode)
}

func TestTranslate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		args       map[string]string
		want       []string
	}{
		{"run", "FROM a\nRUN echo $A && ls", nil, []string{`run ["/bin/sh" "-c" "echo $A && ls"] in /base as "" with []`}},
		{"run a list", `FROM a` + "\n" + `RUN ["ls", "-l"]`, nil, []string{`run ["ls" "-l"] in /base as "" with []`}},
		{"shell", "FROM a\nSHELL [\"bash\", \"-ec\"]\nRUN ls", nil, []string{`run ["bash" "-ec" "ls"] in /base as "" with []`}},
		{"a document", "FROM a\nRUN <<EOF\nls\npwd\nEOF", nil, []string{`run ["/bin/sh" "-c" "ls\npwd\n"] in /base as "" with []`}},
		{"a document as input", "FROM a\nRUN cat <<EOF >f\nls\nEOF", nil, []string{`run ["/bin/sh" "-c" "cat <<EOF >f\nls\nEOF\n"] in /base as "" with []`}},
		{"environment", "FROM a\nENV A=1 B=${A:-2}\nENV C=$A$B\nRUN x", nil, []string{`run ["/bin/sh" "-c" "x"] in /base as "" with [A=1 B=2 C=12]`}},
		{"arguments", "FROM a\nARG A=1\nARG B\nARG C=$A\nRUN x", map[string]string{"A": "one"}, []string{`run ["/bin/sh" "-c" "x"] in /base as "" with [A=one C=one]`}},
		{"ENV hides ARG", "FROM a\nARG A=1\nENV A=2\nRUN x", map[string]string{"A": "3"}, []string{`run ["/bin/sh" "-c" "x"] in /base as "" with [A=2]`}},
		{"arguments from before FROM", "ARG A=1\nFROM a\nARG A\nARG TARGETOS\nRUN x", nil, []string{`run ["/bin/sh" "-c" "x"] in /base as "" with [A=1 TARGETOS=linux]`}},
		{"a proxy is an argument", "FROM a\nRUN x", map[string]string{"http_proxy": "p"}, []string{`run ["/bin/sh" "-c" "x"] in /base as "" with [http_proxy=p]`}},
		{"directories and users", "FROM a\nWORKDIR app\nUSER 7:8\nWORKDIR /srv\nRUN x", nil, []string{"mkdir /base/app", "mkdir /srv", `run ["/bin/sh" "-c" "x"] in /srv as "7:8" with []`}},
		{"copies", "FROM a\nARG D=lib\nCOPY x /y ./\nCOPY --chown=7 --chmod=0750 ../$D /opt\nCOPY --from=b /c /d/", nil, []string{
			`copy ["x" "y"] to /base/ as root from ""`, `copy ["lib"] to /opt as 7 from "" 0750`, `copy ["/c"] to /d/ as root from "b"`,
		}},
		{"a copy of all", "FROM a\nCOPY . .", nil, []string{`copy ["."] to /base/ as root from ""`}},
		{"ADD of a file", "FROM a\nADD x /y", nil, []string{`copy ["x"] to /y as root from ""`}},
		{"a cache", "FROM a\nRUN --mount=type=cache,target=/c x", nil, []string{"mkdir /c", `run ["/bin/sh" "-c" "x"] in /base as "" with []`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			st, _ := translate(t, tt.text, tt.args)
			var got []string
			for _, s := range st.steps {
				got = append(got, summary(s))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestTranslate_config(t *testing.T) {
	t.Parallel()
	st, notes := translate(t, `FROM a
LABEL x=y z="1 2"
EXPOSE 80 90-91/udp 1
ENTRYPOINT ["/run"]
HEALTHCHECK CMD true
VOLUME /data
STOPSIGNAL SIGINT
MAINTAINER somebody`, nil)
	c := st.config
	if got, want := fmt.Sprint(c.Labels, c.ExposedPorts, c.Entrypoint, c.Cmd), "map[of:base x:y z:1 2] [1/tcp 80/tcp 90/udp 91/udp] [/run] []"; got != want {
		t.Errorf("the configuration is %s, want %s", got, want)
	}
	if len(notes) != 4 {
		t.Errorf("notes: %q, want one for each instruction that is left out", notes)
	}
	if st, _ := translate(t, "FROM a\nCMD a b\nENTRYPOINT [\"/run\"]", nil); fmt.Sprint(st.config.Cmd) != "[/bin/sh -c a b]" {
		t.Errorf("CMD before ENTRYPOINT became %q", st.config.Cmd)
	}
}

func TestBuild_refused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{"a.tgz": "\x1f\x8b\x08", "plain": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		text string
		code cay.Code
		says string
	}{
		{"", cay.Invalid, "Dockerfile"},
		{"RUN x", cay.Invalid, "Dockerfile"},
		{"FROM a\nFETCH b", cay.Invalid, "unknown instruction: FETCH"},
		{"FROM scratch", cay.NotSupported, "Dockerfile:1: FROM scratch"},
		{"FROM --platform=linux/s390x a", cay.NotSupported, "linux/s390x"},
		{"ARG B\nFROM $B", cay.Invalid, "names nothing"},
		{"FROM a\nONBUILD RUN x", cay.NotSupported, "Dockerfile:2: cay does not carry out ONBUILD"},
		{"FROM a\nRUN --mount=type=secret,id=s x", cay.NotSupported, "RUN --mount=type=secret"},
		{"FROM a\nRUN --mount=type=bind,target=/x x", cay.NotSupported, "RUN --mount=type=bind"},
		{"FROM a\nRUN --network=host x", cay.NotSupported, "RUN --network=host"},
		{"FROM a\nCOPY <<EOF /x\nEOF", cay.NotSupported, "here-document"},
		{"FROM a\nCOPY --chmod=u+x plain /x", cay.NotSupported, "u+x"},
		{"FROM a\nCOPY plain plain /x", cay.Invalid, "must end in a slash"},
		{"FROM a\nCOPY --from=b /x* /x/", cay.Invalid, "wildcards"},
		{"FROM a\nADD https://b.example/c /x", cay.NotSupported, "ADD of an address"},
		{"FROM a\nADD a.tgz /x", cay.NotSupported, "ADD of an archive"},
		{"FROM a\nEXPOSE high", cay.Invalid, "EXPOSE high"},
		{"FROM a\nCMD []\nENTRYPOINT []", cay.NotSupported, "without ENTRYPOINT and CMD"},
		{"FROM a\nCOPY absent /x", cay.Invalid, "absent"},
		{"FROM a\nCOPY hidden /x", cay.Invalid, "ignored"},
	} {
		b, _ := builderOf()
		_, err := b.Build(t.Context(), Params{Dockerfile: []byte(tt.text), File: "Dockerfile", Context: dir, Name: "x", Ignore: []string{"hidden"}})
		if cay.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: %v, want %s with %q", tt.text, err, tt.code, tt.says)
		}
	}
	b, _ := builderOf()
	_, err := b.Build(t.Context(), Params{Dockerfile: []byte("FROM a"), File: "Dockerfile", Context: dir, Name: "x", Target: "b"})
	checktest.Code(t, err, cay.Invalid, "a stage that is not there")
	_, err = b.Build(t.Context(), Params{Dockerfile: bytes.Repeat([]byte("#"), maxSize+1), File: "Dockerfile", Context: dir, Name: "x"})
	checktest.Code(t, err, cay.TooLarge, "a large Dockerfile")
}

func TestIgnore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ".dockerignore"), []byte("# comment\nnode_modules\n**/*.log\n!keep.log\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ig := checktest.Must(newIgnore(checktest.Must(ReadIgnore(dir, ""))(t)))(t)
	for path, want := range map[string]bool{"node_modules": true, "node_modules/a/b": true, "x/y.log": true, "keep.log": false, "src": false} {
		if drop, all := ig.ignored(path); drop != want || all {
			t.Errorf("%s: %v, %v; want %v, and not all, as there is an exception", path, drop, all, want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "other.dockerignore"), []byte("src\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ig = checktest.Must(newIgnore(checktest.Must(ReadIgnore(dir, filepath.Join(dir, "other")))(t)))(t)
	if drop, all := ig.ignored("src"); !drop || !all {
		t.Errorf("src: %v, %v; the Dockerfile's own file goes before", drop, all)
	}
	if lines, err := ReadIgnore(t.TempDir(), ""); lines != nil || err != nil {
		t.Errorf("without a file: %q, %v", lines, err)
	}
}
