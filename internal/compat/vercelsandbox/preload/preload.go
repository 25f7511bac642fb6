// Package preload holds what points programs written for Vercel Sandbox at a cay
// daemon without a change to them: a module that Node loads before a program, and
// one that Python does. It knows names and addresses, nothing of the protocol.
package preload

import (
	_ "embed"
	"encoding/json"
	"strings"
)

//go:embed preload.mjs
var module string

// Sitecustomize is the Python module. It is found by its name, sitecustomize.py,
// in a directory on PYTHONPATH.
//
//go:embed sitecustomize.py
var Sitecustomize string

// unset is the line of the module that names its daemon.
const unset = "const written = '';"

// Module returns the module for Node, to be named with --import. It speaks to the
// daemon at $CAY_VERCEL_URL, else at url, else at $CAY_URL.
func Module(url string) string {
	if url == "" {
		return module
	}
	// JSON is JavaScript. It is not HTML, but Go escapes for that as well.
	text, err := json.Marshal(url)
	if err != nil {
		panic("preload: text does not encode: " + err.Error())
	}
	return strings.Replace(module, unset, "const written = "+string(text)+";", 1)
}
