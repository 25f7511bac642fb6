package image

import "time"

// RetryAtOnce makes failed downloads start again without waiting.
func (s *Store) RetryAtOnce() { s.retryAfter = time.Microsecond }
