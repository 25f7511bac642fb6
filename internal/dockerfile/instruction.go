package dockerfile

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/template"
)

// instruction translates an instruction of a stage.
func (u *build) instruction(ctx context.Context, st *stage, c instructions.Command) error {
	expand := func(word string) (string, error) { return u.expand(word, st.variables()) }
	if e, ok := c.(instructions.SupportsSingleWordExpansion); ok {
		if _, arg := c.(*instructions.ArgCommand); !arg { // u.declare expands its values
			if err := e.Expand(expand); err != nil {
				return err
			}
		}
	}
	switch c := c.(type) {
	case *instructions.ArgCommand:
		return u.arg(st, c, expand)
	case *instructions.EnvCommand:
		for _, kv := range c.Env {
			st.env[kv.Key] = kv.Value
		}
	case *instructions.LabelCommand:
		for _, kv := range c.Labels {
			st.config.Labels[kv.Key] = kv.Value
		}
	case *instructions.WorkdirCommand:
		st.config.WorkDir = st.path(c.Path)
		st.steps = append(st.steps, template.Step{Mkdir: st.config.WorkDir, Text: "WORKDIR " + c.Path})
	case *instructions.UserCommand:
		st.config.User = c.User
	case *instructions.ShellCommand:
		st.shell = c.Shell
	case *instructions.EntrypointCommand:
		st.config.Entrypoint = st.argv(c.ShellDependantCmdLine)
		if !st.ownCmd {
			st.config.Cmd = nil // the base's Cmd was for the base's entrypoint
		}
	case *instructions.CmdCommand:
		st.config.Cmd, st.ownCmd = st.argv(c.ShellDependantCmdLine), true
	case *instructions.ExposeCommand:
		return u.expose(st, c)
	case *instructions.RunCommand:
		return u.run(st, c)
	case *instructions.CopyCommand:
		if c.Parents {
			return refuse("COPY --parents")
		}
		return u.copy(ctx, st, copyOf{c.SourcesAndDest, c.From, c.Chown, c.Chmod, c.ExcludePatterns, "COPY", fmt.Sprint(c)})
	case *instructions.AddCommand:
		if err := u.checkAdd(c); err != nil {
			return err
		}
		return u.copy(ctx, st, copyOf{c.SourcesAndDest, "", c.Chown, c.Chmod, c.ExcludePatterns, "ADD", fmt.Sprint(c)})
	case *instructions.HealthCheckCommand:
		u.Note("HEALTHCHECK is left out: cay checks no health")
	case *instructions.VolumeCommand:
		u.Note("VOLUME is left out: what is written there is kept on the container's own disk")
	case *instructions.StopSignalCommand:
		u.Note("STOPSIGNAL is left out: containers are stopped by SIGTERM")
	case *instructions.MaintainerCommand:
		u.Note("MAINTAINER is left out: use LABEL")
	default:
		return refuse(strings.ToUpper(c.Name()))
	}
	return nil
}

func refuse(what string) error {
	return cay.Errorf(cay.NotSupported, "cay does not carry out %s", what)
}

// variables returns the variables that instructions of a stage see: a variable of
// ENV hides an argument of the same name.
func (st *stage) variables() map[string]string {
	all := make(map[string]string, len(st.env)+len(st.args))
	for k, v := range st.args {
		all[k] = v
	}
	for k, v := range st.env {
		all[k] = v
	}
	return all
}

// arg declares arguments. An argument without a value has its value from before the
// first FROM.
func (u *build) arg(st *stage, c *instructions.ArgCommand, expand func(string) (string, error)) error {
	for _, a := range c.Args {
		if value, ok := u.meta[a.Key]; ok && a.Value == nil {
			st.args[a.Key] = value
		}
	}
	return u.declare(st.args, c.Args, expand)
}

// workDir returns the base of a stage's relative paths.
func (st *stage) workDir() string {
	if st.config.WorkDir == "" {
		return "/"
	}
	return st.config.WorkDir
}

