package main

import (
	"path"
	"regexp"
	"strings"
)

// sdkName is the form of names of the Workflow SDK: of a workflow or a step, in a module, whose functions may be nested.
var sdkName = regexp.MustCompile(`^(?:workflow|step)//(\S+?)//(?:.*/)?([^/]+)$`)

// functionOf is the name of a workflow or a step as people call it: of a name of the Workflow SDK, such as
// workflow//./workflows/order//charge, its function; of a default export, its module.
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
