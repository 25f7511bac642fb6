package usage

import (
	"testing"
)

func TestGrow(t *testing.T) {
	for _, c := range []struct {
		name                 string
		total, counter, base int64
		want                 int64
	}{
		{"Grows", 10, 20, 0, 20},
		{"NeverFalls", 20, 10, 0, 20},
		{"GoesOnAfterAdoption", 100, 120, 100, 120},
		{"BeginsAnewAfterAdoption", 100, 7, 100, 107},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := grow(c.total, c.counter, c.base); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}
