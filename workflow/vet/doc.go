// Package vet finds what a workflow must not do. Workflow code runs again from
// its beginning after a crash, fed with what its log says, and must then ask for
// the same things as before; so it has no clock, no random numbers, no
// goroutines and no world of its own. Those belong into steps.
//
// Workflow code is every function with a parameter of type workflow.Context, and
// every one that uses a captured one. It is told of
//
//   - clocks and timers, random numbers, ids of other packages
//   - go statements, channels, select, locks and wait groups
//   - files, network, processes, databases, the environment
//   - variables of packages that are changed while the program runs
//   - context.Background, and with it calls that are made for steps
//   - iterations over maps that ask for steps, or put together an order
//   - printing and loggers that speak again on each replay
//   - steps that change a variable of the workflow, which replay does not
//     repeat, or that use the workflow's Context
//
// What it calls is followed through functions of any package, except the
// standard library, whose functions are known by name: a helper that calls
// time.Now is reported where a workflow calls it, with the way there. Calls
// through interfaces and function values are not followed.
//
// Where it is wrong, a comment on the line or the one above says why:
//
//	//cayvet:allow the host name is only shown
//
// cmd/cay-vet runs it, alone or for go vet:
//
//	go build -o cay-vet github.com/cayhq/cay/cmd/cay-vet
//	go vet -vettool=$PWD/cay-vet ./...
package vet
