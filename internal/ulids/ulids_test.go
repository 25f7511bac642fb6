package ulids

import "testing"

func TestSource(t *testing.T) {
	t.Parallel()
	u := New("wrun_")
	last := ""
	for i := range 10_000 {
		now := int64(1_800_000_000_000) + int64(i/5000)
		if i == 7000 {
			now -= 1000 // the clock goes back
		}
		id := u.Next(now)
		if len(id) != 31 || id <= last {
			t.Fatalf("%s follows %s", id, last)
		}
		last = id
	}
}
