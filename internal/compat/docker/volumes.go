package docker

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// A volume is a drive. Annotations hold what a drive has no field for.
const (
	noteVolume       = "docker.volume"        // the name, if the drive has another one
	noteVolumeLabels = "docker.volume.labels" // as a JSON object
)

const hostPath = "sandboxes see no directory of the host; copy files with docker cp, put them into the image, or use a volume"

// mount is a volume in a container.
type mount struct {
	Volume   string `json:"volume"`
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// mountBody is an element of HostConfig.Mounts.
type mountBody struct {
	Type, Source, Target string
	ReadOnly             bool
	VolumeOptions        struct{ Subpath string }
}

// mounts reads the volumes that a container asks for.
func (h *hostConfig) mounts() (out []mount, err error) {
	for _, bind := range h.Binds {
		at := strings.Split(bind, ":")
		if len(at) < 2 || len(at) > 3 || !validName.MatchString(at[0]) {
			return nil, failf(http.StatusBadRequest, "cay refuses HostConfig.Binds %.300q: %s", bind, hostPath)
		}
		m := mount{Volume: at[0], Path: at[1]}
		for _, option := range strings.Split(strings.Join(at[2:], ""), ",") {
			switch option {
			case "ro":
				m.ReadOnly = true
			case "", "rw", "z", "Z", "nocopy":
			default:
				return nil, failf(http.StatusBadRequest, "cay refuses the option %.50q of HostConfig.Binds: it knows ro and rw", option)
			}
		}
		out = append(out, m)
	}
	for _, m := range h.Mounts {
		switch {
		case m.Type != "volume":
			return nil, failf(http.StatusBadRequest, "cay refuses HostConfig.Mounts of the type %.50q: %s", m.Type, hostPath)
		case !validName.MatchString(m.Source):
			return nil, failf(http.StatusBadRequest, "cay refuses the volume %.300q of HostConfig.Mounts: a volume has a name", m.Source)
		case m.VolumeOptions.Subpath != "":
			return nil, failf(http.StatusBadRequest, "cay refuses VolumeOptions.Subpath: a volume is mounted as a whole")
		}
		out = append(out, mount{m.Source, m.Target, m.ReadOnly})
	}
	for i := range out {
		if !path.IsAbs(out[i].Path) {
			return nil, failf(http.StatusBadRequest, "invalid mount path %.300q: it is not absolute", out[i].Path)
		}
		out[i].Path = path.Clean(out[i].Path)
	}
	return out, nil
}

// attachVolumes makes the volumes of mounts that are missing, and returns the mounts of a sandbox.
func (s *Server) attachVolumes(ctx context.Context, mounts []mount) (out []sandbox.Mount, err error) {
	for _, m := range mounts {
		d, err := s.makeVolume(ctx, m.Volume, nil)
		if err != nil {
			return nil, err
		}
		mode := sandbox.MountReadWrite
		if m.ReadOnly {
			mode = sandbox.MountReadOnly
			if err := s.saveVolume(ctx, d.ID); err != nil {
				return nil, err
			}
		}
		out = append(out, sandbox.Mount{Path: m.Path, Drive: d.ID, Mode: mode})
	}
	return out, nil
}

// saveVolume has containers that mount a volume read-only from now on see what another
// one has written to it. A volume that is changing hands is saved by that.
func (s *Server) saveVolume(ctx context.Context, drive string) error {
	_, err := s.cfg.Sandboxes.SaveDrive(ctx, drive)
	if cay.CodeOf(err) == cay.Conflict {
		return nil
	}
	return err
}

// saveFilled saves the volumes of a container below which files have been put.
func (s *Server) saveFilled(ctx context.Context, c *container, dir string) error {
	for _, m := range c.Spec.Mounts {
		if m.ReadOnly || dir != m.Path && !strings.HasPrefix(dir, m.Path+"/") {
			continue
		}
		d, err := s.volume(ctx, m.Volume)
		if err != nil {
			return err
		}
		if err := s.saveVolume(ctx, d.ID); err != nil {
			return err
		}
	}
	return nil
}

// awaitVolumes waits for containers that have exited and whose sandboxes, which stop a
// moment later, have one of the volumes until then.
func (s *Server) awaitVolumes(ctx context.Context, mounts []mount) error {
	all, err := s.all(ctx)
	if err != nil {
		return err
	}
	for _, c := range all {
		shares := func(m mount) bool {
			return slices.ContainsFunc(mounts, func(o mount) bool { return o.Volume == m.Volume })
		}
		if !c.State.Exited || !slices.ContainsFunc(c.Spec.Mounts, shares) {
			continue
		}
		// The end of a container holds it until its sandbox has stopped.
		err := s.changing(ctx, c, func(*live, *container) error { return nil })
		if status, _ := shape(err); err != nil && status != http.StatusNotFound {
			return err
		}
	}
	return nil
}

var validDrive = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// driveName is the name of a volume's drive.
func driveName(volume string) string {
	if validDrive.MatchString(volume) && !strings.HasPrefix(volume, "drv_") {
		return volume
	}
	return fmt.Sprintf("docker-%x", sha256.Sum256([]byte(volume)))[:48]
}

// volumeName is the name of a drive as a volume.
func volumeName(d *sandbox.Drive) string {
	if n := d.Annotations[noteVolume]; n != "" {
		return n
	}
	return d.Name
}

// volumes returns the drives of the project whose names begin with a text.
func (s *Server) volumes(ctx context.Context, prefix string) (out []sandbox.Drive, err error) {
	p := sandbox.DriveListParams{ProjectID: s.cfg.ProjectID, NamePrefix: prefix, Limit: 200}
	for {
		page, err := s.cfg.Sandboxes.ListDrives(ctx, p)
		if err != nil {
			return nil, err
		}
		out = append(out, page.Items...)
		if p.Cursor = page.Next; p.Cursor == "" {
			return out, nil
		}
	}
}

// volume returns the drive of a volume. Errors: 404.
func (s *Server) volume(ctx context.Context, name string) (*sandbox.Drive, error) {
	all, err := s.volumes(ctx, driveName(name))
	if err != nil {
		return nil, err
	}
	for i := range all {
		if volumeName(&all[i]) == name {
			return &all[i], nil
		}
	}
	return nil, failf(http.StatusNotFound, "get %.100s: no such volume", name)
}

// makeVolume returns the drive of a volume, which it makes if there is none.
func (s *Server) makeVolume(ctx context.Context, name string, labels map[string]string) (*sandbox.Drive, error) {
	d, err := s.volume(ctx, name)
	if status, _ := shape(err); err == nil || status != http.StatusNotFound {
		return d, err
	}
	p := sandbox.CreateDriveParams{Name: driveName(name), ProjectID: s.cfg.ProjectID, Annotations: map[string]string{}}
	if p.Name != name {
		p.Annotations[noteVolume] = name
	}
	if len(labels) > 0 {
		text, err := json.Marshal(labels)
		if err != nil {
			return nil, err
		}
		if len(text) > maxNote {
			return nil, failf(http.StatusBadRequest, "the labels of the volume have %d bytes; cay keeps at most %d", len(text), maxNote)
		}
		p.Annotations[noteVolumeLabels] = string(text)
	}
	d, err = s.cfg.Sandboxes.CreateDrive(ctx, p)
	if cay.CodeOf(err) == cay.AlreadyExists { // another request was faster
		return s.volume(ctx, name)
	}
	return d, err
}

// describe is a volume as the API has it.
func describe(d *sandbox.Drive) map[string]any {
	return map[string]any{
		"Name": volumeName(d), "Driver": "local", "Mountpoint": "", "CreatedAt": stamp(d.CreatedAt), "Scope": "local", "Options": map[string]string{},
		"Labels": volumeLabels(d), "UsageData": map[string]int64{"Size": d.SizeBytes, "RefCount": -1},
	}
}

func volumeLabels(d *sandbox.Drive) map[string]string {
	labels := map[string]string{}
	_ = json.Unmarshal([]byte(d.Annotations[noteVolumeLabels]), &labels) // a drive that is no volume has none
	return labels
}

func (s *Server) handleVolumes(w http.ResponseWriter, r *http.Request) error {
	f, err := readFilters(r.URL.Query().Get("filters"), "name", "label", "driver")
	if err != nil {
		return err
	}
	all, err := s.volumes(r.Context(), "")
	if err != nil {
		return err
	}
	out := []any{}
	for i := range all {
		d := &all[i]
		if hasLabels(volumeLabels(d), f["label"]) && anyOf(f["driver"], func(n string) bool { return n == "local" }) &&
			anyOf(f["name"], func(n string) bool { return strings.Contains(volumeName(d), n) }) {
			out = append(out, describe(d))
		}
	}
	return writeJSON(w, http.StatusOK, map[string]any{"Volumes": out, "Warnings": []string{}})
}

func (s *Server) handleVolumeCreate(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Name, Driver string
		DriverOpts   map[string]string
		Labels       map[string]string
	}
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	switch {
	case body.Driver != "" && body.Driver != "local":
		return failf(http.StatusBadRequest, "cay refuses the volume driver %.100q: volumes are drives of the daemon", body.Driver)
	case len(body.DriverOpts) > 0:
		return failf(http.StatusBadRequest, "cay refuses DriverOpts: volumes are drives of the daemon")
	case body.Name == "":
		body.Name = newID()
	case !validName.MatchString(body.Name):
		return failf(http.StatusBadRequest, "invalid volume name %.300q: only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed, 255 at most", body.Name)
	}
	d, err := s.makeVolume(r.Context(), body.Name, body.Labels)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, describe(d))
}

