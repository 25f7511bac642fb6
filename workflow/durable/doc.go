// Package durable gives workflows sandboxes that outlive the program: Handles with the
// names and shapes of package sandbox. Each method that reaches the sandbox is one step
// or two: it is retried after a temporary error, and its result is read from the log when
// the workflow is replayed.
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
// A Handle is an id and a name. It can be a step's input, a workflow's result or the
// payload of a hook, and works wherever it is decoded.
//
// # After a crash
//
// Create is idempotent, by the step's key: a Create that was interrupted because its
// program died is tried again and finds the existing sandbox. A cancelled or expired
// Context does not interrupt Create either, because the workflow would have no Handle of
// the new sandbox: delete the sandbox as above, or with a saga (Handle.DeleteOn). The
// same holds for Snapshot and Fork.
//
// A command is started in one step, idempotently too, and waited for in another. A
// program that dies while the command runs finds the command again, with all its output.
// If the sandbox has ended meanwhile, so has the command: its step fails, or, if the
// sandbox is persistent and the start was not recorded, the command is started again.
//
// # Contents of the log
//
// The log has the results of steps: ids, exits, output (the newest MiB of each stream),
// the contents of files that were read. It does not have their arguments: environment
// variables, the contents of written files, network policies with their credentials. The
// *sandbox.Client is never in the log; steps use the one that WithClient put into the
// context of the worker, or the daemon and token of this machine.
package durable
