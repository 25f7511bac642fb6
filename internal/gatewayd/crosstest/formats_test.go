package crosstest_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/aisdk"
	"github.com/cayhq/cay/internal/gatewayd/chatcompletions"
	"github.com/cayhq/cay/internal/gatewayd/converse"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/gemini"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/messages"
	"github.com/cayhq/cay/internal/gatewayd/responses"
)

// formats returns all wire formats.
func formats() []any {
	return []any{aisdk.New(), chatcompletions.New(), messages.New(), responses.New(), gemini.New(), converse.New()}
}

// target returns the target that a recorded answer came from.
func target(f *gatewaytest.Fixture) *hub.Target {
	return &hub.Target{Provider: f.Provider, Model: "recorded"}
}

// failing maps recorded answers that are failures to the reason.
var failing = map[string]string{}

// empty maps recorded answers without content to the reason.
var empty = map[string]string{}

// loss is something that a surface cannot express.
type loss struct {
	surface, version string // version empty: all
	field            string
	// values matches the lost values of the field: for a list, matching elements are not
	// expected; for another field, values is the expected value.
	values string
	why    string
	moves  bool // the value appears elsewhere or in another form
}

// deferred is the recording that contains the result of an earlier answer's call.
const deferred = "anthropic-tool-search-deferred-bm25.2"

// of reports whether the loss applies to a recording.
func (l loss) of(name string) bool {
	return !strings.HasPrefix(l.values, `^result tool_search`) || strings.Contains(name, deferred)
}

// hosted matches the provider-run tools in the recordings. For a new tool, check first
// whether the surface can express it.
const hosted = `^(call|result) (code_execution|web_search|web_fetch|file_search|image_generation|code_interpreter|advisor|shell|tool_search(_tool_(bm25|regex))?|x_\w+_search|echo|mcp\.\w+)$`

var losses = []loss{
	{"aisdk", "2", "Other", `^custom |^tool-approval-request`, "version 2 has neither custom parts nor approvals: they are left out with a warning", false},
	{"aisdk", "3", "Other", `^custom `, "version 3 has no custom parts: they are left out with a warning", false},
	{"chatcompletions", "", "Hosted", hosted, "it has no tools that a provider runs: what they did is in the text", false},
	{"chatcompletions", "", "Other", `^custom (openai\.(mcp_list_tools|program|program_output|compaction)|anthropic\.(fallback|compaction))$|^tool-approval-request`, "it has text, reasoning, calls and citations of web pages", false},
	{"chatcompletions", "", "Sources", `\.pdf$`, "as for Other", false},
	{"chatcompletions", "", "TextSignatures", ``, "text has no place for one; Gemini, which alone signs text, does not insist on it", false},
	{"messages", "", "TextSignatures", ``, "as for chatcompletions", false},
	{"messages", "", "Other", `^custom openai|^tool-approval-request`, "it has no blocks for these items of OpenAI", false},
	{"messages", "", "Sources", `\.pdf$`, "its citations of documents point into documents of the request; files of a provider's store are none", false},
	{"messages", "", "Calls", `^xs_call_`, "the input of a tool is an object: text, as of custom tools, comes as a member of one", true},
	{"responses", "", "Other", `^custom (anthropic\.fallback|openai\.compaction)`, "it has no item for a change of the model: one of compaction carries it", true},
	{"responses", "", "Hosted", `^result tool_search`, "a result is a part of the item of its call, and this one's call was in an earlier answer", false},
	{"aisdk", "2", "Hosted", `^(call|result) (echo|mcp\.\w+)$`, "ai 5 fails at tools it did not name in its request, as those of MCP servers: they are left out with a warning", false},
	{"aisdk", "2", "Hosted", `^result tool_search$`, "as for tools of MCP servers: the call was in an earlier answer", false},
}

// lost returns the losses of a surface.
func lost(surface, version string) []loss {
	return slices.DeleteFunc(slices.Clone(losses), func(l loss) bool {
		return l.surface != surface || l.version != "" && l.version != version
	})
}

// readWhole decodes a surface's answer like its clients.
func readWhole(t *testing.T, name string, s hub.Surface, version string, body []byte) (*hub.Result, *hub.Error) {
	t.Helper()
	u := upstreams()[s.Name()]
	if u == nil {
		return sdkWhole(t, name, version, body)
	}
	r, err := u.ReadResult(&hub.Target{Provider: "cay", Model: "again"}, body)
	if err != nil {
		return &hub.Result{}, failure(t, err)
	}
	return r, nil
}

// readStream is readWhole for a stream.
func readStream(t *testing.T, name string, s hub.Surface, version string, body []byte) (*hub.Result, *hub.Error) {
	t.Helper()
	u := upstreams()[s.Name()]
	if u == nil {
		return sdkStream(t, name, version, body)
	}
	_, r, err := drain(t, name, u.NewReader(&hub.Target{Provider: "cay", Model: "again"}, bytes.NewReader(body)))
	return r, err
}
