// Package sandboxtool has tools with which an agent works in a sandbox: they create
// the sandbox, run commands, write and read files, publish a port, save the sandbox
// and delete it. The program sets the limits of the sandbox (its network, size and
// time), never the model.
//
//	box := sandboxtool.New(sandboxtool.Options{
//		Sandbox: sandbox.CreateParams{Runtime: "node24", Network: sandbox.Network{Mode: sandbox.DenyAll}},
//	})
//	defer func() { err = errors.Join(err, box.Close(workflow.WithoutCancel(ctx))) }()
//	coder := agent.New(agent.Config{Model: model, Instructions: "...", Tools: box.Tools()})
//
// A Box belongs to one run. All its operations are steps (package workflow/durable),
// so after a crash the run continues in the same sandbox, and finds its running
// commands again. Close deletes the sandbox: with Close deferred as above, no
// sandbox outlives its run.
package sandboxtool
