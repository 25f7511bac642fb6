package config

import (
	"math"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/cayhq/cay"
)

// Size is a number of bytes that reads and writes as "512MiB", "2GiB" or "1.5 GB".
type Size int64

const (
	MiB Size = 1 << 20
	GiB Size = 1 << 30
)

// ParseSize reads a size with its unit: powers of 1024 as in KiB, MiB, GiB,
// TiB, powers of 1000 as in kB, MB, GB, TB, upper or lower case; a lone K, M, G
// or T counts as KiB and so on. Errors: invalid.
func ParseSize(text string) (Size, error) {
	t := strings.TrimSpace(text)
	unit := strings.TrimLeft(t, "0123456789. ")
	if unit == "" && t != "0" {
		return 0, cay.Errorf(cay.Invalid, "size %q has no unit", text).WithHint("write for example 512MiB or 2GiB")
	}
	if len(unit) == 1 && strings.ContainsAny(unit, "kmgtKMGT") {
		t += "iB"
	}
	n, err := humanize.ParseBytes(t)
	if err != nil || n > math.MaxInt64 || strings.HasPrefix(t, "-") {
		return 0, cay.Errorf(cay.Invalid, "%q is not a size", text).WithHint("write for example 512MiB or 2GiB")
	}
	return Size(n), nil
}

// MiB returns the size in MiB, rounded up.
func (s Size) MiB() int64 { return (int64(s) + int64(MiB) - 1) / int64(MiB) }

func (s Size) String() string {
	if s == 0 {
		return "0"
	}
	return strings.ReplaceAll(humanize.IBytes(uint64(s)), " ", "")
}

// UnmarshalText reads what ParseSize reads.
func (s *Size) UnmarshalText(b []byte) (err error) {
	*s, err = ParseSize(string(b))
	return err
}

// MarshalText writes what String returns.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
