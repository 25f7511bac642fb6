package workflowd_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/internal/workflowd"
)

// A writer that repeats each write whose outcome it does not know has every chunk in the
// stream once, in order, though many are alike and others write to the stream, too.
func TestExternal_repeatedWrites(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, openIt func() (workflowd.Store, error)) {
		rnd := seedtest.Rand(t)
		store, err := openIt()
		if err != nil {
			t.Fatal(err)
		}
		f := &faulty{Store: store}
		x := start(t, workflowd.Config{Store: f}).External("p", history.JavaScript)
		createExternal(t, x, externalRun)
		const stream = "strm_1"
		var mine, all []string
		length := int64(0)
		for i := range 60 {
			chunks := make([][]byte, 1+rnd.IntN(3))
			for j := range chunks {
				chunks[j] = fmt.Append(nil, "mine ", rnd.IntN(2))
				mine = append(mine, string(chunks[j]))
			}
			switch rnd.IntN(4) {
			case 0:
				f.fail(func(func() error) error { return cay.Errorf(cay.Unavailable, "lost") })
			case 1:
				f.fail(func(commit func() error) error {
					if err := commit(); err != nil {
						return err
					}
					return cay.Errorf(cay.Unavailable, "unknown")
				})
			}
			n, err := x.Append(t.Context(), externalRun, stream, chunks, false, -1)
			f.heal()
			for err != nil {
				if rnd.IntN(2) == 0 {
					if _, err := x.Append(t.Context(), externalRun, stream, [][]byte{fmt.Append(nil, "another's ", i)}, false, -1); err != nil {
						t.Fatal(err)
					}
				}
				n, err = x.Append(t.Context(), externalRun, stream, chunks, false, length)
			}
			length = n
		}
		for length := int64(1); int64(len(all)) < length; {
			chunks, info, err := x.Chunks(t.Context(), externalRun, stream, int64(len(all)), 100)
			if err != nil {
				t.Fatal(err)
			}
			for i := range chunks {
				all = append(all, string(chunks[i].Data))
			}
			length = info.Chunks
		}
		var got []string
		for _, c := range all {
			if c[:4] == "mine" {
				got = append(got, c)
			}
		}
		if !reflect.DeepEqual(got, mine) {
			t.Errorf("the stream has\n%q\nof\n%q", got, mine)
		}
		if length != int64(len(all)) {
			t.Errorf("its length is %d, and it has %d chunks", length, len(all))
		}
	})
}
