package main

import (
	"path"
	"regexp"
	"strings"
)

// sdkName matches names of workflows and steps of the Workflow SDK, which have a module and a
// function; functions may be nested.
var sdkName = regexp.MustCompile(`^(?:workflow|step)//(\S+?)//(?:.*/)?([^/]+)$`)

// functionOf returns the short name of a workflow or a step. For a name of the Workflow SDK, such
// as workflow//./workflows/order//charge, it is the function; for a default export, the module.
func functionOf(name string) string {
	m := sdkName.FindStringSubmatch(name)
	if m == nil {
		return name
	}
	if m[2] != "default" && m[2] != "__default" {
		return m[2]
	}
	module := m[1]
	if i := strings.LastIndexByte(module, '@'); i > strings.LastIndexByte(module, '/') && i > 0 {
		module = module[:i] // its version
	}
	return path.Base(module)
}
