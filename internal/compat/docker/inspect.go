package docker

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// stamp is a time as the API writes it.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "0001-01-01T00:00:00Z"
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// binding is where a port is published.
type binding struct {
	HostIP   string `json:"HostIp"`
	HostPort string `json:"HostPort"`
}

func (c *container) published() map[string][]binding {
	ports := map[string][]binding{}
	for _, port := range c.Spec.Exposed {
		ports[port] = nil
	}
	for port, host := range c.State.Ports {
		ports[port] = []binding{{"127.0.0.1", strconv.Itoa(host)}}
	}
	return ports
}

// imageID is the digest of the container's image.
func (c *container) imageID() string {
	if c.box == nil {
		return sidecarImageID
	}
	return c.box.Digest
}

// ended is when the container ended.
func (c *container) ended() time.Time {
	if c.State.Finished.IsZero() && c.status() == "exited" && c.box.StoppedAt != nil {
		return *c.box.StoppedAt
	}
	return c.State.Finished
}

func (s *Server) handleInspect(w http.ResponseWriter, r *http.Request, c *container) error {
	env := []string{}
	reason, oom := "", false
	if c.box != nil {
		for _, k := range slices.Sorted(maps.Keys(c.box.Env)) {
			env = append(env, k+"="+c.box.Env[k])
		}
		if c.status() == "exited" && !c.State.Exited {
			reason, oom = c.box.Message, c.box.Reason == "oom_killed"
		}
	}
	pid := 0
	if c.running() {
		pid = 1
	}
	exposed := map[string]struct{}{}
	for _, port := range c.Spec.Exposed {
		exposed[port] = struct{}{}
	}
	asked := map[string][]binding{}
	for port, hosts := range c.Spec.Bindings {
		for _, h := range hosts {
			asked[port] = append(asked[port], binding{"127.0.0.1", h})
		}
	}
	memory, cpus, workDir := int64(0), int64(0), c.Spec.WorkingDir
	if c.box != nil {
		memory, cpus, workDir = c.box.MemoryMB<<20, int64(c.box.VCPUs*1e9), c.box.WorkDir
	}
	config := map[string]any{
		"Hostname": c.ID[:12], "Domainname": "", "User": c.Spec.User, "Image": c.Spec.Image, "Env": env, "Cmd": c.Spec.Cmd, "Entrypoint": c.Spec.Entrypoint,
		"WorkingDir": workDir, "Labels": orEmpty(c.Spec.Labels), "ExposedPorts": exposed, "Volumes": nil,
		"Tty": c.Spec.Tty, "OpenStdin": c.Spec.OpenStdin, "StdinOnce": c.Spec.StdinOnce, "AttachStdin": false, "AttachStdout": false, "AttachStderr": false,
		"StopSignal": c.Spec.StopSignal,
	}
	if c.Spec.StopAfter != nil { // workerd takes no null for a number
		config["StopTimeout"] = *c.Spec.StopAfter
	}
	return writeJSON(w, http.StatusOK, map[string]any{
		"Id": c.ID, "Name": "/" + c.Name, "Created": stamp(c.Created), "Image": c.imageID(), "Platform": "linux", "Driver": "cay",
		"Path": first(c.Spec.Argv), "Args": rest(c.Spec.Argv), "RestartCount": 0, "ExecIDs": s.execs.of(c.ID),
		"MountLabel": "", "ProcessLabel": "", "AppArmorProfile": "", "ResolvConfPath": "", "HostnamePath": "", "HostsPath": "", "LogPath": "",
		"State": map[string]any{
			"Status": c.status(), "Running": c.running(), "Paused": c.status() == "paused", "Restarting": false, "OOMKilled": oom, "Dead": false,
			"Pid": pid, "ExitCode": c.exitCode(), "Error": reason, "StartedAt": stamp(c.State.Started), "FinishedAt": stamp(c.ended()),
		},
		"Config": config,
		"HostConfig": map[string]any{
			"NetworkMode": networkMode(c.Spec.Network), "AutoRemove": c.Spec.AutoRemove, "PublishAllPorts": c.Spec.PublishAll, "PortBindings": asked,
			"Memory": memory, "NanoCpus": cpus, "Privileged": false, "Binds": nil, "Runtime": "cay",
			"RestartPolicy": map[string]any{"Name": "no", "MaximumRetryCount": 0}, "LogConfig": map[string]any{"Type": "json-file", "Config": map[string]string{}},
		},
		"GraphDriver": map[string]any{"Name": "cay", "Data": nil}, "Mounts": c.mountPoints(),
		"NetworkSettings": c.networkSettings(),
	})
}

