// Package plain has no domain name in its path, as the standard library: nothing
// is said of it.
package plain

import "time"

func Now() time.Time { return time.Now() }
