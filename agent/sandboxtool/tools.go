package sandboxtool

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/sandbox"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/durable"
)

// Tools returns the tools of the Box, for one agent or several: run_command,
// read_output, stop_command, write_files, read_file, create_sandbox and
// delete_sandbox; with ports, preview_url; with Options.Snapshots, save_snapshot.
func (b *Box) Tools() []agent.Tool {
	tools := []agent.Tool{
		agent.NewWorkflowTool("create_sandbox", "Make the Linux machine you work on. The other tools do it by themselves; call this to begin anew after delete_sandbox.", b.create),
		agent.NewWorkflowTool("run_command", "Run a command with sh -c and wait until it exits. With background it goes on while you do other things.", b.run),
		agent.NewWorkflowTool("read_output", "What a command in the background has written, and whether it has exited.", b.output),
		agent.NewWorkflowTool("stop_command", "End a command in the background.", b.stop),
		agent.NewWorkflowTool("write_files", "Write files, making missing directories. Files that exist are replaced.", b.write),
		agent.NewWorkflowTool("read_file", "Read a text file.", b.read),
		agent.NewWorkflowTool("delete_sandbox", "Delete the machine with all that is on it.", b.remove),
	}
	if len(b.o.Sandbox.Ports) > 0 {
		tools = append(tools, agent.NewWorkflowTool("preview_url", "The address at which people can see what listens on a port of the machine.", b.preview))
	}
	if b.o.Snapshots {
		tools = append(tools, agent.NewWorkflowTool("save_snapshot", "Save all files of the machine.", b.snapshot))
	}
	return tools
}

type nothing struct{}

// SandboxOutput describes a sandbox to the model.
type SandboxOutput struct {
	ID      string `json:"sandbox_id"`
	Runtime string `json:"runtime,omitempty"`
	WorkDir string `json:"workdir"`
}

func (b *Box) create(ctx workflow.Context, _ nothing) (SandboxOutput, error) {
	h, err := b.Handle(ctx)
	if err != nil {
		return SandboxOutput{}, err
	}
	s, err := h.Get(ctx)
	if err != nil {
		return SandboxOutput{}, b.lost(err)
	}
	return SandboxOutput{ID: s.ID, Runtime: s.Runtime, WorkDir: s.WorkDir}, nil
}

// lost forgets the sandbox if the error means that it does not exist any more.
func (b *Box) lost(err error) error {
	if err == nil {
		return nil
	}
	if hasEnded(err) {
		b.created, b.commands = nil, make(map[string]*durable.Command)
		if s := (*workflow.StepError)(nil); errors.As(err, &s) {
			err = s.Err // the model knows of no steps
		}
		return cay.Errorf(cay.Stopped, "the sandbox has ended, with all files that were not saved; the next call makes a new one: %v", err)
	}
	return err
}

// RunInput is the input of run_command.
type RunInput struct {
	Command    string `json:"command" jsonschema:"a line for sh -c"`
	WorkDir    string `json:"workdir,omitempty" jsonschema:"directory to run it in; the home of your work if left out"`
	Seconds    int    `json:"timeout_seconds,omitempty" jsonschema:"after which it is stopped"`
	Background bool   `json:"background,omitempty" jsonschema:"do not wait for it: for servers"`
}

