// Package agent runs language models with tools in a loop that survives crashes.
//
// An Agent is a model, instructions and tools. Each call of the model and each
// execution of a tool is a step of the workflow that the agent runs in: a step is
// retried after a temporary failure, and a completed step is read from the run's
// log and never repeated. The agent writes the model's answer, as it arrives, to a
// stream of the run, in the chunks that chat pages built with the AI SDK understand
// (Chunk); package agent/chat serves the stream to them.
//
//	var weather = agent.NewTool("weather", "The weather of a city now.",
//		func(ctx context.Context, in struct{ City string }) (Weather, error) { ... })
//
//	var assistant = agent.New(agent.Config{
//		Name:         "assistant",
//		Model:        "anthropic/claude-sonnet-4.5",
//		Instructions: "Answer in one sentence.",
//		Tools:        []agent.Tool{weather},
//	})
//
//	result, err := assistant.Generate(ctx, agent.Call{Prompt: "Shall I take an umbrella to Oslo?"})
//
// ctx is a workflow.Context: agents run in workflows, alone (Agent.Workflow) or as
// a part of other work. Models are called through the gateway (Gateway), by any
// name that the gateway knows.
package agent
