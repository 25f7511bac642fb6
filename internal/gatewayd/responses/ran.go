package responses

import (
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// ran counts the provider-run calls that are charged per call, by item type.
type ran struct {
	searches int64
	images   int64
	tools    map[string]int64
	// containers are the containers in which code ran; providers charge once per
	// container.
	containers map[string]bool
}

// maxContainers is the maximum number of containers counted per answer.
const maxContainers = 1024

// item counts an item by its type, its action's type if any, and its container.
func (r *ran) item(kind, action, container string) {
	switch kind {
	case "web_search_call":
		if action == "" || action == "search" { // opening a page and searching in it cost nothing
			r.searches++
		}
	case "image_generation_call":
		r.images++
	case "code_interpreter_call":
		if container != "" && (r.containers[container] || len(r.containers) == maxContainers) {
			return
		}
		if container != "" {
			if r.containers == nil {
				r.containers = make(map[string]bool)
			}
			r.containers[container] = true
		}
		r.tool("code_interpreter")
	case "x_search_call", "file_search_call", "code_execution_call", "attachment_search_call", "collections_search_call", "document_search_call":
		r.tool(strings.TrimSuffix(kind, "_call"))
	}
}

// custom counts a custom tool that the provider ran: xAI's X searches have several names,
// such as x_keyword_search, and one price.
func (r *ran) custom(name string) {
	if strings.HasPrefix(name, "x_") {
		r.tool("x_search")
	}
}

func (r *ran) tool(name string) {
	if r.tools == nil {
		r.tools = make(map[string]int64)
	}
	r.tools[name]++
}

// json counts an undecoded item.
func (r *ran) json(it gjson.Result) {
	switch kind := it.Get("type").Str; {
	case kind == "message", kind == "reasoning", kind == "function_call":
	case strings.HasSuffix(kind, "_call"):
		r.item(kind, it.Get("action.type").Str, it.Get("container_id").Str)
	}
}

// atLeast raises the counts to those of other, which has seen the same answer.
func (r *ran) atLeast(other *ran) {
	r.searches, r.images = max(r.searches, other.searches), max(r.images, other.images)
	for name, n := range other.tools {
		for r.tools[name] < n {
			r.tool(name)
		}
	}
}

// toolUsage holds the provider's own counts: OpenAI's of searches and images, xAI's of
// all its tools (server_side_tool_usage_details).
type toolUsage struct {
	WebSearch struct {
		NumRequests count `json:"num_requests"`
	} `json:"web_search"`
	ImageGen *struct {
		InputTokens  count `json:"input_tokens"`
		InputDetails struct {
			ImageTokens count `json:"image_tokens"`
		} `json:"input_tokens_details"`
		OutputTokens count `json:"output_tokens"`
	} `json:"image_gen"`
}

type sideTools struct {
	WebSearch       count `json:"web_search_calls"`
	XSearch         count `json:"x_search_calls"`
	CodeInterpreter count `json:"code_interpreter_calls"`
	FileSearch      count `json:"file_search_calls"`
	DocumentSearch  count `json:"document_search_calls"`
}

// imageTokens is the number of tokens assumed for an image if the provider does not say
// it: the maximum of OpenAI's images.
const imageTokens = 6240

// into adds the counts to a usage.
func (r *ran) into(u *hub.Usage, t *toolUsage, side *sideTools) {
	all := ran{searches: r.searches}
	all.atLeast(r)
	if side != nil {
		all.searches = max(all.searches, hub.Count(side.WebSearch.n))
		for name, n := range map[string]*int64{
			"x_search": side.XSearch.n, "code_interpreter": side.CodeInterpreter.n, "file_search": side.FileSearch.n, "document_search": side.DocumentSearch.n,
		} {
			if n := hub.Count(n); n > 0 {
				all.atLeast(&ran{tools: map[string]int64{name: min(n, 1<<16)}})
			}
		}
	}
	other := hub.Usage{Input: hub.N(0), Output: hub.N(r.images * imageTokens)}
	if t != nil {
		all.searches = max(all.searches, hub.Count(t.WebSearch.NumRequests.n))
		if g := t.ImageGen; g != nil { // image input in the prompt costs up to twice as much
			other.Input, other.Output = hub.N(hub.Count(g.InputTokens.n)+hub.Count(g.InputDetails.ImageTokens.n)), hub.N(hub.Count(g.OutputTokens.n))
			if *other.Output == 0 {
				other.Output = hub.N(r.images * imageTokens)
			}
		}
	}
	if all.searches > 0 {
		u.Searches = &all.searches
	}
	u.Tools = all.tools
	if *other.Input+*other.Output > 0 {
		other.Fill()
		u.Others = append(u.Others, other)
	}
}