// RunOutput is the result of a command for the model.
type RunOutput struct {
	CommandID string `json:"command_id,omitempty"` // of one in the background
	Running   bool   `json:"running,omitempty"`
	ExitCode  int    `json:"exit_code"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	// Truncated says that the beginning of Stdout or Stderr is missing.
	Truncated bool `json:"truncated,omitempty"`
}

func (b *Box) run(ctx workflow.Context, in RunInput) (RunOutput, error) {
	if strings.TrimSpace(in.Command) == "" {
		return RunOutput{}, cay.Errorf(cay.Invalid, "command is empty")
	}
	timeout := b.o.CommandTimeout
	if t := time.Duration(in.Seconds) * time.Second; t > 0 && t < timeout {
		timeout = t
	}
	p := sandbox.CommandParams{Argv: []string{"sh", "-c", in.Command}, WorkDir: in.WorkDir}
	h, err := b.Handle(ctx)
	if err != nil {
		return RunOutput{}, err
	}
	if in.Background {
		if len(b.commands) >= maxCommands {
			return RunOutput{}, cay.Errorf(cay.Invalid, "%d commands are in the background, and no more are allowed: stop one", maxCommands)
		}
		cmd, err := h.Start(ctx, p)
		if err != nil {
			return RunOutput{}, b.lost(err)
		}
		b.commands[cmd.ID] = cmd
		return RunOutput{CommandID: cmd.ID, Running: true}, nil
	}
	p.Timeout = sandbox.Duration(timeout)
	result, err := h.Run(ctx, p)
	if err != nil {
		return RunOutput{}, b.lost(err)
	}
	out := shown(result)
	if out.ExitCode == 124 {
		out.Stderr += fmt.Sprintf("\n[stopped after %v]", timeout)
	}
	return out, nil
}

// shown returns a result in the form for the model.
func shown(r *sandbox.Result) RunOutput {
	out := RunOutput{ExitCode: r.Exit.Code, Truncated: r.Truncated}
	for _, s := range []struct {
		to   *string
		from []byte
	}{{&out.Stdout, r.Stdout}, {&out.Stderr, r.Stderr}} {
		text := s.from
		if len(text) > MaxOutput {
			text, out.Truncated = text[len(text)-MaxOutput:], true
		}
		*s.to = strings.ToValidUTF8(string(text), "\uFFFD")
	}
	return out
}

// CommandInput names a background command.
type CommandInput struct {
	CommandID string `json:"command_id"`
}

func (b *Box) command(id string) (*durable.Command, error) {
	if cmd := b.commands[id]; cmd != nil {
		return cmd, nil
	}
	return nil, cay.Errorf(cay.NotFound, "no command %q was started in the background of this sandbox", id)
}

func (b *Box) output(ctx workflow.Context, in CommandInput) (RunOutput, error) {
	cmd, err := b.command(in.CommandID)
	if err != nil {
		return RunOutput{}, err
	}
	result, err := cmd.Output(ctx)
	if err != nil {
		return RunOutput{}, b.lost(err)
	}
	out := shown(result)
	out.CommandID, out.Running = in.CommandID, result.Exit == sandbox.Exit{}
	return out, nil
}

func (b *Box) stop(ctx workflow.Context, in CommandInput) (RunOutput, error) {
	cmd, err := b.command(in.CommandID)
	if err != nil {
		return RunOutput{}, err
	}
	if err := cmd.Signal(ctx, sandbox.Signal(syscall.SIGKILL)); err != nil {
		return RunOutput{}, b.lost(err)
	}
	result, err := cmd.Wait(ctx)
	if err != nil {
		return RunOutput{}, b.lost(err)
	}
	delete(b.commands, in.CommandID)
	return shown(result), nil
}

// WriteInput is the input of write_files.
type WriteInput struct {
	Files []FileInput `json:"files"`
}

// FileInput is a file to be written.
type FileInput struct {
	Path       string `json:"path" jsonschema:"absolute, or relative to the home of your work"`
	Content    string `json:"content"`
	Executable bool   `json:"executable,omitempty"`
}

// WriteOutput tells the model which files were written.
type WriteOutput struct {
	Paths []string `json:"paths"`
}

func (b *Box) write(ctx workflow.Context, in WriteInput) (WriteOutput, error) {
	if len(in.Files) == 0 || len(in.Files) > MaxWriteFiles {
		return WriteOutput{}, cay.Errorf(cay.Invalid, "files has %d entries: write 1 to %d in a call", len(in.Files), MaxWriteFiles)
	}
	var files []durable.File
	var out WriteOutput
	total := 0
	for _, f := range in.Files {
		if f.Path == "" || strings.ContainsRune(f.Path, 0) || path.Base(path.Clean("/"+f.Path)) == "/" {
			return WriteOutput{}, cay.Errorf(cay.Invalid, "%q is not the path of a file", f.Path)
		}
		if total += len(f.Content); total > MaxWrite {
			return WriteOutput{}, cay.Errorf(cay.TooLarge, "the files have more than %d bytes together: write them in several calls", MaxWrite)
		}
		file := durable.File{Path: f.Path, Data: []byte(f.Content)}
		if f.Executable {
			file.Mode = 0o755
		}
		files, out.Paths = append(files, file), append(out.Paths, f.Path)
	}
	h, err := b.Handle(ctx)
	if err != nil {
		return WriteOutput{}, err
	}
	return out, b.lost(h.WriteFiles(ctx, files...))
}

// ReadInput is the input of read_file.
type ReadInput struct {
	Path   string `json:"path"`
	Offset int    `json:"offset,omitempty" jsonschema:"in bytes, to read on"`
}

// ReadOutput is a part of a file.
type ReadOutput struct {
	Content string `json:"content"`
	Size    int    `json:"size"`                  // of the whole file, in bytes
	Next    int    `json:"next_offset,omitempty"` // 0: this was its end
}

// readPart prints the size of a file and a part of it.
const readPart = `stat -L -c %s -- "$1" && tail -c "+$2" -- "$1" | head -c "$3"`

func (b *Box) read(ctx workflow.Context, in ReadInput) (ReadOutput, error) {
	h, err := b.Handle(ctx)
	if err != nil {
		return ReadOutput{}, err
	}
	if in.Offset < 0 {
		return ReadOutput{}, cay.Errorf(cay.Invalid, "offset %d is below 0", in.Offset)
	}
	// Handle.ReadFile would write the whole file into the run's log for each part.
	result, err := h.Run(ctx, sandbox.CommandParams{
		Argv: []string{"sh", "-c", readPart, "sh", in.Path, strconv.Itoa(in.Offset + 1), strconv.Itoa(MaxRead + utf8.UTFMax)}, Timeout: sandbox.Duration(b.o.CommandTimeout),
	})
	if err != nil {
		return ReadOutput{}, b.lost(err)
	}
	size, part, _ := bytes.Cut(result.Stdout, []byte("\n"))
	var out ReadOutput
	if out.Size, err = strconv.Atoi(string(size)); err != nil || result.Exit.Code != 0 {
		return ReadOutput{}, cay.Errorf(cay.FileNotFound, "%s cannot be read: %s", in.Path, shown(result).Stderr)
	}
	if in.Offset > out.Size {
		return ReadOutput{}, cay.Errorf(cay.Invalid, "offset %d is not within the %d bytes of %s", in.Offset, out.Size, in.Path)
	}
	if len(part) > MaxRead {
		end := MaxRead
		for end > MaxRead-utf8.UTFMax && !utf8.RuneStart(part[end]) {
			end--
		}
		part, out.Next = part[:end], in.Offset+end
	}
	if !utf8.Valid(part) {
		return ReadOutput{}, cay.Errorf(cay.Invalid, "%s is not a text: look at it with a command", in.Path)
	}
	out.Content = string(part)
	return out, nil
}

// PreviewInput is the input of preview_url.
type PreviewInput struct {
	Port int `json:"port"`
}

// PreviewOutput is the address of a port.
type PreviewOutput struct {
	URL string `json:"url"`
}

func (b *Box) preview(ctx workflow.Context, in PreviewInput) (PreviewOutput, error) {
	h, err := b.Handle(ctx)
	if err != nil {
		return PreviewOutput{}, err
	}
	s, err := h.Get(ctx)
	if err != nil {
		return PreviewOutput{}, b.lost(err)
	}
	var declared []int
	for _, p := range s.Ports {
		if p.Port == in.Port {
			return PreviewOutput{URL: p.URL}, nil
		}
		declared = append(declared, p.Port)
	}
	return PreviewOutput{}, cay.Errorf(cay.Invalid, "port %d is not shown to people; listen on one of %v", in.Port, declared)
}

// SnapshotOutput is a snapshot.
type SnapshotOutput struct {
	ID string `json:"snapshot_id"`
}

func (b *Box) snapshot(ctx workflow.Context, _ nothing) (SnapshotOutput, error) {
	h, err := b.Handle(ctx)
	if err != nil {
		return SnapshotOutput{}, err
	}
	s, err := h.Snapshot(ctx, sandbox.SnapshotParams{})
	if err != nil {
		return SnapshotOutput{}, b.lost(err)
	}
	b.saved = append(b.saved, s.ID)
	return SnapshotOutput{ID: s.ID}, nil
}

// DeleteOutput says that a sandbox was deleted.
type DeleteOutput struct {
	Deleted bool `json:"deleted"`
}

func (b *Box) remove(ctx workflow.Context, _ nothing) (DeleteOutput, error) {
	if b.created == nil {
		return DeleteOutput{}, nil
	}
	return DeleteOutput{Deleted: true}, b.Close(ctx)
}
