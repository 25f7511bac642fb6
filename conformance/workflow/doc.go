// Package workflow runs programs of the Workflow SDK, unmodified, against a daemon: both lines of
// the SDK, with the SDK's own client of the hosted service as the World.
//
// "make conformance-workflow-deps" in the root installs the SDK, as v4, v5 and testing lock it.
// Apps find the daemon as users' apps do, by "cay vercel exec -- npm start".
//
//	app/               an app of our own, with one workflow for each thing that the SDK can do
//	workflow_test.go   its workflows, their results, errors, hooks, webhooks and streams
//	killed_test.go     the same when the app or the daemon is killed
//	e2e/               an app on Hono and on Next.js, for the checks of the SDK's end-to-end suite
//	e2e_test.go        these checks, by the suite's names
//	example_test.go    examples/workflow-js, and how its runs, sandboxes and calls of models are linked
//	agent/             WorkflowAgent of AI SDK 7, with a page
//	chat_test.go       pages of both lines in a browser that reloads them
//	testing/           the SDK's own suite for Worlds
//
// Each test has its own daemon, with the deployments and runs of its apps.
package workflow
