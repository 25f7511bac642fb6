// Package scripted implements the model cay/scripted, which answers from a file. It needs
// no network and no key, and equal calls get equal answers, so that first steps, examples
// and tests run anywhere.
//
// A script is YAML or JSON, up to 4 MiB:
//
//	replies:
//	  - match: weather in (\w+)      # matches the last user text; absent: anything
//	    turn: 1                      # only the conversation's first answer; absent: any
//	    reasoning: They want the weather.
//	    tool_calls:
//	      - name: weather
//	        input: {city: Oslo}      # a string is sent unchanged, JSON or not
//	  - match: weather
//	    text: "It is {result}."      # the last tool's output
//	    usage: {input: 20, output: 5, cache_read: 10, cache_write: 0, reasoning: 2}
//	    finish: length               # stop, length, tool-calls, content-filter, error, other
//	    delay: 200ms                 # before the first word; up to 10 minutes
//	  - match: (?i)^flaky
//	    sequence:                    # a reply per call; the last one repeats
//	      - error: {status: 503, message: Overloaded., code: overloaded, retry_after: 2s}
//	      - text: Now it works.
//	  - match: breaks off
//	    text: This is where            # an error follows the text
//	    error: {status: 500}
//	  - text: "You said: {question}"
//	embeddings:
//	  dimensions: 64                 # default length of vectors; this is the default
//
// The first reply that matches answers. Its text may contain {question}, the last text of
// a user message, and {result}, the last tool output. A call without a matching reply
// fails with an error that says so.
//
// An empty reply is filled in automatically, as all replies are if there is no script: a
// required tool is called, requested JSON has the form of its schema, and otherwise the
// answer repeats the question. If usage is missing, it counts words. An answer with more
// words than the call allows is cut and has the finish reason length.
package scripted
