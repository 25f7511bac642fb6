package main

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/sandbox"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/durable"
)

// Request is the input of the workflow: a description of a program.
type Request struct {
	Prompt string `json:"prompt"`
	// Coder and Tester are the models that write the program and its tests.
	Coder  string `json:"coder,omitempty"`
	Tester string `json:"tester,omitempty"`
	// Packages of Python are installed before, with pip.
	Packages []string `json:"packages,omitempty"`
}

// Report is the result of the workflow.
type Report struct {
	Code     string `json:"code"`
	Tests    string `json:"tests"`
	Output   string `json:"output"` // of the tests, the last time
	Attempts int    `json:"attempts"`
	// Prepared is the snapshot that the sandbox started from; Reused says that the
	// snapshot existed already.
	Prepared string      `json:"prepared"`
	Reused   bool        `json:"reused"`
	Usage    agent.Usage `json:"usage"`
}

// The limits of a request, and the number of attempts to write a program.
const (
	maxPrompt   = 10_000 // bytes
	maxPackages = 20
	maxAttempts = 3
	maxProgram  = 256 << 10 // bytes
	testTimeout = time.Minute
)

// check validates a request, and fills in defaults.
func (r *Request) check(coder, tester string) error {
	r.Prompt = strings.TrimSpace(r.Prompt)
	switch {
	case r.Prompt == "":
		return cay.Errorf(cay.Invalid, "prompt is empty: say what the program is to do")
	case len(r.Prompt) > maxPrompt:
		return cay.Errorf(cay.Invalid, "prompt has %d bytes, and at most %d are read", len(r.Prompt), maxPrompt)
	case len(r.Packages) > maxPackages:
		return cay.Errorf(cay.Invalid, "packages has %d entries, and at most %d are installed", len(r.Packages), maxPackages)
	}
	for _, p := range r.Packages {
		if p == "" || strings.HasPrefix(p, "-") || strings.ContainsAny(p, " \t\n/:@;") {
			return cay.Errorf(cay.Invalid, "packages: %q is not the name of a package, with a version or without", p)
		}
	}
	if r.Coder == "" {
		r.Coder = coder
	}
	if r.Tester == "" {
		r.Tester = tester
	}
	return nil
}

// codeAgent writes a program and tests for it, runs them in a sandbox, and fixes
// the program until the tests pass.
var codeAgent = workflow.Define("code-agent", func(ctx workflow.Context, in Request) (report *Report, err error) {
	if err := in.check("cay/scripted", "cay/scripted"); err != nil {
		return nil, workflow.Fatal(err)
	}
	coder := agent.New(agent.Config{Name: "coder", Model: in.Coder, Instructions: coderInstructions})
	tester := agent.New(agent.Config{Name: "tester", Model: in.Tester, Instructions: testerInstructions})

	box, report, err := workshop(ctx, in.Packages)
	if err != nil {
		return nil, err
	}
	// Deletes the sandbox in any case, even if the run is cancelled.
	defer func() { err = errors.Join(err, box.Delete(workflow.WithoutCancel(ctx))) }()
	defer func() {
		if err != nil { // tell readers of the stream
			err = errors.Join(err, agent.Fail(ctx, err))
		}
	}()

	ask := func(a *agent.Agent, prompt string) (string, error) {
		answer, err := a.Stream(ctx, agent.Call{Prompt: prompt, NoClose: true})
		if err != nil {
			return "", err
		}
		report.Usage.Add(answer.Usage)
		return program(answer.Text)
	}
	if report.Code, err = ask(coder, writeProgram(in.Prompt)); err != nil {
		return nil, err
	}
	if report.Tests, err = ask(tester, writeTests(in.Prompt, report.Code)); err != nil {
		return nil, err
	}
	for report.Attempts = 1; ; report.Attempts++ {
		passed, err := try(ctx, box, report)
		if err != nil {
			return nil, err
		}
		if passed {
			return report, agent.Close(ctx)
		}
		if report.Attempts == maxAttempts {
			return nil, workflow.Fatal(fmt.Errorf("the tests fail after %d attempts:\n%s", maxAttempts, report.Output))
		}
		if report.Code, err = ask(coder, mendProgram(in.Prompt, report)); err != nil {
			return nil, err
		}
	}
})

