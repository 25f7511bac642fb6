package messages

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/claude"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// request is the body of a call. Its members are in the order of a cached prefix: tools,
// system, messages.
type request struct {
	Model        string          `json:"model"`
	MaxTokens    int64           `json:"max_tokens,omitempty"`
	CacheControl json.RawMessage `json:"cache_control,omitempty"`
	Tools        []*tool         `json:"tools,omitempty"`
	ToolChoice   *toolChoice     `json:"tool_choice,omitempty"`
	System       []*block        `json:"system,omitempty"`
	Messages     []*message      `json:"messages"`

	StopSequences []string         `json:"stop_sequences,omitempty"`
	Temperature   *float64         `json:"temperature,omitempty"`
	TopP          *float64         `json:"top_p,omitempty"`
	TopK          *int64           `json:"top_k,omitempty"`
	Thinking      *claude.Thinking `json:"thinking,omitempty"`
	OutputConfig  *outputConfig    `json:"output_config,omitempty"`
	Metadata      *metadata        `json:"metadata,omitempty"`
	ServiceTier   string           `json:"service_tier,omitempty"`

	Container         json.RawMessage `json:"container,omitempty"`
	ContextManagement json.RawMessage `json:"context_management,omitempty"`
	MCPServers        json.RawMessage `json:"mcp_servers,omitempty"`
	Speed             json.RawMessage `json:"speed,omitempty"`
	InferenceGeo      json.RawMessage `json:"inference_geo,omitempty"`

	Stream bool `json:"stream,omitempty"`
}

type message struct {
	Role    string   `json:"role"`
	Content []*block `json:"content"`
}

type tool struct {
	Type         string            `json:"type,omitempty"`
	Name         string            `json:"name,omitempty"`
	Description  string            `json:"description,omitempty"`
	InputSchema  json.RawMessage   `json:"input_schema,omitempty"`
	Strict       bool              `json:"strict,omitempty"`
	Examples     []json.RawMessage `json:"input_examples,omitempty"`
	CacheControl json.RawMessage   `json:"cache_control,omitempty"`
	more         json.RawMessage   // an object whose members follow
}

func (t *tool) MarshalJSON() ([]byte, error) {
	type plain tool
	return encodeWith((*plain)(t), t.more)
}

type toolChoice struct {
	Type            string `json:"type"`
	Name            string `json:"name,omitempty"`
	DisableParallel bool   `json:"disable_parallel_tool_use,omitempty"`
}

type outputConfig struct {
	Effort string        `json:"effort,omitempty"`
	Format *outputFormat `json:"format,omitempty"`
}

type outputFormat struct {
	Type   string          `json:"type"`
	Schema json.RawMessage `json:"schema"`
}

type metadata struct {
	UserID string `json:"user_id"`
}

// block is any content block; Type determines the members in use.
type block struct {
	Type         string          `json:"type"`
	ID           string          `json:"id,omitempty"`
	ToolUseID    string          `json:"tool_use_id,omitempty"`
	Name         string          `json:"name,omitempty"`
	ServerName   string          `json:"server_name,omitempty"`
	Input        json.RawMessage `json:"input,omitempty"`
	Text         *string         `json:"text,omitempty"`
	Thinking     *string         `json:"thinking,omitempty"`
	Signature    *string         `json:"signature,omitempty"`
	Data         string          `json:"data,omitempty"` // redacted_thinking
	Source       *source         `json:"source,omitempty"`
	Title        string          `json:"title,omitempty"`
	Context      string          `json:"context,omitempty"`
	Content      any             `json:"content,omitempty"` // text, blocks or JSON
	IsError      *bool           `json:"is_error,omitempty"`
	Citations    json.RawMessage `json:"citations,omitempty"`
	Caller       json.RawMessage `json:"caller,omitempty"`
	CacheControl json.RawMessage `json:"cache_control,omitempty"`
	more         json.RawMessage // an object whose members follow
}

func (b *block) MarshalJSON() ([]byte, error) {
	type plain block
	return encodeWith((*plain)(b), b.more)
}

type source struct {
	Type      string `json:"type"`
	MediaType string `json:"media_type,omitempty"`
	Data      string `json:"data,omitempty"`
	URL       string `json:"url,omitempty"`
	FileID    string `json:"file_id,omitempty"`
}

// encodeWith encodes an object with the members of another object added.
func encodeWith(v any, more json.RawMessage) ([]byte, error) {
	raw, err := hub.Encode(v)
	if err != nil {
		return nil, err
	}
	return join(raw, more), nil
}

// join returns an object with the members of both. A value that is no object counts as an
// empty one.
func join(object, more json.RawMessage) []byte {
	more = bytes.TrimSpace(more)
	if len(more) < 2 || more[0] != '{' {
		return object
	}
	if more = bytes.TrimSpace(more[1 : len(more)-1]); len(more) == 0 {
		return object
	}
	joined := append(make([]byte, 0, len(object)+len(more)+1), object[:len(object)-1]...)
	if len(object) > 2 {
		joined = append(joined, ',')
	}
	return append(append(joined, more...), '}')
}

// without returns an object without some of its members, nil if none remain.
func without(object gjson.Result, names ...string) json.RawMessage {
	if !object.IsObject() {
		return nil
	}
	raw := []byte{'{'}
	object.ForEach(func(key, value gjson.Result) bool {
		for _, name := range names {
			if key.Str == name {
				return true
			}
		}
		if len(raw) > 1 {
			raw = append(raw, ',')
		}
		raw = append(append(append(raw, key.Raw...), ':'), value.Raw...)
		return true
	})
	if len(raw) == 1 {
		return nil
	}
	return append(raw, '}')
}

// rename returns JSON with changed member names, also in nested objects.
func rename(value gjson.Result, name func(string) string) json.RawMessage {
	if !value.IsObject() && !value.IsArray() {
		return json.RawMessage(value.Raw)
	}
	object := value.IsObject()
	raw := []byte{'['}
	if object {
		raw[0] = '{'
	}
	value.ForEach(func(key, value gjson.Result) bool {
		if len(raw) > 1 {
			raw = append(raw, ',')
		}
		if object {
			raw = append(gjson.AppendJSONString(raw, name(key.Str)), ':')
		}
		raw = append(raw, rename(value, name)...)
		return true
	})
	if object {
		return append(raw, '}')
	}
	return append(raw, ']')
}

// camel converts max_uses to maxUses, snake does the reverse.
func camel(name string) string {
	var b strings.Builder
	up := false
	for i, c := range name {
		switch {
		case c == '_' && i > 0:
			up = true
		case up && 'a' <= c && c <= 'z':
			b.WriteRune(c - 'a' + 'A')
			up = false
		default:
			if up {
				b.WriteByte('_') // for names such as ephemeral_5m, where no capital letter marks the place
			}
			b.WriteRune(c)
			up = false
		}
	}
	return b.String()
}

func snake(name string) string {
	var b strings.Builder
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			c += 'a' - 'A'
		}
		b.WriteRune(c)
	}
	return b.String()
}

func camels(value gjson.Result) json.RawMessage { return rename(value, camel) }

func snakes(raw json.RawMessage) json.RawMessage { return rename(gjson.ParseBytes(raw), snake) }
