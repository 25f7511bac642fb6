package dockerfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/template"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

const twoStages = `ARG BASE=debian
FROM ${BASE} AS build
USER root
ARG GREETING=hello
ENV NAME=world
WORKDIR /src
COPY . .
RUN echo "$GREETING $NAME" >out && ln -s out link && mkdir -p /opt/tree/deep && echo leaf >/opt/tree/deep/leaf
RUN ls >files

FROM build AS unused
RUN exit 1

FROM debian
COPY --from=build /src/link /usr/local/share/greeting
COPY --from=build /opt/tree /opt/copy/
COPY --from=build /src/files /
COPY --chmod=0755 run.sh /usr/local/bin/
COPY --chown=1000:1000 run.sh /tmp
LABEL made=here
EXPOSE 80
USER 1000:1000
WORKDIR /app
ENTRYPOINT ["/usr/local/bin/run.sh"]
CMD ["one", "two"]
`

// TestBuild_real builds two stages on gVisor, and checks the content of the
// image.
func TestBuild_real(t *testing.T) {
	env := testenv.Start(t)
	dir := t.TempDir()
	for name, content := range map[string]string{"run.sh": "#!/bin/sh\nid -u; pwd; echo \"$@\"\n", "secret": "x", ".dockerignore": "secret\n.dockerignore\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	b := &Builder{
		Sandboxes: env.Client, Images: env.Client.Images(), Network: sandbox.Network{Mode: sandbox.DenyAll},
		Ensure: func(context.Context, string) error { return nil }, Note: func(text string) { t.Log(text) },
		Progress: func(e template.Event) { log.Write(e.Output) },
	}
	p := Params{Dockerfile: []byte(twoStages), File: "Dockerfile", Context: dir, Name: "two:1", Ignore: checktest.Must(ReadIgnore(dir, ""))(t), Args: map[string]string{"GREETING": "good day"}}
	r, err := b.Build(t.Context(), p)
	if err != nil {
		t.Fatalf("%v\n%s", err, log.Bytes())
	}
	c := r.Image.Config
	if got := fmt.Sprint(c.User, c.WorkDir, c.Entrypoint, c.Cmd, c.Labels, c.ExposedPorts); got != "1000:1000/app[/usr/local/bin/run.sh] [one two] map[made:here] [80/tcp]" {
		t.Errorf("the image says %s", got)
	}
	box := checktest.Must(env.Client.Create(t.Context(), sandbox.CreateParams{Image: "two:1"}))(t)
	out := run(t, env.Client, box.ID, append(c.Entrypoint, c.Cmd...)...)
	if out != "1000\n/app\none two\n" {
		t.Errorf("its command wrote %q", out)
	}
	out = run(t, env.Client, box.ID, "sh", "-c", "cat /usr/local/share/greeting /opt/copy/deep/leaf /files; stat -c '%u %a' /opt/copy/deep/leaf /tmp/run.sh; test -e /src || echo no sources")
	if want := "good day world\nleaf\nfiles\nlink\nout\nrun.sh\n0 644\n1000 644\nno sources\n"; out != want {
		t.Errorf("the image has %q, want %q", out, want)
	}

	// Again: all steps are known. A new name gives the same image.
	p.Name = "two:2"
	again, err := b.Build(t.Context(), p)
	if err != nil || again.Cached != again.Steps || again.Image.Digest != r.Image.Digest || len(again.Image.Refs) != 2 {
		t.Errorf("a second build: %+v, %v", again, err)
	}
	// A stage by its name, and a step that fails.
	p.Target = "unused"
	var failed *template.StepError
	if _, err := b.Build(t.Context(), p); !errors.As(err, &failed) || failed.Exit.Code != 1 {
		t.Errorf("the stage that fails: %v", err)
	}
	// No steps at all.
	p = Params{Dockerfile: []byte("FROM debian\nENV A=1\nCMD [\"true\"]"), File: "Dockerfile", Context: dir, Name: "bare"}
	if r, err := b.Build(t.Context(), p); err != nil || !strings.Contains(fmt.Sprint(r.Image.Config.Env), "A=1") {
		t.Errorf("without a step: %+v, %v", r, err)
	}
	if list := checktest.Must(env.Client.List(t.Context(), sandbox.ListParams{}))(t); len(list.Items) != 1 {
		t.Errorf("%d sandboxes are left, want the test's own", len(list.Items))
	}
}

// run runs a program in a sandbox and returns its output.
func run(t *testing.T, c *sandbox.Client, box string, argv ...string) string {
	t.Helper()
	events := checktest.Must(c.Exec(t.Context(), box, sandbox.CommandParams{Argv: argv}))(t)
	defer events.Close()
	var out strings.Builder
	for {
		e, err := events.Next()
		if err == io.EOF || err == nil && e.Exit != nil {
			return out.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		out.Write(e.Data)
	}
}
