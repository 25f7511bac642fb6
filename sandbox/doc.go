// Package sandbox is the SDK for sandboxes: isolated machines, made in a moment,
// in which untrusted programs run.
//
// Most programs need two calls, Client.Create and Handle.Run:
//
//	var c sandbox.Client // the daemon and token of this machine, or CAY_URL and CAY_TOKEN
//	sb, err := c.Create(ctx, sandbox.CreateParams{Runtime: "python3.13"})
//	if err != nil {
//		return err
//	}
//	box := c.Sandbox(sb.ID)
//	defer box.Delete(context.WithoutCancel(ctx))
//	if err := box.WriteFile(ctx, "main.py", code, 0); err != nil {
//		return err
//	}
//	result, err := box.Run(ctx, sandbox.CommandParams{Argv: []string{"python3", "main.py"}})
//
// # Concepts
//
// A Sandbox is a machine with a life cycle: Status is its state, Reason says
// why it ended. A sandbox ends when it is stopped or deleted, when its timeout
// passes (5 minutes unless CreateParams or Extend say otherwise), or when it
// has been idle for its idle timeout. Its files are then lost, unless the
// sandbox is persistent, as sandboxes with a name are: the files of a
// persistent sandbox are saved, and the next call that needs the sandbox starts
// it again from them. Each run of a sandbox is a Session. Handle.Hibernate
// keeps the processes too.
//
// A Snapshot is a copy of a sandbox that other sandboxes start from
// (CreateParams.Snapshot), of the files alone or of the memory as well.
// Handle.Fork copies a sandbox many times while it runs. A Drive is a file
// system that outlives the sandboxes it is mounted into.
//
// A Command is a program started in a sandbox. It belongs to the sandbox, not
// to the connection that started it: its output is kept, within bounds, and can
// be read from any cursor while the sandbox runs. Handle.Command is like
// os/exec, Client.Start and Client.Output are the calls that it is built on.
//
// Files are read and written in the sandbox, by its own kernel, so a link there
// never leads out of it. Handle.CopyTo and Handle.CopyFrom move whole trees,
// Handle.FS is a view for package io/fs.
//
// An Image is a root file system that sandboxes start from; see Client.Images.
// An image belongs to the installation, or to a team.
//
// A Client has one method for each route of the API; a Handle is a Client for
// one sandbox, with the methods that programs call most. Errors are *cay.Error.
//
// # Compatibility
//
// Until version 1 names and fields may change; the changelog says which. The
// package links the standard library and this module only.
package sandbox
