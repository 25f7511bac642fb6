package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// flowStore is where an engine of workflows keeps its runs.
type flowStore string

const (
	flowSQLite   flowStore = "sqlite"      // synchronous=NORMAL: survives a crash of the process
	flowFull     flowStore = "sqlite_full" // synchronous=FULL: survives a loss of power
	flowPostgres flowStore = "postgres"
	// flowServed is a worker of a daemon on loopback, which keeps its runs in SQLite.
	flowServed flowStore = "served"
)

// flowPlace is a fresh place for one engine's runs.
type flowPlace struct {
	dir    string
	store  flowStore
	server *postgresServer // PostgreSQL's
	daemon *Daemon         // flowServed's
}

func newFlowPlace(ctx context.Context, work string, store flowStore, d *Daemon) (_ *flowPlace, err error) {
	p := &flowPlace{store: store, daemon: d}
	if store == flowServed && d == nil {
		return nil, notMeasured("there is no daemon")
	}
	if p.dir, err = os.MkdirTemp(work, "workflow-"); err != nil {
		return nil, fmt.Errorf("make directory of runs: %w", err)
	}
	if store == flowPostgres {
		// The server's user cannot enter our own directories.
		if p.server, err = startPostgres(ctx, "/var/tmp"); err != nil {
			return nil, errors.Join(err, os.RemoveAll(p.dir))
		}
	}
	return p, nil
}

// flags are the flags that give a program of an engine the place of its runs.
func (p *flowPlace) flags() []string {
	if p.server != nil {
		return []string{"--store", "postgres", "--at", p.server.DSN}
	}
	if p.store == flowServed {
		return []string{"--store", string(flowServed), "--at", p.daemon.at.URL}
	}
	store := string(p.store)
	if p.store == flowFull {
		store = string(flowSQLite)
	}
	flags := []string{"--store", store, "--at", filepath.Join(p.dir, "workflows.db")}
	if p.store == flowFull {
		flags = append(flags, "--full")
	}
	return flags
}

// env has the program's additional environment variables.
func (p *flowPlace) env() []string {
	if p.store == flowServed {
		return append(os.Environ(), "CAY_TOKEN="+p.daemon.at.Token)
	}
	return nil
}

func (p *flowPlace) remove() error {
	var err error
	if p.server != nil {
		err = p.server.stop()
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}

// flowRequest is a request to an engine.
type flowRequest struct {
	// Do is one of:
	//	"run"        start Runs runs of Steps steps each, and wait for all
	//	"parallel"   run once, with Steps steps at the same time
	//	"one_step"   do Runs runs of one step, one after the other
	//	"resume"     measure, Runs times, the time from a message to a run until its code continues
	//	"live"       start runs that stay in their fourth step
	//	"recovered"  wait until Runs runs are in their fourth step again, since the program began
	//	"sleep"      start runs that sleep, and wait until all do
	//	"settle"     free memory that can be freed
	Do    string `json:"do"`
	Runs  int    `json:"runs,omitempty"`
	Steps int    `json:"steps,omitempty"`
}

// flowAnswer has the durations in milliseconds, with an element for each repetition
// of "one_step" and "resume".
type flowAnswer struct {
	Ready   bool      `json:"ready,omitempty"`
	Version string    `json:"version,omitempty"`
	MS      []float64 `json:"ms,omitempty"`
	Error   string    `json:"error,omitempty"`
}

// flowPeer is a process with an engine: cay's (ServeWorkflows), or an opponent's.
type flowPeer struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	answers *json.Decoder
}

// startFlowPeer returns when the engine is open. It ends with this process.
func startFlowPeer(ctx context.Context, argv, env []string, stderr io.Writer) (*flowPeer, error) {
	p := &flowPeer{cmd: exec.Command(argv[0], argv[1:]...)}
	p.cmd.Env, p.cmd.Stderr, p.cmd.SysProcAttr = env, stderr, newSession()
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start engine: %w", err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start engine: %w", err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start engine: %w", err)
	}
	p.answers = json.NewDecoder(stdout)
	defer context.AfterFunc(ctx, func() { p.cmd.Process.Kill() })()
	var a flowAnswer
	if err := p.answers.Decode(&a); err != nil {
		return nil, fmt.Errorf("start engine: %w", errors.Join(err, p.kill()))
	}
	return p, nil
}

func (p *flowPeer) do(ctx context.Context, r flowRequest) ([]float64, error) {
	defer context.AfterFunc(ctx, func() { p.cmd.Process.Kill() })()
	var a flowAnswer
	err := json.NewEncoder(p.stdin).Encode(r)
	if err == nil {
		err = p.answers.Decode(&a)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("ask the engine to %s: %w", r.Do, err)
	case a.Error == "not supported":
		return nil, notMeasured("it cannot do this")
	case a.Error != "":
		return nil, fmt.Errorf("the engine could not %s: %s", r.Do, a.Error)
	}
	return a.MS, nil
}

// kill ends the process as a crash would.
func (p *flowPeer) kill() error {
	err := p.cmd.Process.Kill()
	if werr := p.cmd.Wait(); werr != nil && err == nil && p.cmd.ProcessState == nil {
		err = werr
	}
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	return err
}

// stop ends the process in order, if it does within a while.
func (p *flowPeer) stop() error {
	p.stdin.Close() // the process may be gone
	kill := time.AfterFunc(30*time.Second, func() { p.cmd.Process.Kill() })
	defer kill.Stop()
	err := p.cmd.Wait()
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return fmt.Errorf("end engine: %s", status.Signal())
	}
	if err != nil {
		return fmt.Errorf("end engine: %w", err)
	}
	return nil
}
