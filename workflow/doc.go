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
// A run is a call of a workflow. Its log records every call of its code to the engine and
// every answer, in the order of their commits. When a run has to go on after a crash, on
// another machine or after a long idle time, its function is called again and fed with
// that log: the function takes the same path, without repeating any step, and goes on
// where the log ends. So workflow code must be deterministic. Its Context provides time,
// randomness and logs; all other effects on the world belong in steps. The command
// cay-vet finds mistakes, package workflowtest replays runs in tests, and a run whose log
// does not fit the code is stopped, before it does anything, with a DivergenceError that
// shows both.
//
// # Steps
//
// StepDef.Run and Do wait for a step, StepDef.Go and DoAsync do not. A step that returns
// an error is tried again, three times unless MaxRetries says otherwise; if a step
// returns a Fatal or Retryable error, that error decides. Steps are executed at least
// once: StepInfo has a key by which external services can recognise a second attempt, and
// a TxStep writes to the engine's own database exactly once. Timeout and Heartbeat bound
// attempts. Stream and ByteStream send output to readers that follow the run.
//
// # Waiting
//
// Sleep waits for any time. A hook (NewHook, ResumeHook) waits for a value from outside,
// a webhook for an HTTP request. Go runs branches concurrently, one at a time, and All,
// AllSettled, Race, Any and Selector wait for several futures at once. WithTimeout and
// WithCancel bound waits; a run that is cancelled gets ErrCancelled from every wait, and
// can clean up under WithoutCancel. A Saga runs compensations.
//
// A run that waits for a long time costs only its rows in the database.
//
// # Composition
//
// A workflow calls another one as a function (Definition.Run, Definition.Go), or starts
// it as a run of its own (Definition.StartChild). A workflow that goes on for ever ends
// with Definition.ContinueAsNew before its log is too long.
//
// # Change
//
// A call of the code is identified by its name and by how often its function, branch or
// inline child has used that name, not by its position among all calls. Code may be added
// after the calls that runs have recorded, or in branches of its own, at any time. To
// change earlier code, ask Version which path a run takes. To leave runs to the program
// that began them, give workers a Build.
//
// # Compatibility
//
// A program must keep the names of workflows, steps and changes, and the form of stored
// values, as long as runs that use them are kept. All later releases of the same major
// version read the logs of this release.
package workflow
