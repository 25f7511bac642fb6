package gatewayd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// Many projects share a provider account, and objects that the provider keeps under an id
// (answers, files, containers) belong to the account. A request may name only objects
// that its own project created: the gateway stores the owner of ids in answers, and looks
// up ids in requests before it sends them. A request that brings a credential uses its
// own account, so its ids are not checked.

// keeper is a ledger that stores the owners of providers' ids.
type keeper interface {
	Keep(c *ledger.Caller, provider string, tokens int64, ids []string)
	Whose(ctx context.Context, provider, id string) (*ledger.Kept, error)
}

// named is an id in a request, and the member that contains it.
type named struct{ member, id string }

// maxNamed is the maximum number of ids in a request.
const maxNamed = 64

// owned checks that the caller's project owns the ids in a body, and returns how many tokens they
// add to the prompt; -1 if the number is unknown.
func (e *Engine) owned(ctx context.Context, caller *ledger.Caller, body *object, o *offer, cred provider.Credential) (int64, *hub.Error) {
	k, ok := e.cfg.Ledger.(keeper)
	all, bad := namedIn(body)
	if bad != nil || len(all) == 0 {
		return 0, bad
	}
	tokens := int64(0)
	free := !ok || o.provider.ForeignIDs || cred != nil && cred.BYOK()
	for _, n := range all {
		var kept *ledger.Kept
		if ok {
			var err error
			if kept, err = k.Whose(ctx, o.provider.Name, n.id); err != nil {
				return 0, asError(err)
			}
		}
		mine := kept != nil && kept.TeamID == caller.TeamID && kept.ProjectID == caller.ProjectID
		switch {
		case !mine && !free:
			return 0, &hub.Error{Kind: hub.NotFound, Code: "not_found", Param: n.member,
				Message: fmt.Sprintf("there is no %.100q of this project (%s); what was made elsewhere can be named if the operator allows foreign_ids of %s", n.id, n.member, o.provider.Name)}
		case !n.conversation():
		case mine && tokens >= 0:
			tokens += kept.Tokens
		default:
			tokens = -1
		}
	}
	return tokens, nil
}

// conversation reports whether the id stands for earlier turns, or for a prompt that the
// provider keeps.
func (n named) conversation() bool {
	switch n.member {
	case "previous_response_id", "conversation", "prompt", "cachedContent", "cached_content":
		return true
	}
	return false
}

// namedIn returns the ids in a body.
func namedIn(o *object) (all []named, bad *hub.Error) {
	add := func(member string, v gjson.Result) {
		one := func(v gjson.Result) {
			if v.Type == gjson.String && v.Str != "" {
				all = append(all, named{member, v.Str})
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
		if m := o.find(member); m != nil {
			if v := gjson.ParseBytes(o.body[m.value:m.end]); member != "prompt" || v.IsObject() { // otherwise prompt is plain text
				add(member, v)
			}
		}
	}
	if o.marks&(marksNamed|marksID|marksDisguise) != 0 {
		w := naming{add: add}
		for i := range o.members {
			if m := &o.members[i]; !data[m.key] {
				w.walk(gjson.ParseBytes(o.body[m.value:m.end]))
			}
		}
	}
	if len(all) > maxNamed {
		return nil, &hub.Error{Kind: hub.BadRequest, Param: all[maxNamed].member, Message: fmt.Sprintf("the request names %d files and other things that the provider keeps; at most %d are allowed", len(all), maxNamed)}
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

// keep stores the caller as the owner of the ids in an answer: of the answer itself and of
// more.
func (x *exchange) keep(r hub.Response, more []string) {
	k, ok := x.e.cfg.Ledger.(keeper)
	if !ok || x.record.BYOK || r.ID == "" && len(more) == 0 {
		return
	}
	ids := more
	if r.ID != "" && x.stores {
		ids = append(ids[:len(ids):len(ids)], r.ID)
	}
	if len(ids) == 0 {
		return
	}
	var tokens int64
	if u := x.usage; u != nil {
		tokens = hub.Count(u.Input) + hub.Count(u.Output)
	}
	k.Keep(x.cl.caller, x.o.provider.Name, tokens, ids[:min(len(ids), maxKept)])
}

// maxKept is the maximum number of ids stored per answer.
const maxKept = 256

// stores reports whether the provider will keep the answer to a Responses request.
func stores(body *object) bool {
	return string(body.get("store")) != "false"
}

var _ keeper = (*ledger.Book)(nil)