// try runs the tests, and stores their output in the report.
func try(ctx workflow.Context, box *durable.Handle, r *Report) (passed bool, err error) {
	err = box.WriteFiles(ctx, durable.File{Path: "solution.py", Data: []byte(r.Code)}, durable.File{Path: "test_solution.py", Data: []byte(r.Tests)})
	if err != nil {
		return false, err
	}
	result, err := box.Run(ctx, sandbox.CommandParams{
		Argv: []string{"python3", "-m", "kit.run", "test_solution.py"}, Timeout: sandbox.Duration(testTimeout),
	})
	if err != nil {
		return false, err
	}
	r.Output = tail(string(result.Stdout)+string(result.Stderr), 8<<10)
	if result.Exit.Code == 124 {
		r.Output += fmt.Sprintf("\nThe tests were stopped after %v.", testTimeout)
	}
	return result.Exit.Code == 0, nil
}

// tail is the end of s: at most n bytes.
func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "[...]" + strings.ToValidUTF8(s[len(s)-n:], "")
}

//go:embed kit/run.py
var kit []byte

// workshop makes a sandbox without network, with the needed packages installed:
// from the snapshot of an earlier run, or, the first time, by installing the
// packages and making that snapshot.
func workshop(ctx workflow.Context, packages []string) (*durable.Handle, *Report, error) {
	sum := sha256.Sum256([]byte(string(kit) + "\x00" + strings.Join(packages, "\x00")))
	report := &Report{Prepared: "code-agent-" + hex.EncodeToString(sum[:6])}
	locked := sandbox.CreateParams{
		VCPUs: 1, MemoryMB: 512, DiskMB: 1024,
		Network: sandbox.Network{Mode: sandbox.DenyAll},
		Timeout: sandbox.Duration(time.Hour), // should nobody go on with this run
	}

	prepared := locked
	prepared.Snapshot = report.Prepared
	box, err := durable.Create(ctx, prepared)
	if err == nil {
		report.Reused = true
		return box, report, nil
	}
	if cay.CodeOf(err) != cay.NotFound {
		return nil, nil, err
	}

	fresh := locked
	fresh.Runtime = "python3.13"
	if len(packages) > 0 {
		fresh.Network = sandbox.Network{Mode: sandbox.AllowAll}
	}
	if box, err = durable.Create(ctx, fresh); err != nil {
		return nil, nil, err
	}
	if err := install(ctx, box, packages, report.Prepared); err != nil {
		return nil, nil, errors.Join(err, box.Delete(workflow.WithoutCancel(ctx)))
	}
	if err := box.SetNetwork(ctx, locked.Network); err != nil {
		return nil, nil, errors.Join(err, box.Delete(workflow.WithoutCancel(ctx)))
	}
	return box, report, nil
}

// install installs the packages that programs may need, and saves them for later
// runs.
func install(ctx workflow.Context, box *durable.Handle, packages []string, name string) error {
	if err := box.WriteFile(ctx, "kit/run.py", kit, 0); err != nil {
		return err
	}
	if len(packages) > 0 {
		result, err := box.Run(ctx, sandbox.CommandParams{
			Argv: append([]string{"python3", "-m", "pip", "install", "--user", "--quiet", "--"}, packages...), Timeout: sandbox.Duration(5 * time.Minute),
		})
		if err != nil {
			return err
		}
		if result.Exit.Code != 0 {
			return workflow.Fatal(fmt.Errorf("cannot install %s:\n%s", strings.Join(packages, ", "), tail(string(result.Stderr), 4<<10)))
		}
	}
	_, err := box.Snapshot(ctx, sandbox.SnapshotParams{Name: name})
	if cay.CodeOf(err) == cay.AlreadyExists {
		return nil // another run was faster
	}
	return err
}
