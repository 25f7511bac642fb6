package vercelsandbox

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// signing returns a Config with a simple signature of its own.
func signing() Config {
	return Config{
		Sign: func(purpose string, text []byte) string { return purpose + "." + string(text) },
		Open: func(purpose, signed string) ([]byte, error) {
			text, ok := strings.CutPrefix(signed, purpose+".")
			if !ok {
				return nil, cay.Errorf(cay.Invalid, "not signed")
			}
			return []byte(text), nil
		},
	}
}

func TestTicket(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &handler{Config: signing()}
		p := api.Principal{TokenID: "tok", TeamID: "team", ProjectID: "prj"}
		issue := func() string {
			s, err := h.issueTicket("ses_1", p)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		refused := func(name string, h *handler, signed, session string) {
			t.Helper()
			if _, err := h.takeTicket(signed, session); cay.CodeOf(err) != cay.Unauthenticated {
				t.Errorf("%s: %v", name, err)
			}
		}
		one := issue()
		refused("another session", h, one, "ses_2")
		refused("another process", &handler{Config: signing()}, one, "ses_1")
		refused("not signed", h, "x", "ses_1")
		refused("none", h, "", "ses_1")
		time.Sleep(ticketLife - 1)
		got, err := h.takeTicket(one, "ses_1")
		if err != nil || got.Principal != p || got.Session != "ses_1" {
			t.Errorf("got %+v, %v", got, err)
		}
		refused("used", h, one, "ses_1")
		two := issue()
		time.Sleep(ticketLife)
		refused("expired", h, two, "ses_1")
	})
}

// The memory of used tickets is bounded, and no ticket is forgotten while it is valid.
func TestTicket_Bound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &handler{Config: signing()}
		take := func() (string, error) {
			s, err := h.issueTicket("ses_1", api.Principal{})
			if err != nil {
				t.Fatal(err)
			}
			_, err = h.takeTicket(s, "ses_1")
			return s, err
		}
		first, err := take()
		if err != nil {
			t.Fatal(err)
		}
		for range maxUsed - 1 {
			if _, err := take(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := take(); cay.CodeOf(err) != cay.Unavailable {
			t.Errorf("one too many: %v", err)
		}
		if _, err := h.takeTicket(first, "ses_1"); cay.CodeOf(err) != cay.Unauthenticated {
			t.Errorf("the first once more: %v", err)
		}
		time.Sleep(ticketLife)
		if _, err := take(); err != nil || len(h.tickets.used) != 1 {
			t.Errorf("a minute later: %v, %d are remembered", err, len(h.tickets.used))
		}
	})
}
