// Package sandboxtool has tools with which an agent works in a sandbox: it makes
// one, runs commands, writes and reads files, shows what listens on a port, saves
// its work and deletes it. What the sandbox may do (its network, size and time) is
// said by the program, never by the model.
//
//	box := sandboxtool.New(sandboxtool.Options{
//		Sandbox: sandbox.CreateParams{Runtime: "node24", Network: sandbox.Network{Mode: sandbox.DenyAll}},
//	})
//	defer func() { err = errors.Join(err, box.Close(workflow.WithoutCancel(ctx))) }()
//	coder := agent.New(agent.Config{Model: model, Instructions: "...", Tools: box.Tools()})
//
// A Box belongs to one run. Everything it does is a step (package workflow/durable),
// so after a crash the run goes on in the same sandbox, and a command that was
// running is found again. Close deletes what there is: deferred as above, no
// sandbox outlives its run.
package sandboxtool
