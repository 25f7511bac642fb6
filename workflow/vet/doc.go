// Package vet finds code that a workflow must not contain. Workflow code runs again from
// its beginning after a crash, fed with its log, and must then make the same calls as
// before; so it must not use clocks, random numbers, goroutines or I/O of its own: these
// belong in steps.
//
// Workflow code is every function with a parameter of type workflow.Context, and every
// function that uses a captured one. The analyzer reports
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
// Calls are followed through functions of any package, except the standard library, whose
// functions are known by name: a helper that calls time.Now is reported where a workflow
// calls the helper, with the chain of calls. Calls through interfaces and function values
// are not followed.
//
// To suppress a wrong report, write a comment with the reason on the line or the one
// above:
//
//	//cayvet:allow the host name is only shown
//
// cmd/cay-vet runs the analyzer, alone or for go vet:
//
//	go build -o cay-vet github.com/cayhq/cay/cmd/cay-vet
//	go vet -vettool=$PWD/cay-vet ./...
package vet
