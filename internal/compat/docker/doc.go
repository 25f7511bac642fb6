// Package docker serves the Docker Engine API on a unix socket, over the
// sandboxes of a cay daemon: a container is a sandbox with one command that it
// runs. The package translates requests, and decides nothing.
//
// The sandbox of a container keeps the whole state of the container: tags find
// it, annotations hold the request it was made with, the command that runs, and
// how that ended. A Server therefore goes on after a restart where the one
// before it stopped. Memory holds only what belongs to open connections: waiting
// clients, exec instances, listeners of published ports, sidecars of workerd.
//
// The socket speaks for one token and its project. Fields that would
// lower the isolation of a sandbox are refused; policy.go lists every field.
package docker
