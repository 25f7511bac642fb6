package gateway

import (
	"math/big"
	"testing"
)

// The fast way gives the same result as the general one.
func FuzzParsePlain(f *testing.F) {
	for _, s := range []string{"0", "-0", "0.0001275", "9000000", "-9000000", "9000000.000000000001", "9999999.999999999999", "10000000", "1.", ".5", "-", "--1", "1.2.3", "0.0000000000001", "1e5", "007", "/", ":"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, ok := parsePlain(s)
		if !ok {
			return
		}
		want, good := new(big.Rat).SetString(s)
		if !good || want.Mul(want, new(big.Rat).SetInt64(int64(Dollar))).Cmp(new(big.Rat).SetInt64(int64(m))) != 0 {
			t.Errorf("%q is %d", s, m)
		}
	})
}

func TestParsePlain(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{"0.0001275": true, "-12": true, "900000.000000000001": true, "9000000": false, "1e5": false, ".5": false, "5.": false, "": false, "12345678": false} {
		if _, ok := parsePlain(s); ok != want {
			t.Errorf("%q: %v", s, ok)
		}
	}
}
