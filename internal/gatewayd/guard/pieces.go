package guard

import (
	"bytes"
	"slices"

	"github.com/tidwall/gjson"
)

// collect appends the texts of the members in deltas, at any depth of an event's data, to
// the buffer of each member.
func collect(data []byte, into []bytes.Buffer) {
	if !gjson.ValidBytes(data) {
		return
	}
	var walk func(v gjson.Result, member, depth int)
	walk = func(v gjson.Result, member, depth int) {
		switch {
		case depth > maxDepth:
		case v.Type == gjson.String && member >= 0:
			into[member].WriteString(v.Str)
		case v.IsObject(), v.IsArray():
			isObject := v.IsObject()
			v.ForEach(func(key, item gjson.Result) bool {
				of := member
				if isObject {
					of = slices.Index(deltas, key.Str)
				}
				walk(item, of, depth+1)
				return true
			})
		}
	}
	walk(gjson.ParseBytes(data), -1, 0)
}
