package daemon

import "testing"

func TestGCPercent(t *testing.T) {
	for _, tc := range []struct {
		live uint64
		want int
	}{
		{0, maxGCPercent},
		{1 << 20, maxGCPercent},
		{4 << 20, maxGCPercent},
		{8 << 20, 400},
		{12 << 20, 266},
		{16 << 20, 200},
		{32 << 20, minGCPercent},
		{1 << 40, minGCPercent},
	} {
		if got := gcPercent(tc.live); got != tc.want {
			t.Errorf("gcPercent(%d) = %d, want %d", tc.live, got, tc.want)
		}
	}
}
