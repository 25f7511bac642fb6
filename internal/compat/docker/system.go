package docker

import (
	"encoding/json"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
)

// The one network there is. Its gateway is the loopback address: workerd listens
// there for what containers are to reach.
const (
	bridge  = "bridge"
	gateway = "127.0.0.1"
)

func (s *Server) handlePing(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache, no-store, must-revalidate")
	w.Header().Set("Builder-Version", "1")
	w.Header().Set("Docker-Experimental", "false")
	w.Header().Set("Swarm", "inactive")
	if r.Method == http.MethodHead {
		return nil
	}
	_, err := io.WriteString(w, "OK")
	return err
}

func (s *Server) handleVersion(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]any{
		"Platform": map[string]string{"Name": "cay " + s.cfg.Version}, "Version": s.cfg.Version, "ApiVersion": apiVersion, "MinAPIVersion": minVersion,
		"GitCommit": "", "GoVersion": runtime.Version(), "Os": "linux", "Arch": runtime.GOARCH, "KernelVersion": "gVisor", "BuildTime": "",
		"Components": []map[string]any{{"Name": "cay", "Version": s.cfg.Version, "Details": map[string]string{"ApiVersion": apiVersion}}},
	})
}

func (s *Server) handleInfo(w http.ResponseWriter, r *http.Request) error {
	all, err := s.all(r.Context())
	if err != nil {
		return err
	}
	images, err := s.cfg.Images.List(r.Context())
	if err != nil {
		return err
	}
	count := map[string]int{}
	for _, c := range all {
		count[c.status()]++
	}
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	return writeJSON(w, http.StatusOK, map[string]any{
		"ID": "cay", "Name": "cay", "ServerVersion": s.cfg.Version, "OperatingSystem": "cay", "OSType": "linux", "Architecture": arch, "KernelVersion": "gVisor",
		"Containers": len(all), "ContainersRunning": count["running"], "ContainersPaused": count["paused"], "ContainersStopped": count["created"] + count["exited"],
		"Images": len(images), "Driver": "cay", "DriverStatus": [][2]string{}, "NCPU": runtime.NumCPU(), "SecurityOptions": []string{"name=gvisor"},
		"Runtimes": map[string]any{"cay": map[string]string{"path": "cay"}}, "DefaultRuntime": "cay", "Swarm": map[string]string{"LocalNodeState": "inactive"},
		"Plugins":        map[string]any{"Volume": []string{}, "Network": []string{bridge}, "Authorization": nil, "Log": []string{"json-file"}},
		"RegistryConfig": map[string]any{"IndexConfigs": map[string]any{}, "InsecureRegistryCIDRs": []string{}, "Mirrors": []string{}},
		"LoggingDriver":  "json-file", "CgroupDriver": "none", "SystemTime": stamp(time.Now()), "Labels": []string{}, "Warnings": []string{},
		"MemoryLimit": true, "SwapLimit": false, "CpuCfsQuota": true, "CpuCfsPeriod": true, "LiveRestoreEnabled": true,
	})
}

func network() map[string]any {
	return map[string]any{
		"Name": bridge, "Id": bridge, "Scope": "local", "Driver": bridge, "Created": stamp(time.Time{}), "Internal": false, "Attachable": false, "Ingress": false,
		"EnableIPv6": false, "Options": map[string]string{}, "Labels": map[string]string{}, "Containers": map[string]any{},
		"IPAM": map[string]any{"Driver": "default", "Options": nil, "Config": []map[string]string{{"Subnet": "127.0.0.0/8", "Gateway": gateway}}},
	}
}

func (s *Server) handleNetworks(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, []any{network()})
}

func (s *Server) handleNetwork(w http.ResponseWriter, r *http.Request) error {
	if id := r.PathValue("id"); id != bridge {
		return failf(http.StatusNotFound, "network %.100s not found", id)
	}
	return writeJSON(w, http.StatusOK, network())
}

// feed tells those who watch what happens to containers. Nothing is kept: who
// connects later hears what comes later.
type feed struct {
	mu       sync.Mutex // guards watchers
	watchers map[chan event]struct{}
}

const (
	maxWatchers = 64
	maxUnread   = 256 // events that a watcher has not read; one more ends its stream
)

// event is what has happened to a container.
type event struct {
	Status   string `json:"status"`
	ID       string `json:"id"`
	From     string `json:"from"`
	Type     string `json:"Type"`
	Action   string `json:"Action"`
	Actor    actor  `json:"Actor"`
	Scope    string `json:"scope"`
	Time     int64  `json:"time"`
	TimeNano int64  `json:"timeNano"`
}

type actor struct {
	ID         string            `json:"ID"`
	Attributes map[string]string `json:"Attributes"`
}

// tell reports what has happened to a container.
func (f *feed) tell(action string, c *container) {
	now := time.Now()
	attributes := map[string]string{"name": c.Name, "image": c.Spec.Image}
	for k, v := range c.Spec.Labels {
		attributes[k] = v
	}
	if action == "die" {
		attributes["exitCode"] = strconv.Itoa(c.State.Code)
	}
	e := event{action, c.ID, c.Spec.Image, "container", action, actor{c.ID, attributes}, "local", now.Unix(), now.UnixNano()}
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watchers {
		select {
		case w <- e:
		default:
			close(w)
			delete(f.watchers, w)
		}
	}
}

// watch subscribes until stop is called. The channel is closed if its reader is too slow.
func (f *feed) watch() (events <-chan event, stop func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.watchers) >= maxWatchers {
		return nil, nil, failf(http.StatusTooManyRequests, "%d clients watch events", maxWatchers)
	}
	if f.watchers == nil {
		f.watchers = map[chan event]struct{}{}
	}
	w := make(chan event, maxUnread)
	f.watchers[w] = struct{}{}
	return w, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watchers, w)
	}, nil
}

func (s *Server) handleEvents(w http.ResponseWriter, r *http.Request) error {
	f, err := readFilters(r.URL.Query().Get("filters"), "type", "event", "container", "label", "image")
	if err != nil {
		return err
	}
	if flag(r, "since") || flag(r, "until") {
		return failf(http.StatusNotImplemented, "cay keeps no events: leave out since and until")
	}
	events, stop, err := s.feed.watch()
	if err != nil {
		return err
	}
	defer stop()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush, encode := http.NewResponseController(w).Flush, json.NewEncoder(w).Encode
	for err := flush(); err == nil; err = flush() {
		select {
		case <-r.Context().Done():
			return nil
		case e, ok := <-events:
			if !ok {
				return nil // the client is too slow
			}
			if f.wants(e) && encode(e) != nil {
				return nil // the client left
			}
		}
	}
	return nil
}

// wants reports whether an event is among those that the filters select.
func (f filters) wants(e event) bool {
	return anyOf(f["type"], func(t string) bool { return t == e.Type }) &&
		anyOf(f["event"], func(a string) bool { return a == e.Action }) &&
		anyOf(f["image"], func(i string) bool { return sameImage(i, e.From) }) &&
		anyOf(f["container"], func(c string) bool { return slices.Contains([]string{e.ID, e.ID[:12], e.Actor.Attributes["name"]}, c) }) &&
		hasLabels(e.Actor.Attributes, f["label"])
}
