// Package workflow defines and runs durable workflows: functions that survive
// crashes.
//
// Most programs need two functions: Step makes a function whose result is recorded,
// Define makes a workflow of such steps.
//
//	var charge = workflow.Step("charge", func(ctx context.Context, o Order) (Receipt, error) { ... })
//
//	var order = workflow.Define("order", func(ctx workflow.Context, o Order) (Receipt, error) {
//		if err := workflow.Sleep(ctx, o.Grace); err != nil {
//			return Receipt{}, err
//		}
//		return charge.Run(ctx, o)
//	})
//
// A Client, from workflow/sqlite, workflow/postgres or Connect, starts runs; a
// Worker executes them, in the same program or in another one.
//
//	client, err := sqlite.Open(ctx, "orders.db", sqlite.Options{})
//	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: workflow.Definitions(order)})
//	err = worker.Start(ctx)
//	run, err := order.Start(ctx, client, o, workflow.Key(o.ID))
//	receipt, err := run.Result(ctx)
//
// # Runs and their logs
//
// A run is a call of a workflow. All it asks for and all it is answered is in its
// log, in the order it was committed. When a run has to go on after a crash, on
// another machine or after having been idle for long, its function is called again
// and fed with that log: it takes the same way, without anything being done twice,
// and goes on where the log ends. So workflow code must be deterministic. It has a
// Context for what it needs of time, randomness and logs; what else touches the
// world is a step. The command cay-vet finds what slips in, package workflowtest
// replays runs in tests, and a run whose log does not fit the code is stopped with
// a DivergenceError, which shows both, before anything happens.
//
// # Steps
//
// StepDef.Run and Do wait for a step, StepDef.Go and DoAsync do not. A step that
// returns an error is tried again, three times unless MaxRetries says otherwise;
// Fatal and Retryable, returned by a step, overrule that. Steps are executed at
// least once: StepInfo has a key by which others can recognise a second attempt,
// and a TxStep writes to the engine's own database exactly once. Timeout and
// Heartbeat bound attempts. Stream and ByteStream send output to whoever follows
// the run.
//
// # Waiting
//
// Sleep waits for any time. A hook (NewHook, ResumeHook) waits for somebody, a
// webhook for an HTTP request. Go runs branches beside each other, one at a time,
// and All, AllSettled, Race, Any and Selector wait for several things at once.
// WithTimeout and WithCancel bound what waits; a run that is cancelled sees
// ErrCancelled wherever it waits, and can clean up under WithoutCancel. A Saga
// undoes what was done.
//
// A run that waits for long costs nothing but its rows in the database.
//
// # Composition
//
// A workflow calls another one as a function (Definition.Run, Definition.Go), or
// starts it as a run of its own (Definition.StartChild). One that goes on for ever
// ends with Definition.ContinueAsNew before its log is too long.
//
// # Change
//
// What a workflow asks for is known by its name and how often its function, branch
// or inline child has asked for that name, not by its place among everything else.
// Code may be added after what runs have recorded, or in branches of its own, at any
// time. To change what comes before, ask Version which way a run takes. To leave
// runs to the program that began them, give workers a Build.
//
// # Compatibility
//
// Names of workflows, steps and changes, and the form of stored values, are the
// program's to keep while runs are. Logs of this release are read by all later ones
// of the same major version.
package workflow