// path makes a path of a stage absolute. A slash at its end stays.
func (st *stage) path(p string) string {
	abs := p
	if !path.IsAbs(p) {
		abs = path.Join(st.workDir(), p)
	}
	clean := path.Clean(abs)
	if (strings.HasSuffix(p, "/") || p == "." || strings.HasSuffix(p, "/.")) && clean != "/" {
		return clean + "/"
	}
	return clean
}

// argv returns the program and the arguments of RUN, CMD or ENTRYPOINT.
func (st *stage) argv(c instructions.ShellDependantCmdLine) []string {
	if !c.PrependShell {
		return slices.Clone(c.CmdLine)
	}
	return append(slices.Clone(st.shell), strings.Join(c.CmdLine, " "))
}

// maxPorts bounds the ports of a range in EXPOSE.
const maxPorts = 200

func (u *build) expose(st *stage, c *instructions.ExposeCommand) error {
	words, err := u.lex.ProcessWords(strings.Join(c.Ports, " "), variables(st.variables()))
	if err != nil {
		return err
	}
	for _, word := range words {
		ports, proto, ok := strings.Cut(word, "/")
		if !ok {
			proto = "tcp"
		}
		from, to, ranged := strings.Cut(ports, "-")
		first, err := strconv.ParseUint(from, 10, 16)
		last := first
		if ranged && err == nil {
			last, err = strconv.ParseUint(to, 10, 16)
		}
		if err != nil || last < first || last-first >= maxPorts {
			return cay.Errorf(cay.Invalid, "EXPOSE %s is not a port, or a range of at most %d", word, maxPorts)
		}
		for p := first; p <= last; p++ {
			port := fmt.Sprintf("%d/%s", p, strings.ToLower(proto))
			if !slices.Contains(st.config.ExposedPorts, port) {
				st.config.ExposedPorts = append(st.config.ExposedPorts, port)
			}
		}
	}
	return nil
}

func (u *build) run(st *stage, c *instructions.RunCommand) error {
	for _, m := range instructions.GetMounts(c) {
		if m.Type != instructions.MountTypeCache || m.From != "" {
			return refuse("RUN --mount=type=" + string(m.Type))
		}
		u.Note(fmt.Sprintf("RUN --mount=type=cache: %s is a directory of the image, and kept in it", m.Target))
		st.steps = append(st.steps, template.Step{Mkdir: strings.TrimSuffix(st.path(m.Target), "/")})
	}
	if n := instructions.GetNetwork(c); n != "" && n != instructions.NetworkDefault {
		return refuse("RUN --network=" + string(n))
	}
	argv := st.argv(c.ShellDependantCmdLine)
	if len(c.Files) > 0 {
		script, err := heredoc(c.ShellDependantCmdLine)
		if err != nil {
			return err
		}
		argv = append(slices.Clone(st.shell), script)
	}
	st.steps = append(st.steps, template.Step{Run: argv, Env: st.variables(), User: st.config.User, WorkDir: st.workDir(), Text: fmt.Sprint(c)})
	return nil
}

// heredoc returns the script of a RUN with here-documents: the single document, or a
// command line that reads them.
func heredoc(c instructions.ShellDependantCmdLine) (string, error) {
	if !c.PrependShell {
		return "", refuse("here-documents of a RUN with a list")
	}
	line := strings.Join(c.CmdLine, " ")
	first := c.Files[0]
	if bare := strings.Trim(strings.TrimLeft(strings.TrimSpace(line), "<-"), `"'`); len(c.Files) == 1 && bare == first.Name {
		if strings.HasPrefix(first.Data, "#!") {
			return "", refuse("RUN with a here-document that names its interpreter")
		}
		return first.Data, nil
	}
	var b strings.Builder
	b.WriteString(line + "\n")
	for _, f := range c.Files {
		b.WriteString(f.Data + f.Name + "\n")
	}
	return b.String(), nil
}

