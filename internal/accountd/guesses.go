package accountd

import (
	"sync"
	"time"
)

const (
	guessWindow = 10 * time.Minute
	maxGuesses  = 20   // wrong ones in a window
	maxGuessers = 4096 // that are remembered
)

// guesses limits wrong guesses. The zero value is ready.
type guesses struct {
	mu      sync.Mutex
	windows map[string]window // by who guesses
}

type window struct {
	until time.Time
	wrong int
}

// wait returns how long who must wait for the next guess, 0 if who may guess
// now.
func (g *guesses) wait(who string, now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.windows[who]
	if w.wrong < maxGuesses || !now.Before(w.until) {
		return 0
	}
	return w.until.Sub(now)
}

// wrong records a wrong guess by who.
func (g *guesses) wrong(who string, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.windows == nil {
		g.windows = make(map[string]window)
	}
	w, known := g.windows[who]
	if !now.Before(w.until) {
		w = window{until: now.Add(guessWindow)}
	}
	w.wrong++
	if !known && len(g.windows) >= maxGuessers {
		g.forget(now)
	}
	g.windows[who] = w
}

// forget makes room: it deletes expired windows, and if too few have expired,
// random ones.
func (g *guesses) forget(now time.Time) {
	for who, w := range g.windows {
		if !now.Before(w.until) {
			delete(g.windows, who)
		}
	}
	for who := range g.windows { // the order of a map is random
		if len(g.windows) < maxGuessers {
			return
		}
		delete(g.windows, who)
	}
}
