package gateway

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// Money is an amount of US dollars in units of 10^-12, exact for every price a
// provider has per token. In JSON it is a decimal string, "0.0001275". An amount
// is below 9 million dollars.
type Money int64

// Dollar is one US dollar.
const Dollar Money = 1_000_000_000_000

// maxMoney is the largest amount that ParseMoney accepts.
const maxMoney = 9_000_000 * Dollar

// ParseMoney reads a decimal number of dollars, such as 0.15 or 2.5e-7. It fails
// for text that is no number, is finer than 10^-12, or is beyond 9 million.
func ParseMoney(s string) (Money, error) {
	if m, ok := parsePlain(s); ok {
		return m, nil
	}
	bad := func() (Money, error) {
		return 0, fmt.Errorf("%.70q is not an amount of dollars, such as 0.15", s)
	}
	if len(s) > 64 || strings.Trim(s, "+-.0123456789eE") != "" {
		return bad()
	}
	// An exponent may have many digits, and its value as a decimal number would
	// have as many digits as the exponent says.
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		if n, err := strconv.Atoi(s[i+1:]); err != nil || n < -64 || n > 64 {
			return bad()
		}
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return bad()
	}
	r.Mul(r, new(big.Rat).SetInt64(int64(Dollar)))
	switch {
	case !r.IsInt():
		return 0, fmt.Errorf("%q is finer than 10^-12 dollars", s)
	case r.Num().CmpAbs(big.NewInt(int64(maxMoney))) > 0:
		return 0, fmt.Errorf("%q is beyond 9 million dollars", s)
	}
	return Money(r.Num().Int64()), nil
}

// parsePlain reads the output of Money.String for amounts below a million
// dollars, which are nearly all amounts that are read.
func parsePlain(s string) (m Money, ok bool) {
	digits, negative := strings.CutPrefix(s, "-")
	whole, rest, point := strings.Cut(digits, ".")
	if whole == "" || len(whole) > 6 || len(rest) > 12 || point && rest == "" {
		return 0, false
	}
	for _, part := range [...]string{whole, rest} {
		for i := range len(part) {
			c := part[i] - '0'
			if c > 9 {
				return 0, false
			}
			m = 10*m + Money(c)
		}
	}
	for range 12 - len(rest) {
		m *= 10
	}
	if negative {
		m = -m
	}
	return m, true
}

// String returns the amount in dollars, without an exponent or zeros at the end.
func (m Money) String() string {
	b, _ := m.AppendText(make([]byte, 0, 24)) // never fails
	return string(b)
}

// AppendText implements encoding.TextAppender.
func (m Money) AppendText(b []byte) ([]byte, error) {
	n := uint64(m)
	if m < 0 {
		b, n = append(b, '-'), -n
	}
	b = strconv.AppendUint(b, n/uint64(Dollar), 10)
	rest := n % uint64(Dollar)
	if rest == 0 {
		return b, nil
	}
	var digits [13]byte
	for i := 12; i > 0; i-- {
		digits[i] = byte('0' + rest%10)
		rest /= 10
	}
	digits[0] = '.'
	return append(b, bytes.TrimRight(digits[:], "0")...), nil
}

// Dollars returns the amount as a float, for uses that do not compute money.
func (m Money) Dollars() float64 { return float64(m) / float64(Dollar) }

// MarshalText implements encoding.TextMarshaler.
func (m Money) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Money) UnmarshalText(text []byte) error {
	v, err := ParseMoney(string(text))
	if err == nil {
		*m = v
	}
	return err
}

// Plus returns m + n, or the largest amount on overflow.
func (m Money) Plus(n Money) Money {
	switch {
	case n > 0 && m > math.MaxInt64-n:
		return math.MaxInt64
	case n < 0 && m < math.MinInt64-n:
		return math.MinInt64
	}
	return m + n
}

// Times returns m for n units, or the largest amount on overflow.
func (m Money) Times(n int64) Money {
	if m == 0 || n == 0 {
		return 0
	}
	if p := int64(m) * n; p/n == int64(m) && !(n == -1 && m == math.MinInt64) {
		return Money(p)
	}
	if (m < 0) != (n < 0) {
		return math.MinInt64
	}
	return math.MaxInt64
}
