package crosstest_test

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"testing"
	"testing/iotest"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Events that arrived in one read are returned as one batch, so that they are written to
// the client at once; the result is the same as byte by byte.
func TestReaders_batches(t *testing.T) {
	t.Parallel()
	by := upstreams()
	n := 0
	for _, f := range gatewaytest.Language(t) {
		if f.Chunks == nil || by[f.Format] == nil || f.Format == "converse" { // converse has its own frames
			continue
		}
		in := gatewaytest.Frames(f.Format, f.Chunks)
		if len(in) > 8<<10 {
			continue // more than one read
		}
		n++
		read := func(from io.Reader) (all []hub.Event, batches int) {
			r := by[f.Format].NewReader(target(&f), from)
			for {
				some, err := r.Next()
				if errors.Is(err, io.EOF) {
					return all, batches
				}
				if err != nil {
					t.Fatalf("%s: %v", f.Name, err)
				}
				batches++
				for _, e := range some {
					seen := hub.Event{Kind: e.Kind, Delta: e.Delta, Name: e.Name, Finish: e.Finish, Usage: e.Usage, Options: e.Options} // without ids, which may be made up
					if e.Err != nil {
						seen.Delta = e.Err.Message
					}
					if e.Part != nil {
						seen.Delta = e.Part.Text
					}
					all = append(all, seen)
				}
			}
		}
		got, batches := read(bytes.NewReader(in))
		want, _ := read(iotest.OneByteReader(bytes.NewReader(in)))
		if batches > 3 { // one batch may be the stream's end, and one its head
			t.Errorf("%s: %d events come in %d batches", f.Name, len(got), batches)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: at once it is\n%+v\nbyte by byte\n%+v", f.Name, got, want)
		}
	}
	if n < 10 {
		t.Errorf("only %d streams were read", n)
	}
}
