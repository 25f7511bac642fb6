package endpoint

import lru "github.com/hashicorp/golang-lru/v2"

// Sessions remembers which endpoint served a session last, so that the provider's prompt
// cache is reused. It holds the most recent sessions.
type Sessions struct {
	at *lru.Cache[string, Key]
}

const maxSessions = 10_000

// NewSessions returns an empty Sessions.
func NewSessions() Sessions {
	at, _ := lru.New[string, Key](maxSessions) // fails for sizes below 1 only
	return Sessions{at}
}

// Get returns the endpoint that served a session last, the zero Key if it is unknown.
func (s Sessions) Get(session string) Key {
	if session == "" {
		return Key{}
	}
	key, _ := s.at.Get(session)
	return key
}

// Set records that an endpoint has served a session.
func (s Sessions) Set(session string, key Key) {
	if session != "" {
		s.at.Add(session, key)
	}
}
