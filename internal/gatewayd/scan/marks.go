package scan

// Marks are properties of a request that require a closer look. Read finds them together
// with the members, because searching a large request for a dozen words separately would
// cost more than all other processing.
type Marks uint8

const (
	// Named: the request contains a member name, or an object type, that is used to
	// name ids of providers. See package asks.
	Named Marks = 1 << iota
	// ID: an object has only the member id, which may name an item of a
	// conversation.
	ID
	// Disguise: a string escapes a letter, digit or _ without need, possibly to hide
	// a name.
	Disguise
	// File: the request contains a text that occurs in requests with files, in any
	// format. A request with this mark need not contain a file: tools may use these
	// texts, too.
	File
)

// The lengths of the texts that marksOf looks for.
const (
	shortestMark = len("file")
	longestMark  = len("vector_store_ids")
)

// marksOf returns the marks of a text without escapes.
func marksOf(text []byte) Marks {
	switch string(text) {
	case "file_id", "file_ids", "container", "container_id", "item_reference", "vector_store_id", "vector_store_ids", "skill_id",
		"fileUri", "file_uri", "s3Location":
		return Named
	case "image", "image_url", "input_image", "input_audio", "document", "file", "input_file", "video", "video_url":
		return File
	}
	return 0
}

// disguised reports whether b begins with an escape \uXXXX of a character that occurs in
// names. Escapes of < and > are common and do not count.
func disguised(b []byte) bool {
	if b[2] != '0' || b[3] != '0' || b[4] < '3' || b[4] > '7' {
		return false
	}
	switch b[5] {
	case 'c', 'C', 'e', 'E':
		return b[4] != '3'
	}
	return true
}
