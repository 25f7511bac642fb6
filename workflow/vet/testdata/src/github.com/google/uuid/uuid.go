// Package uuid has the names of the real one that the analysis knows.
package uuid

type UUID [16]byte

func NewString() string                { return "" }
func Parse(s string) (u UUID, e error) { return }