// networkSettings are the addresses and ports of a container. It has no IPv6 address that
// is not its own loopback address, which the API writes as empty fields.
func (c *container) networkSettings() map[string]any {
	addresses := func() map[string]any {
		return map[string]any{
			"IPAddress": "127.0.0.1", "IPPrefixLen": 8, "Gateway": gateway, "EndpointID": "", "MacAddress": "",
			"GlobalIPv6Address": "", "GlobalIPv6PrefixLen": 0, "IPv6Gateway": "",
		}
	}
	in, all := addresses(), addresses()
	in["NetworkID"] = bridge
	all["Ports"], all["Networks"] = c.published(), map[string]any{bridge: in}
	all["LinkLocalIPv6Address"], all["LinkLocalIPv6PrefixLen"] = "", 0
	return all
}

func first(a []string) string {
	if len(a) == 0 {
		return ""
	}
	return a[0]
}

func rest(a []string) []string {
	if len(a) < 2 {
		return []string{}
	}
	return a[1:]
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func networkMode(mode string) string {
	if mode == "" || mode == "default" {
		return bridge
	}
	return mode
}

func (s *Server) handleList(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	f, err := readFilters(q.Get("filters"), "label", "ancestor", "name", "id", "status", "exited")
	if err != nil {
		return err
	}
	limit := 0
	if l := q.Get("limit"); l != "" && l != "-1" {
		if limit, err = strconv.Atoi(l); err != nil || limit < 0 {
			return failf(http.StatusBadRequest, "invalid limit %q", l)
		}
	}
	if q.Get("before") != "" || q.Get("since") != "" {
		return failf(http.StatusBadRequest, "cay lists containers by label, ancestor, name, id, status and exited; not before or since another")
	}
	match, err := s.matcher(r, f)
	if err != nil {
		return err
	}
	all, err := s.all(r.Context())
	if err != nil {
		return err
	}
	out := []any{}
	every := flag(r, "all") || limit > 0 || len(f["status"]) > 0 || len(f["exited"]) > 0
	for _, c := range all {
		if !every && !c.running() || !match(c) {
			continue
		}
		out = append(out, c.summary())
		if limit > 0 && len(out) == limit {
			break
		}
	}
	return writeJSON(w, http.StatusOK, out)
}

// summary is a container in a list.
func (c *container) summary() map[string]any {
	ports := []map[string]any{}
	for _, port := range slices.Sorted(maps.Keys(c.published())) {
		n, err := tcpPort(port)
		if err != nil {
			continue // exposed, not TCP
		}
		p := map[string]any{"PrivatePort": n, "Type": "tcp"}
		if host, ok := c.State.Ports[port]; ok {
			p["PublicPort"], p["IP"] = host, "127.0.0.1"
		}
		ports = append(ports, p)
	}
	return map[string]any{
		"Id": c.ID, "Names": []string{"/" + c.Name}, "Image": c.Spec.Image, "ImageID": c.imageID(), "Command": strings.Join(c.Spec.Argv, " "),
		"Created": c.Created.Unix(), "State": c.status(), "Status": c.sentence(), "Ports": ports, "Labels": orEmpty(c.Spec.Labels), "Mounts": c.mountPoints(),
		"HostConfig":      map[string]string{"NetworkMode": networkMode(c.Spec.Network)},
		"NetworkSettings": map[string]any{"Networks": c.networkSettings()["Networks"]},
	}
}

// sentence is the state of a container for people.
func (c *container) sentence() string {
	ago := func(t time.Time) string { return time.Since(t).Round(time.Second).String() }
	switch c.status() {
	case "created":
		return "Created"
	case "exited":
		return fmt.Sprintf("Exited (%d) %s ago", c.exitCode(), ago(c.ended()))
	case "paused":
		return "Up " + ago(c.State.Started) + " (Paused)"
	}
	return "Up " + ago(c.State.Started)
}
