package gatewayd

// marks say what of a request has to be looked at more closely. They are found
// together with its members: to search a large request for a dozen words costs more
// than everything else that is done with it.
type marks uint8

const (
	// marksNamed: a text is one of the members by which ids of providers are named,
	// or the type of an object that does so. See naming.
	marksNamed marks = 1 << iota
	// marksID: an object may have nothing but an id, which is how items of a
	// conversation may be named, too.
	marksID
	// marksDisguise: a text writes a letter, a digit or _ in a way in which nobody
	// would who has nothing to hide.
	marksDisguise
	// marksFile: a text is one that requests with files have, in all formats. What
	// has it need not have a file: tools talk of files, too.
	marksFile
)

// The lengths of the texts that marksOf knows.
const (
	shortestMark = len("file")
	longestMark  = len("vector_store_ids")
)

// marksOf returns the marks of a text without escapes.
func marksOf(text []byte) marks {
	switch string(text) {
	case "file_id", "file_ids", "container", "container_id", "item_reference", "vector_store_id", "vector_store_ids", "skill_id",
		"fileUri", "file_uri", "s3Location":
		return marksNamed
	case "image", "image_url", "input_image", "input_audio", "document", "file", "input_file", "video", "video_url":
		return marksFile
	}
	return 0
}

// disguised reports whether the escape that b begins with, \uXXXX, is that of a
// character in a name. < and > are often written so.
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
