// Package workflow runs programs of the Workflow SDK, unmodified, against a daemon: both lines of
// the SDK, with the SDK's own client of the hosted service as the World.
//
// "make conformance-workflow-deps" in the root installs the SDK, as v4, v5 and testing lock it.
// Apps find the daemon as users' apps do, by "cay vercel exec -- npm start".
//
//	app/               an app of our own, with one workflow for each thing that the SDK can do
//	workflow_test.go   its workflows, their results, errors, hooks, webhooks and streams
//	short_test.go      the part that every change runs, with the packages that short/ locks
//	killed_test.go     the same when the app or the daemon is killed
//	random_test.go     the app, the daemon and both, killed at random points under many runs
//	limit_test.go      limits by workflow
//	cli_test.go        the SDK's own command line
//	e2e/               an app on Hono and on Next.js, for the checks of the SDK's end-to-end suite
//	e2e_test.go        these checks, by the suite's names
//	e2e_errors_test.go those of errors and retries
//	example_test.go    examples/workflow-js, and how its runs, sandboxes and calls of models are linked
//	agent/             WorkflowAgent of AI SDK 7, with a page
//	chat_test.go       pages of both lines in a browser that reloads them
//	testing/           the SDK's own suite for Worlds
//
// Each test has its own daemon, with the deployments and runs of its apps.
//
// Users of other Worlds have reported faults in public. Each has a test here, or cannot happen:
//
//	three lost workers fail a step for ever    queue.TestQueue_Again: a message whose delivery is
//	                                           lost is delivered again, without a limit
//	runs go on only when a process boots       TestKilled, TestDaemonKilled: the daemon has the queue
//	                                           and the timers, and needs no request
//	entity and event are written apart         queuetest "OneBatch", queue.TestCrash: the log, its run
//	                                           and its messages are one commit
//	two workers record a step twice            workflowd.TestExternal_concurrently
//	a hook during a step runs it twice, or     TestApp "hook beside a step": the step's body runs
//	waits for it                               once, the workflow goes on meanwhile;
//	                                           vercelworkflow.TestPost: a step keeps the message
//	                                           that owns it
//	deliveries of a run wait for each other    queue.TestQueue_FairToRuns
//	readers of streams stall, or read all      vercelworkflow.TestStreams: readers take chunks by index
//	the first byte comes late, events too      stream rows of "cay-bench workflow-js"
//	the whole queue is in memory               queue.TestQueue_MoreThanMemory, TestQueue_Sleepers
//	a sleep costs deliveries                   queue.TestQueue_Sleep: 24 hours, one delivery
//	steps take longer as the history grows     growth rows of "cay-bench workflow-js"; the daemon
//	                                           keeps the log of a run at work in memory
//	                                           (workflowd.TestView)
//	a run goes on in another build             queue.TestQueue_TwoBuilds
//	hooks fail when their build is gone        vercelworkflow.TestAnalytics: a hook takes a value while
//	                                           no app is registered
//	a sweep kills runs that wait for a hook    leases are of deliveries, and no sweep ends runs
//	jobs are consumed before the app listens   queue.TestQueue_Unregistered, TestQueue_Held: the
//	                                           daemon holds them, and says why
//	a new version of the protocol hangs runs   vercelworkflow.TestPost: each run has its own version
//	no retention                               workflowd.TestExternal_retention
//	a proxy passes on half of the paths        vercelworkflow.TestPush: 404 is no app, and the
//	                                           message is held with the reason
//	no limits by workflow                      TestLimit, workflowd.TestAdmission_Concurrency, _Rate,
//	                                           _Priority
//	@vercel/sandbox breaks "next build"        TestExample builds with both
package workflow
