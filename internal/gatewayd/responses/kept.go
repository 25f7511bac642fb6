package responses

import "github.com/tidwall/gjson"

// maxKept is the maximum number of ids read from one answer.
const maxKept = 256

// keptIn returns the ids of the parts of a Response that the provider keeps: items,
// containers, and files created in containers.
func keptIn(r gjson.Result) (ids []string) {
	add := func(v gjson.Result) {
		if v.Type == gjson.String && v.Str != "" && len(ids) < maxKept {
			ids = append(ids, v.Str)
		}
	}
	stored := r.Get("store").Type != gjson.False
	add(r.Get("conversation.id"))
	r.Get("output").ForEach(func(_, it gjson.Result) bool {
		if stored {
			add(it.Get("id"))
		}
		add(it.Get("container_id"))
		it.Get("content").ForEach(func(_, part gjson.Result) bool {
			part.Get("annotations").ForEach(func(_, a gjson.Result) bool {
				if a.Get("type").Str == "container_file_citation" {
					add(a.Get("container_id"))
					add(a.Get("file_id"))
				}
				return true
			})
			return true
		})
		return len(ids) < maxKept
	})
	return ids
}
