package docker

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// verdict says what becomes of a field of HostConfig.
type verdict int

const (
	honoured verdict = iota // or of no effect in a sandbox
	warned                  // accepted, and said in Warnings
	refused
)

// rule is a verdict and its reason.
type rule struct {
	verdict verdict
	why     string
}

const alone = "the sandbox has a kernel of its own, and shares none of its resources with others"

// rules has every field of HostConfig that this package knows. A field that is
// absent, false, 0 or empty is not looked up; an unknown field becomes a warning.
var rules = map[string]rule{
	"Privileged":        {refused, "it would give the container the devices and the kernel of the host; in a sandbox root needs no privileges"},
	"VolumesFrom":       {refused, "sandboxes share no files"},
	"Devices":           {refused, "sandboxes see no device of the host"},
	"DeviceRequests":    {refused, "sandboxes see no device of the host"},
	"DeviceCgroupRules": {refused, "sandboxes see no device of the host"},
	"Links":             {refused, "sandboxes reach no other sandbox"},
	"ExtraHosts":        {refused, "names are resolved by the daemon; write /etc/hosts in the container instead"},
	"Tmpfs":             {refused, "file systems in memory are not there yet; the disk of the container goes with it"},
	"ReadonlyRootfs":    {refused, "the files of a sandbox are writable; they are an overlay over the image, which does not change"},
	"StorageOpt":        {refused, "the size of the disk is set by the daemon"},
	"MaskedPaths":       {warned, "/proc and /sys are those of the sandbox's own kernel"},
	"ReadonlyPaths":     {warned, "/proc and /sys are those of the sandbox's own kernel"},

	"Binds": {}, "Mounts": {}, // see mounts
	"NetworkMode": {}, "PortBindings": {}, "PublishAllPorts": {}, "AutoRemove": {}, "Memory": {}, "NanoCpus": {}, "CpuQuota": {}, "CpuPeriod": {},
	"Init": {}, "ConsoleSize": {}, "ContainerIDFile": {}, "Annotations": {}, "ShmSize": {},
	"PidMode": {}, "IpcMode": {}, "UTSMode": {}, "UsernsMode": {}, "CgroupnsMode": {}, // see modes
	"RestartPolicy": {}, "LogConfig": {}, "MemorySwap": {}, "MemorySwappiness": {}, "PidsLimit": {}, "Runtime": {}, "Isolation": {}, // see quirks

	"CapAdd":               {warned, "capabilities are those of root in a sandbox"},
	"CapDrop":              {warned, "capabilities are those of root in a sandbox"},
	"SecurityOpt":          {warned, "the sandbox's kernel takes the place of seccomp and AppArmor"},
	"GroupAdd":             {warned, "groups are those of the user in the image"},
	"Dns":                  {warned, "names are resolved by the daemon"},
	"DnsOptions":           {warned, "names are resolved by the daemon"},
	"DnsSearch":            {warned, "names are resolved by the daemon"},
	"Sysctls":              {warned, "they are set in the container, by root"},
	"Ulimits":              {warned, "they are set in the container, with ulimit"},
	"VolumeDriver":         {warned, "volumes are drives of the daemon"},
	"CgroupParent":         {warned, alone},
	"Cgroup":               {warned, alone},
	"OomScoreAdj":          {warned, alone},
	"OomKillDisable":       {warned, alone},
	"CpuShares":            {warned, alone},
	"CpusetCpus":           {warned, alone},
	"CpusetMems":           {warned, alone},
	"CpuRealtimePeriod":    {warned, alone},
	"CpuRealtimeRuntime":   {warned, alone},
	"CpuCount":             {warned, alone},
	"CpuPercent":           {warned, alone},
	"BlkioWeight":          {warned, alone},
	"BlkioWeightDevice":    {warned, alone},
	"BlkioDeviceReadBps":   {warned, alone},
	"BlkioDeviceWriteBps":  {warned, alone},
	"BlkioDeviceReadIOps":  {warned, alone},
	"BlkioDeviceWriteIOps": {warned, alone},
	"MemoryReservation":    {warned, alone},
	"KernelMemory":         {warned, alone},
	"KernelMemoryTCP":      {warned, alone},
	"IOMaximumIOps":        {warned, alone},
	"IOMaximumBandwidth":   {warned, alone},
}

// hostModes are the fields that name a namespace. Those of the host and of other
// containers are refused, but for PidMode, which workerd sets to "host" and does
// not use: a sandbox's processes see each other anyway, and none of the host's.
var hostModes = []string{"PidMode", "IpcMode", "UTSMode", "UsernsMode", "CgroupnsMode"}

// judge checks a HostConfig. The error says which field is refused and why.
func judge(raw map[string]json.RawMessage) (warnings []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		if !set(raw[name]) {
			continue
		}
		r, known := rules[name]
		switch {
		case !known:
			warnings = append(warnings, fmt.Sprintf("HostConfig.%s is unknown to cay, and was left out", name))
		case r.verdict == refused:
			return nil, failf(http.StatusBadRequest, "cay refuses HostConfig.%s: %s", name, r.why)
		case r.verdict == warned:
			warnings = append(warnings, fmt.Sprintf("HostConfig.%s was left out: %s", name, r.why))
		}
	}
	for _, name := range hostModes {
		var mode string
		if text(raw[name], &mode); mode == "" {
			continue
		}
		switch {
		case mode == "host" && name == "PidMode":
			warnings = append(warnings, "HostConfig.PidMode was left out: the container sees the processes of its sandbox")
		case mode == "host" || strings.HasPrefix(mode, "container:"):
			return nil, failf(http.StatusBadRequest, "cay refuses HostConfig.%s %q: a sandbox has all namespaces for itself", name, mode)
		}
	}
	return append(warnings, quirks(raw)...), nil
}

// quirks are warnings of fields whose default is not empty.
func quirks(raw map[string]json.RawMessage) (warnings []string) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	var restart, logs struct{ Name, Type string }
	text(raw["RestartPolicy"], &restart)
	if restart.Name != "" && restart.Name != "no" {
		warn("RestartPolicy %q was left out: a container that has exited stays exited", restart.Name)
	}
	text(raw["LogConfig"], &logs)
	if !slices.Contains([]string{"", "json-file", "local"}, logs.Type) {
		warn("LogConfig %q was left out: output is kept by the daemon", logs.Type)
	}
	var runtime string
	text(raw["Runtime"], &runtime)
	if !slices.Contains([]string{"", "cay", "runsc"}, runtime) {
		warn("Runtime %q was left out: containers are sandboxes on gVisor", runtime)
	}
	var n int64
	if text(raw["PidsLimit"], &n); n > 0 {
		warn("PidsLimit was left out: the daemon limits the processes of a sandbox")
	}
	return warnings
}

// text decodes a field that may be absent. A field of another type counts as absent
// here, and is refused by createBody.host.
func text(raw json.RawMessage, v any) {
	if len(raw) > 0 {
		_ = json.Unmarshal(raw, v)
	}
}

// set reports whether a value is anything but null, false, 0, or empty, to all depths.
func set(raw json.RawMessage) bool {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return true
	}
	return setValue(v)
}

func setValue(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case float64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return slices.ContainsFunc(v, setValue)
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(v)), setValue)
	}
	return true
}
