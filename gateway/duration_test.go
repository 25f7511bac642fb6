package gateway

import (
	"testing"
	"time"

	"github.com/cayhq/cay"
)

func TestDuration_UnmarshalText(t *testing.T) {
	t.Parallel()
	var d Duration
	if err := d.UnmarshalText([]byte("1m30s")); err != nil || time.Duration(d) != 90*time.Second {
		t.Errorf("%v, %v", time.Duration(d), err)
	}
	if err := d.UnmarshalText([]byte("5")); cay.CodeOf(err) != cay.Invalid || err.Error() != `"5" is not a duration such as 30s or 2h` || time.Duration(d) != 90*time.Second {
		t.Errorf("%v, %v", time.Duration(d), err)
	}
}
