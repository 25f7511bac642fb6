package catalog_test

import (
	"testing"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
)

func TestReported(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]gateway.Money{
		"0": 0, "0.5": gateway.Dollar / 2, "1.25e-05": 12_500_000, "0.0000000000001": 1, "3": 3 * gateway.Dollar,
		"0.00014999999999999999": 150_000_000, // rounded up to Money's precision
	} {
		if got, ok := catalog.Reported(text); !ok || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "-1", "1e9", "1e999999999", "NaN", "Inf", "0x10", "one", "1e-400x"} {
		if got, ok := catalog.Reported(text); ok {
			t.Errorf("%q is %d", text, got)
		}
	}
}
