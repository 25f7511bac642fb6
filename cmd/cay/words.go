package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cayhq/cay"
)

// flagError describes an error in a flag's value in the terms of this command line; the errors
// of the flags' package are in Go's.
func flagError(cmd *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	if !errors.As(err, &value) {
		return &usageError{err.Error(), cmd.CommandPath()}
	}
	flag := value.GetFlag()
	name, given := "--"+flag.Name, value.GetValue()
	what := map[string]string{
		"duration": "a duration with its unit, as in 30s, 5m or 24h",
		"int":      "a whole number", "int64": "a whole number", "uint": "a whole number of 0 or more", "uint16": "a whole number of 0 to 65535",
		"float64": "a number", "bool": "true or false",
	}[flag.Value.Type()]
	switch {
	case errors.Is(err, strconv.ErrRange):
		return &usageError{fmt.Sprintf("%s %s is too large", name, given), cmd.CommandPath()}
	case what != "":
		return &usageError{fmt.Sprintf("%s %q is not %s", name, given, what), cmd.CommandPath()}
	}
	return &usageError{fmt.Sprintf("%s: %v", name, errors.Unwrap(value)), cmd.CommandPath()}
}

// fieldFlags are the flags that give fields of the API, by the field's name in messages.
var fieldFlags = []struct{ field, flag, unit string }{
	{"memory_mb", "memory", " (in MiB)"}, {"disk_mb", "disk", " (in MiB)"}, {"max_mb", "size", " (in MiB)"},
	{"vcpus", "vcpus", ""}, {"idle_timeout", "idle-timeout", ""}, {"save_every", "save-every", ""}, {"timeout_signal", "timeout-signal", ""}, {"timeout", "timeout", ""},
	{"files_only", "files", ""}, {"snapshot_expiration", "snapshot-expiration", ""}, {"expiration", "expiration", ""}, {"expires_at", "expires", ""},
	{"project_id", "project", ""}, {"retention.keep", "keep", ""}, {"retention.max_age", "keep", ""}, {"retention.expiration", "keep", ""},
	{"network.mode", "network", ""}, {"network.allow_cidrs", "allow", ""}, {"network.deny_cidrs", "deny", ""}, {"network.allow", "allow", ""},
	{"source.url", "git", ""}, {"source.url", "tarball", ""}, {"source.depth", "depth", ""}, {"source.revision", "revision", ""},
	{"source.dir", "source-dir", ""}, {"source.username", "git-user", ""},
	{"snapshot_id", "snapshot", ""}, {"privileges", "privileges", ""},
}

// field matches the beginning of a message about a field: its name, with the index in a list.
var field = regexp.MustCompile(`^([a-z_]+(?:\.[a-z_]+)*)(?:\[[0-9]+\])?((?:\.[a-z_]+)?) `)

// inFlags converts an error about a field of the API to an error about the flag that set the
// field. Policies in files keep the fields' own names.
func inFlags(cmd *cobra.Command, err error) error {
	var e *cay.Error
	if cmd == nil || !errors.As(err, &e) || e.Code != cay.Invalid {
		return err
	}
	m := field.FindStringSubmatch(e.Message)
	if m == nil {
		return err
	}
	for _, f := range fieldFlags {
		flag := cmd.Flags().Lookup(f.flag)
		if f.field != m[1] || flag == nil || !flag.Changed {
			continue
		}
		name := "--" + f.flag + f.unit + " "
		if part := strings.TrimPrefix(m[2], "."); part != "" {
			name = "--" + f.flag + ": " + part + " "
		}
		said := *e
		said.Message = name + strings.TrimPrefix(e.Message, m[0])
		said.Hint = strings.NewReplacer("network.allow_cidrs", "--allow", "network.deny_cidrs", "--deny", "network.allow", "--allow", "network.mode", "--network").Replace(e.Hint)
		var exit *exitError
		if errors.As(err, &exit) {
			return &exitError{exit.code, &said}
		}
		return &said
	}
	return err
}
