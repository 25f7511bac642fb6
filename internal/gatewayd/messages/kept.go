package messages

import (
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// maxKept is how many ids of one answer are read.
const maxKept = 256

// keep adds an id under which the provider keeps something: a container, a file.
func keep(ids []string, v gjson.Result) []string {
	if v.Type != gjson.String || v.Str == "" || len(ids) >= maxKept || slices.Contains(ids, v.Str) {
		return ids
	}
	return append(ids, v.Str)
}

// filesOf adds the ids of files that code of the provider's has made, which are in
// the block of its result alone: elsewhere a model may write what it likes.
func filesOf(ids []string, block gjson.Result) []string {
	if strings.HasSuffix(block.Get("type").Str, codeExecution+"_tool_result") {
		block.Get("content.content").ForEach(func(_, file gjson.Result) bool {
			ids = keep(ids, file.Get("file_id"))
			return len(ids) < maxKept
		})
	}
	return ids
}