// copyOf has the common parts of COPY and ADD.
type copyOf struct {
	instructions.SourcesAndDest
	from, chown, chmod string
	exclude            []string
	name, text         string
}

func (u *build) copy(ctx context.Context, st *stage, c copyOf) error {
	switch {
	case len(c.SourceContents) > 0:
		return refuse(c.name + " of a here-document")
	case len(c.exclude) > 0:
		return refuse(c.name + " --exclude")
	}
	s := template.Step{Merge: true, To: st.path(c.DestPath), User: c.chown, Text: c.text}
	if s.User == "" {
		s.User = "root"
	}
	if c.chmod != "" {
		mode, err := strconv.ParseUint(c.chmod, 8, 12)
		if err != nil {
			return cay.Errorf(cay.NotSupported, "%s --chmod=%s is not an octal number of at most 4 digits", c.name, c.chmod)
		}
		bits := fs.FileMode(mode).Perm()
		s.Mode = &bits
	}
	for _, src := range c.SourcePaths {
		if c.from == "" {
			src = strings.TrimPrefix(path.Clean("/"+src), "/")
			if src == "" {
				src = "."
			}
		} else {
			src = path.Clean("/" + src)
		}
		s.Copy = append(s.Copy, src)
	}
	if len(s.Copy) > 1 && !strings.HasSuffix(s.To, "/") {
		return cay.Errorf(cay.Invalid, "%s of %d sources: the destination %q must end in a slash", c.name, len(s.Copy), c.DestPath)
	}
	if c.from != "" {
		i, ok := u.stageNamed(c.from, st.n)
		if ok {
			source, err := u.stage(ctx, i, template.Layer)
			if err != nil {
				return err
			}
			s.Source = template.From{Snapshot: source.result.Snapshot.ID}
		} else {
			if err := u.Ensure(ctx, c.from); err != nil {
				return err
			}
			s.Source = template.From{Image: c.from}
		}
	}
	st.steps = append(st.steps, s)
	return nil
}

// checkAdd refuses the features of ADD that COPY does not have.
func (u *build) checkAdd(c *instructions.AddCommand) error {
	switch {
	case c.Checksum != "":
		return refuse("ADD --checksum")
	case c.KeepGitDir != nil:
		return refuse("ADD --keep-git-dir")
	case c.Unpack != nil && *c.Unpack:
		return refuse("ADD --unpack")
	}
	for _, src := range c.SourcePaths {
		if strings.Contains(src, "://") || strings.HasPrefix(src, "git@") {
			return cay.Errorf(cay.NotSupported, "cay does not carry out ADD of an address: fetch %s with RUN", src)
		}
		packed, err := u.isArchive(src)
		if err != nil {
			return err
		}
		if packed && c.Unpack == nil {
			return cay.Errorf(cay.NotSupported, "cay does not carry out ADD of an archive: COPY %s, and unpack it with RUN", src)
		}
	}
	return nil
}

// isArchive reports whether ADD would unpack a file of the context.
func (u *build) isArchive(src string) (bool, error) {
	root, err := os.OpenRoot(u.p.Context)
	if err != nil {
		return false, cay.Errorf(cay.Invalid, "cannot open the context: %w", err)
	}
	defer root.Close()
	name := filepath.Clean(strings.TrimPrefix(path.Clean("/"+src), "/"))
	info, err := root.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return false, nil // a pattern or a directory; what is missing, the copy says
	}
	f, err := root.Open(name)
	if err != nil {
		return false, cay.Errorf(cay.Invalid, "cannot read %s: %w", src, err)
	}
	defer f.Close()
	head := make([]byte, 262)
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		return false, cay.Errorf(cay.Invalid, "cannot read %s: %w", src, err)
	}
	head = head[:n]
	for _, magic := range []string{"\x1f\x8b", "BZh", "\xfd7zXZ\x00", "\x28\xb5\x2f\xfd"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return true, nil
		}
	}
	return n == 262 && string(head[257:262]) == "ustar", nil
}
