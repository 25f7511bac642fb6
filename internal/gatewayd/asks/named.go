package asks

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// Named is an id in a request, and the member that contains it.
type Named struct{ Member, ID string }

// maxNamed is the maximum number of ids in a request.
const maxNamed = 64

// Conversation reports whether the id stands for earlier turns, or for a prompt that the
// provider keeps.
func (n Named) Conversation() bool {
	switch n.Member {
	case "previous_response_id", "conversation", "prompt", "cachedContent", "cached_content":
		return true
	}
	return false
}

// NamedIn returns the ids in a body.
func NamedIn(o *scan.Object) (all []Named, bad *hub.Error) {
	add := func(member string, v gjson.Result) {
		one := func(v gjson.Result) {
			if v.Type == gjson.String && v.Str != "" {
				all = append(all, Named{member, v.Str})
			}
		}
		one(v)
		if v.IsObject() {
			v.ForEach(func(key, v gjson.Result) bool { // every id member, if it is repeated
				if key.Str == "id" {
					one(v)
				}
				return true
			})
		}
	}
	for _, member := range [...]string{"previous_response_id", "conversation", "prompt", "container", "cachedContent", "cached_content"} {
		if m := o.Find(member); m != nil {
			if v := gjson.ParseBytes(o.Body[m.Value:m.End]); member != "prompt" || v.IsObject() { // otherwise prompt is plain text
				add(member, v)
			}
		}
	}
	if o.Marks&(scan.Named|scan.ID|scan.Disguise) != 0 {
		w := naming{add: add}
		for i := range o.Members {
			if m := &o.Members[i]; !data[m.Key] {
				w.walk(gjson.ParseBytes(o.Body[m.Value:m.End]))
			}
		}
	}
	if len(all) > maxNamed {
		return nil, &hub.Error{Kind: hub.BadRequest, Param: all[maxNamed].Member, Message: fmt.Sprintf("the request names %d files and other things that the provider keeps; at most %d are allowed", len(all), maxNamed)}
	}
	return all, nil
}

// data are members that contain free-form data, in which ids of providers have no
// meaning.
var data = map[string]bool{
	"args": true, "response": true, "json": true, "parameters": true, "input_schema": true, "inputSchema": true, "schema": true, "json_schema": true,
	"metadata": true, "arguments": true, "annotations": true, "results": true, "citations": true, "responseJsonSchema": true, "responseSchema": true,
}

// naming searches a body for ids.
type naming struct {
	add func(member string, v gjson.Result)
}

func (w *naming) walk(v gjson.Result) {
	switch {
	case v.IsArray():
		v.ForEach(func(_, v gjson.Result) bool {
			w.walk(v)
			return true
		})
	case v.IsObject():
		var t thing
		v.ForEach(func(key, v gjson.Result) bool {
			switch {
			case v.Type == gjson.Null:
			case key.Str == "type":
				t.kinds = append(t.kinds, v.Str)
				fallthrough
			default:
				t.members++
			}
			return true
		})
		v.ForEach(func(key, v gjson.Result) bool {
			w.member(&t, key.Str, v)
			return true
		})
	}
}

// thing is an object, with all values of its type member: parsers may use either of two
// values.
type thing struct {
	kinds   []string
	members int
}

// is reports whether the type may be read as kind; only reports whether it cannot be read
// as any kind but the given ones.
func (t *thing) is(kind string) bool { return slices.Contains(t.kinds, kind) }

func (t *thing) only(kinds ...string) bool {
	return !slices.ContainsFunc(t.kinds, func(k string) bool { return !slices.Contains(kinds, k) })
}

// member checks a member of a thing.
func (w *naming) member(t *thing, key string, v gjson.Result) {
	switch key {
	case "file_id", "container_id", "vector_store_id", "container":
		w.add(key, v)
	case "file_ids", "vector_store_ids":
		v.ForEach(func(_, v gjson.Result) bool {
			w.add(key, v)
			return true
		})
		return
	case "id":
		if t.is("item_reference") || len(t.kinds) == 0 && t.members == 1 {
			w.add("item_reference", v)
		}
	case "skill_id":
		if len(t.kinds) == 0 || !t.only("anthropic") { // skills of the type anthropic belong to everybody
			w.add(key, v)
		}
	case "fileUri", "file_uri":
		if !openly(v.Str) {
			w.add(key, v)
		}
	case "s3Location":
		w.add(key, v.Get("uri"))
	case "input": // input of a tool call; at the top level it is the prompt
		if t.only("tool_use", "server_tool_use", "mcp_tool_use") {
			return
		}
	}
	if !data[key] && (v.IsObject() || v.IsArray()) {
		w.walk(v)
	}
}

// openly reports whether a URL is read without the account's credentials.
func openly(uri string) bool {
	u := strings.ToLower(uri)
	return (strings.HasPrefix(u, "https://") || strings.HasPrefix(u, "http://")) && !strings.Contains(u, "googleapis.com/")
}
