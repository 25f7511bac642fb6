package guest

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cayhq/cay"
)

// A replaced agent can break a dial, but nothing else.
func TestDial_hostileAnswers(t *testing.T) {
	t.Parallel()
	raw := func(answer string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				io.WriteString(conn, answer)
				conn.Close()
			}
		}
	}
	for name, tt := range map[string]struct {
		serve http.HandlerFunc
		code  cay.Code
	}{
		"Success":    {answer("hello"), cay.Unavailable},
		"Garbage":    {raw("\x00\x01\x02\r\n\r\n"), cay.Unavailable},
		"Nothing":    {raw(""), cay.Unavailable},
		"LongHead":   {raw("HTTP/1.1 101 Switching\r\nX: " + strings.Repeat("x", 1<<20)), cay.Unavailable},
		"LongError":  {raw("HTTP/1.1 400 Bad\r\n\r\n" + strings.Repeat("x", 1<<20)), cay.Unavailable},
		"OurError":   {raw("HTTP/1.1 400 Bad\r\n\r\n" + `{"code":"unauthenticated","message":"who?"}`), cay.Unavailable},
		"NoMoreRoom": {raw("HTTP/1.1 400 Bad\r\n\r\n" + `{"code":"quota_exceeded","message":"full"}`), cay.QuotaExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := hostile(t, tt.serve).Dial(t.Context(), 80)
			if err == nil {
				conn.Close()
			}
			if cay.CodeOf(err) != tt.code {
				t.Errorf("got %v, want the code %s", err, tt.code)
			}
		})
	}
}

// Bytes that arrive together with the head of the answer are not lost.
func TestDial_firstBytes(t *testing.T) {
	t.Parallel()
	c := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: cay-dial\r\n\r\nhello, ")
		io.WriteString(conn, "world")
		conn.Close()
	})
	conn, err := c.Dial(t.Context(), 80)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello, world" {
		t.Errorf("got %q, %v", got, err)
	}
}
