package hub

import (
	"strings"
	"testing"
)

func TestClosedObject(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]bool{
		`{}`: true, " {\"a\": [\"}\", \"\\\"\", {\"b\": \"\\\\\"}]}\r\n": true,
		``: false, `{`: false, `}`: false, `[]`: false, `"{}"`: false, `{}}`: false, `{"a`: false, `{"a\"}`: false, `{"a": [{]`: false, `{} x`: false,
		strings.Repeat(`{"a":`, MaxDepth-1) + `{}` + strings.Repeat(`}`, MaxDepth-1): true,
		strings.Repeat(`{"a":`, MaxDepth) + `{}` + strings.Repeat(`}`, MaxDepth):     false,
	} {
		if got := ClosedObject([]byte(said)); got != want {
			t.Errorf("%.80s: %v", said, got)
		}
	}
}
