package label

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
)

// Link returns the token of a link: its expiry, and a MAC over the expiry, the label and
// the epoch of its access. expires must be in whole milliseconds.
func (b *Book[S]) Link(l *Label[S], expires time.Time) string {
	until := strconv.FormatInt(expires.UnixMilli(), 36)
	mac := hmac.New(sha256.New, b.key)
	fmt.Fprintf(mac, "%s|%d|%s", l.Name, l.epoch, until) // writing to a hash cannot fail
	return until + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// CheckLink returns the time until which a link's token opens the preview of a label.
// Errors: unauthenticated if the token is not valid; those of Read.
func (b *Book[S]) CheckLink(ctx context.Context, name, token string) (expires time.Time, err error) {
	l := b.get(name)
	if l == nil {
		if l, err = b.Read(ctx, name); err != nil {
			return time.Time{}, err
		}
	}
	invalid := cay.Errorf(cay.Unauthenticated, "the link is not valid").WithHint("ask for a new one")
	until, _, _ := strings.Cut(token, ".")
	ms, err := strconv.ParseInt(until, 36, 64)
	if err != nil || ms < 0 {
		return time.Time{}, invalid
	}
	expires = time.UnixMilli(ms).UTC()
	if !hmac.Equal([]byte(token), []byte(b.Link(l, expires))) {
		return time.Time{}, invalid
	}
	if !b.now().Before(expires) {
		return time.Time{}, cay.Errorf(cay.Unauthenticated, "the link has expired").WithHint("ask for a new one")
	}
	return expires, nil
}
