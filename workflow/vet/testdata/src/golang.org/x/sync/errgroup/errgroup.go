// Package errgroup has the names of the real one that users call.
package errgroup

type Group struct{}

func (g *Group) Go(f func() error) {}
func (g *Group) Wait() error       { return nil }
