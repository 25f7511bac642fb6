package oidc_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/oidc"
)

func TestForwards(t *testing.T) {
	t.Parallel()
	ring := oidc.NewRing(made()[0])
	clock := now
	var signed atomic.Int32
	f := &oidc.Forwards{
		Sign:   func(_ context.Context, c any) (string, error) { signed.Add(1); return ring.Sign(c) },
		Issuer: func() string { return "https://cay.example" },
		Sandbox: func(_ context.Context, machine string) (oidc.Sandbox, error) {
			if machine == "ses_none" {
				return oidc.Sandbox{}, errors.New("there is none")
			}
			return oidc.Sandbox{TeamID: "team_1", ProjectID: "prj_1", ID: "sbx_" + machine, Name: "web"}, nil
		},
		Now: func() time.Time { return clock },
	}
	token := func(machine, audience string) string {
		t.Helper()
		text, err := f.Token(t.Context(), machine, audience)
		checktest.OK(t, err)
		return text
	}
	first := token("a", "https://x.example/p")
	var c struct {
		oidc.Claims
		TeamID      string `json:"team_id"`
		ProjectID   string `json:"project_id"`
		SandboxID   string `json:"sandbox_id"`
		SandboxName string `json:"sandbox_name"`
	}
	checktest.OK(t, ring.Verify(first, "https://x.example/p", now, &c))
	if c.TeamID != "team_1" || c.ProjectID != "prj_1" || c.SandboxID != "sbx_a" || c.SandboxName != "web" ||
		c.Issuer != "https://cay.example" || c.Expiry != now.Add(5*time.Minute).Unix() || c.IssuedAt != now.Unix() {
		t.Fatalf("got %+v", c)
	}
	if ring.Verify(first, "https://y.example", now, &c) == nil {
		t.Fatal("it is good for another receiver")
	}
	if token("a", "https://x.example/p") != first || signed.Load() != 1 {
		t.Fatal("a token is not used again")
	}
	if token("b", "https://x.example/p") == first || token("a", "https://y.example") == first || signed.Load() != 3 {
		t.Fatal("another sandbox, or receiver, has the same token")
	}
	clock = now.Add(3 * time.Minute)
	second := token("a", "https://x.example/p")
	if second == first {
		t.Fatal("a token goes with requests until it expires on the way")
	}
	checktest.OK(t, ring.Verify(second, "https://x.example/p", clock.Add(5*time.Minute-time.Second), &c))
	if _, err := f.Token(t.Context(), "ses_none", "https://x.example"); err == nil {
		t.Fatal("a machine of no sandbox has a token")
	}
	for i := range 5000 { // more than are remembered
		f.Sign = func(context.Context, any) (string, error) { return fmt.Sprint(i), nil }
		if got := token("c", fmt.Sprint("https://", i)); got != fmt.Sprint(i) {
			t.Fatalf("got %s, want %d", got, i)
		}
	}
}
