// Package preload holds what points programs written for Vercel Sandbox at a cay
// daemon without a change to them: a module that Node loads before a program, and
// one that Python does. It knows names and addresses, nothing of the protocol.
package preload

import (
	_ "embed"
	"encoding/json"
	"strings"
)

//go:embed workflow.mjs
var workflowPart string

//go:embed repeat.mjs
var repeatPart string

//go:embed preload.mjs
var mainPart string

// module is a single file, because a program's option names only one. The
// declarations of the other parts that preload.mjs uses must come before it.
var module = workflowPart + "\n" + repeatPart + "\n" + mainPart

// Sitecustomize is the Python module. Python finds it by its name,
// sitecustomize.py, in a directory on PYTHONPATH.
//
//go:embed sitecustomize.py
var Sitecustomize string

// Module returns the module for Node, to be named with --import. It uses the daemon
// at $CAY_VERCEL_URL, else at url, else at $CAY_URL; and the AI gateway at
// $CAY_VERCEL_GATEWAY_URL, else at gateway, else at $CAY_GATEWAY_URL. A gateway may
// be Off. Empty values are not written into the module.
func Module(url, gateway string) string {
	return write(write(module, "written", url), "writtenGateway", gateway)
}

// Off replaces the address of a gateway if the daemon has no gateway.
const Off = "off"

// write sets a constant of the module that is empty in the source.
func write(module, constant, value string) string {
	// JSON is valid JavaScript. Go also escapes for HTML, which does no harm.
	text, err := json.Marshal(value)
	if err != nil {
		panic("preload: text does not encode: " + err.Error())
	}
	if value == "" {
		return module
	}
	return strings.Replace(module, "const "+constant+" = '';", "const "+constant+" = "+string(text)+";", 1)
}
