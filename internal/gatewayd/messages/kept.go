package messages

import (
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// maxKept is the maximum number of ids read from one answer.
const maxKept = 256

// keep appends the id of an object that the provider keeps, which is a container or a
// file.
func keep(ids []string, v gjson.Result) []string {
	if v.Type != gjson.String || v.Str == "" || len(ids) >= maxKept || slices.Contains(ids, v.Str) {
		return ids
	}
	return append(ids, v.Str)
}

// filesOf appends the ids of files created by provider-run code; only the result block of
// the code is searched, because a model could write any id elsewhere.
func filesOf(ids []string, block gjson.Result) []string {
	if strings.HasSuffix(block.Get("type").Str, codeExecution+"_tool_result") {
		block.Get("content.content").ForEach(func(_, file gjson.Result) bool {
			ids = keep(ids, file.Get("file_id"))
			return len(ids) < maxKept
		})
	}
	return ids
}
