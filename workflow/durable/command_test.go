package durable

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

func TestText(t *testing.T) {
	for _, c := range []struct{ bytes, logged string }{
		{"plain \"text\" é", `"plain \"text\" é"`},
		{"", `""`},
		{"\xff\x00", `{"base64":"/wA="}`},
	} {
		b, err := json.Marshal(text(c.bytes))
		if err != nil || string(b) != c.logged {
			t.Errorf("%q is logged as %s, %v; want %s", c.bytes, b, err, c.logged)
		}
		var back text
		if err := json.Unmarshal(b, &back); err != nil || string(back) != c.bytes {
			t.Errorf("%s is read as %q, %v", b, back, err)
		}
	}
}

// The newest output is kept, whatever the sizes of the chunks.
func TestResult_Keep(t *testing.T) {
	for _, size := range []int{1, 1000, MaxOutput - 1, MaxOutput, MaxOutput + 1, 3 * MaxOutput} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			var all []byte
			var r result
			chunks := 5
			if size == 1 {
				chunks = 10
			}
			for i := range chunks {
				data := bytes.Repeat([]byte{byte('a' + i)}, size)
				all = append(all, data...)
				r.Stdout = r.keep(r.Stdout, data)
				if len(r.Stdout) > 2*MaxOutput {
					t.Fatalf("%d bytes are held", len(r.Stdout))
				}
			}
			want := all[max(0, len(all)-MaxOutput):]
			if got := newest(r.Stdout); !bytes.Equal(got, want) || r.Truncated != (len(all) > MaxOutput) {
				t.Errorf("it has %d bytes (truncated: %t), want %d", len(got), r.Truncated, len(want))
			}
		})
	}
}

func TestFinal(t *testing.T) {
	for code, want := range map[cay.Code]string{
		cay.Invalid: "fatal", cay.NotFound: "fatal", cay.Stopped: "fatal", cay.PermissionDenied: "fatal", cay.TooLarge: "fatal",
		cay.Unavailable: "", cay.SourceUnavailable: "", cay.Internal: "", cay.NoSpace: "", cay.QuotaExceeded: "after 7s",
	} {
		err := cay.Errorf(code, "no")
		if code == cay.QuotaExceeded {
			err.RetryAfter = 7 * time.Second
		}
		marked := final(fmt.Errorf("step: %w", err))
		got := ""
		var fatal *workflow.FatalError
		var retry *workflow.RetryableError
		switch {
		case errors.As(marked, &fatal):
			got = "fatal"
		case errors.As(marked, &retry):
			got = "after " + retry.After.String()
		}
		if got != want || !errors.Is(marked, &cay.Error{Code: code}) || !strings.Contains(marked.Error(), "no") {
			t.Errorf("%s: %q (%v), want %q", code, got, marked, want)
		}
	}
	if final(nil) != nil {
		t.Error("no error became one")
	}
}