func (s *Server) handleVolume(w http.ResponseWriter, r *http.Request) error {
	d, err := s.volume(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, describe(d))
}

func (s *Server) handleVolumeRemove(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	d, err := s.volume(r.Context(), name)
	if err != nil {
		if flag(r, "force") {
			if status, _ := shape(err); status == http.StatusNotFound {
				return noContent(w)
			}
		}
		return err
	}
	all, err := s.all(r.Context())
	if err != nil {
		return err
	}
	for _, c := range all {
		if slices.ContainsFunc(c.Spec.Mounts, func(m mount) bool { return m.Volume == name }) {
			return failf(http.StatusConflict, "remove %s: volume is in use - [%s]", name, c.ID)
		}
	}
	if err := s.cfg.Sandboxes.DeleteDrive(r.Context(), d.ID); err != nil {
		return err
	}
	return noContent(w)
}

// mountPoints are the volumes of a container as the API has them.
func (c *container) mountPoints() []any {
	out := []any{}
	for _, m := range c.Spec.Mounts {
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		out = append(out, map[string]any{
			"Type": "volume", "Name": m.Volume, "Source": "", "Destination": m.Path, "Driver": "local", "Mode": mode, "RW": !m.ReadOnly, "Propagation": "",
		})
	}
	return out
}
