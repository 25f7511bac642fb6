package workflow

import (
	"slices"
	"testing"
	"time"
)

func TestScope(t *testing.T) {
	s := new(scope)
	sub := s.child("go")
	again := s.child("go")
	deep := again.child("order")
	got := []string{s.next(kindStep, "charge"), s.next(kindStep, "charge"), s.next(kindWait, "charge"), sub.next(kindStep, "charge"), again.next(kindHook, "hook"), deep.next(kindChild, "a.b")}
	want := []string{"step_charge.1", "step_charge.2", "wait_charge.1", "step_go.1/charge.1", "hook_go.2/hook.1", "child_go.2/order.1/a.b.1"}
	if !slices.Equal(got, want) {
		t.Errorf("ids are %q", got)
	}
	for _, id := range got {
		if k, ok := kindOf(id); !ok || id[:len(kindPrefix[k])] != kindPrefix[k] {
			t.Errorf("kind of %s is %d, %v", id, k, ok)
		}
	}
	if _, ok := kindOf("strm_x"); ok {
		t.Error("strm_x has a kind")
	}
}

func TestULID(t *testing.T) {
	if got := ulid(time.UnixMilli(1469918176385), [10]byte{}); got != "01ARYZ6S410000000000000000" {
		t.Errorf("ulid is %s", got)
	}
	if got := ulid(time.UnixMilli(1<<48-1), [10]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255}); got != "7ZZZZZZZZZZZZZZZZZZZZZZZZZ" {
		t.Errorf("the last ulid is %s", got)
	}
	at := time.UnixMilli(1_700_000_000_000)
	if a, b := derivedRunID("wrun_a", "child_x.1", at), derivedRunID("wrun_a", "child_x.2", at); a == b || a != derivedRunID("wrun_a", "child_x.1", at) || len(a) != 31 {
		t.Errorf("ids are %s, %s", a, b)
	}
}
