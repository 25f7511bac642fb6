// Package scripted is the model cay/scripted, which answers from a file. It needs
// no network and no key, and the same calls get the same answers, so that first
// steps, examples and tests run anywhere.
//
// A script is YAML or JSON, up to 4 MiB:
//
//	replies:
//	  - match: weather in (\w+)      # of the last text a user said; absent: anything
//	    turn: 1                      # only the first answer of a conversation; absent: any
//	    reasoning: They want the weather.
//	    tool_calls:
//	      - name: weather
//	        input: {city: Oslo}      # a string is taken as it is, JSON or not
//	  - match: weather
//	    text: "It is {result}."      # what the last tool returned
//	    usage: {input: 20, output: 5, cache_read: 10, cache_write: 0, reasoning: 2}
//	    finish: length               # stop, length, tool-calls, content-filter, error, other
//	    delay: 200ms                 # before the first word; up to 10 minutes
//	  - match: (?i)^flaky
//	    sequence:                    # one reply for each call; the last one stays
//	      - error: {status: 503, message: Overloaded., code: overloaded, retry_after: 2s}
//	      - text: Now it works.
//	  - match: breaks off
//	    text: This is where            # an error with a text comes after the text
//	    error: {status: 500}
//	  - text: "You said: {question}"
//	embeddings:
//	  dimensions: 64                 # of vectors, if the call does not say; the default
//
// The first reply that matches answers. Its text may have {question}, which is the
// last text of a user, and {result}, the last of a tool. A call that nothing
// matches is an error that says so.
//
// A reply that says nothing is made up, as all are if there is no script: a tool
// that must be called is called, JSON that is asked for has the form of its schema,
// and everything else is told what it said. Usage that is not given counts words.
// An answer with more words than the call allows is cut and ends with length.
package scripted
