package patch

import "testing"

func TestPatch(t *testing.T) {
	n, text := 1, "old"
	m, s := map[string]int{"a": 1}, []int{1}
	Set(&n, nil)
	Set(&text, nil)
	SetMap(&m, nil)
	SetSlice(&s, nil)
	if n != 1 || text != "old" || len(m) != 1 || len(s) != 1 {
		t.Errorf("nil changed something: %d %s %v %v", n, text, m, s)
	}
	Set(&n, new(0))
	SetMap(&m, map[string]int{})
	SetSlice(&s, []int{})
	if n != 0 || len(m) != 0 || len(s) != 0 || m == nil || s == nil {
		t.Errorf("zero values changed nothing: %d %v %v", n, m, s)
	}
}
