package gateway_test

import (
	"encoding/json"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/cayhq/cay/gateway"
)

func TestParseMoney(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]gateway.Money{
		"0": 0, "-0": 0, "1": gateway.Dollar, "+1.50": gateway.Dollar * 3 / 2, "-2": -2 * gateway.Dollar, "0.000000000001": 1,
		"2.5e-7": 250_000, "1E-12": 1, ".5": gateway.Dollar / 2, "5.": 5 * gateway.Dollar, "9000000": 9_000_000 * gateway.Dollar,
		"0.0e64": 0, "900000000e-2": 9_000_000 * gateway.Dollar,
	} {
		if got, err := gateway.ParseMoney(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for text, says := range map[string]string{
		"": "not an amount", "x": "not an amount", "$5": "not an amount", "1/2": "not an amount", "0x10": "not an amount", "1_000": "not an amount",
		"Inf": "not an amount", "NaN": "not an amount", "1e": "not an amount", "e5": "not an amount", "1e5e5": "not an amount", "1.2.3": "not an amount",
		"1e999999999": "not an amount", "1e-999999999": "not an amount", "1e99999999999999999999": "not an amount", "1p5": "not an amount",
		strings.Repeat("1", 65): "not an amount", "1e-13": "finer", "0.0000000000001": "finer", "9000000.01": "beyond", "-1e7": "beyond", "1e64": "beyond",
	} {
		if got, err := gateway.ParseMoney(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, %v; want an error that says %q", text, got, err, says)
		}
	}
}

func TestMoney_String(t *testing.T) {
	t.Parallel()
	for m, want := range map[gateway.Money]string{
		0: "0", 1: "0.000000000001", -1: "-0.000000000001", gateway.Dollar: "1", -gateway.Dollar / 2: "-0.5", 127_500_000: "0.0001275",
		100 * gateway.Dollar: "100", math.MaxInt64: "9223372.036854775807", math.MinInt64: "-9223372.036854775808",
	} {
		if got := m.String(); got != want {
			t.Errorf("%d: %q, want %q", int64(m), got, want)
		}
	}
}

func TestMoney_JSON(t *testing.T) {
	t.Parallel()
	type amounts struct {
		A gateway.Money  `json:"a"`
		B *gateway.Money `json:"b"`
	}
	b, err := json.Marshal(amounts{A: 127_500_000})
	if err != nil || string(b) != `{"a":"0.0001275","b":null}` {
		t.Fatalf("%s, %v", b, err)
	}
	var got amounts
	if err := json.Unmarshal([]byte(`{"a":"0.0001275","b":"0"}`), &got); err != nil || got.A != 127_500_000 || got.B == nil || *got.B != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := json.Unmarshal([]byte(`{"a":"much"}`), &got); err == nil || !strings.Contains(err.Error(), "much") {
		t.Fatalf("error is %v; want it to name the value", err)
	}
}

// Sums and products are exact, or the end of the range.
func FuzzMoney_Arithmetic(f *testing.F) {
	for _, v := range []int64{0, 1, -1, math.MaxInt64, math.MinInt64, int64(gateway.Dollar)} {
		f.Add(v, int64(3))
		f.Add(v, int64(-1))
		f.Add(v, v)
	}
	clamp := func(n *big.Int) gateway.Money {
		switch {
		case n.IsInt64():
			return gateway.Money(n.Int64())
		case n.Sign() < 0:
			return math.MinInt64
		}
		return math.MaxInt64
	}
	f.Fuzz(func(t *testing.T, a, b int64) {
		x, y := big.NewInt(a), big.NewInt(b)
		if got, want := gateway.Money(a).Plus(gateway.Money(b)), clamp(new(big.Int).Add(x, y)); got != want {
			t.Errorf("%d + %d = %d, want %d", a, b, got, want)
		}
		if got, want := gateway.Money(a).Times(b), clamp(new(big.Int).Mul(x, y)); got != want {
			t.Errorf("%d * %d = %d, want %d", a, b, got, want)
		}
	})
}

// Parsed amounts are written as the same amount, and nothing takes long.
func FuzzParseMoney(f *testing.F) {
	for _, s := range []string{"0.15", "2.5e-7", "-1", "1e999999999", "9000000", "1e-12", "..", "+.5e3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := gateway.ParseMoney(s)
		if err != nil {
			return
		}
		again, err := gateway.ParseMoney(m.String())
		if err != nil || again != m {
			t.Errorf("%q is %d, written as %s and read as %d, %v", s, m, m, again, err)
		}
	})
}
