// Package durable has sandboxes that outlive the program which uses them: Handles
// for workflows, with the names and shapes of package sandbox. Each method that
// reaches the sandbox is a step, or two: tried again when it fails in passing,
// read from the log when the workflow is replayed.
//
//	box, err := durable.Create(ctx, sandbox.CreateParams{Runtime: "python3.13", Timeout: sandbox.Duration(time.Hour)})
//	if err != nil {
//		return report, err
//	}
//	defer box.Delete(workflow.WithoutCancel(ctx))
//	if err := box.WriteFile(ctx, "main.py", code, 0); err != nil {
//		return report, err
//	}
//	result, err := box.Run(ctx, sandbox.CommandParams{Argv: []string{"python3", "main.py"}})
//
// A Handle is an id and a name. It can be a step's input, a workflow's result or
// the payload of a hook, and works wherever it is read.
//
// # What a crash leaves behind
//
// Creating is idempotent, by the step's key: a Create that was under way when its
// program died is tried again and finds the sandbox that is there. It is not
// interrupted by a cancelled or expired Context either, so that nothing is made
// that nobody holds: delete it as above, or with a saga (Handle.DeleteOn). The same
// holds for Snapshot and Fork.
//
// A command is started in one step, idempotently too, and waited for in another. A
// program that dies while the command runs finds it again, with all its output. If
// the sandbox has ended meanwhile, the command has: its step fails, or, where the
// sandbox is persistent and the start was not recorded, the command is started anew.
//
// # What is in the log
//
// What steps give back: ids, exits, output (the newest MiB of each stream), what
// files held that were read. What they are given is not: no environment variables,
// no content of files written, no network policy with its credentials. The
// *sandbox.Client is never in it; steps take the one that WithClient put into the
// context of the worker, or the daemon and token of this machine.
package durable
