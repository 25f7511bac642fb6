// Package asks reads what a request's body asks for: the options that cost money or need
// a permission, and the ids of what a provider keeps.
package asks

// maxText is the maximum length of a text that is kept of a body.
const maxText = 256

func clip(s string) string { return s[:min(len(s), maxText)] }
