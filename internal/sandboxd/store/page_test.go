package store

import (
	"testing"
)

func FuzzCursor(f *testing.F) {
	f.Add(cursor{Key: int64(1), ID: "sbx_0"}.String())
	f.Add("")
	f.Add("eyJrIjox")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := parseCursor("sandboxes", newestFirst, s)
		if err != nil || s == "" {
			return
		}
		if again, err := parseCursor("sandboxes", newestFirst, c.String()); err != nil || again != c {
			t.Fatalf("%+v comes back as %+v, %v", c, again, err)
		}
	})
}
