//go:build !cgo

package gvisor

const cgoEnabled = false
