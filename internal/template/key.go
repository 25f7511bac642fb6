package template

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"

	"github.com/cayhq/cay/sandbox"
)

// keyVersion changes when the meaning of equal steps changes.
const keyVersion = 1

// key identifies a sandbox's written files by the base and the steps that wrote
// them.
type key string

// layer returns the name of the snapshot with the key.
func (k key) layer() string { return layerPrefix + string(k) }

// baseKey is the key before the first step. The key covers the network that
// steps may reach, but not the secrets of a policy, which change without any
// effect on the answers. It also covers the size of the disk, which is a
// property of a layer.
func (t *Template) baseKey(base string) (key, error) {
	return hashKey(struct {
		Version             int
		Base, User, WorkDir string
		DiskMB              int64
		Network             sandbox.Network
	}{keyVersion, base, t.User, t.WorkDir, t.Resources.Disk.MiB(), t.Network.WithDefaults().Redacted()})
}

// stepKey is the key after a step. Settings without an effect on files are left
// out, such as the time limit of the step.
func (t *Template) stepKey(before key, s Step, copies []copied, source string) (key, error) {
	type run struct {
		Argv          []string
		Env           map[string]string
		User, WorkDir string
	}
	type entry struct {
		Name, Link []byte // names are bytes, not text
		Mode       fs.FileMode
		Sum        string
	}
	type dir struct {
		Dir   string
		Files []entry
		Into  string `json:",omitempty"`
	}
	type filesCopied struct {
		Dirs []dir
		User string
		// For a copy from an image or a snapshot, whose files are not listed.
		Source string       `json:",omitempty"`
		From   []string     `json:",omitempty"`
		To     string       `json:",omitempty"`
		Mode   *fs.FileMode `json:",omitempty"`
	}
	step := struct {
		Before key
		Run    *run         `json:",omitempty"`
		Copy   *filesCopied `json:",omitempty"`
		Mkdir  string       `json:",omitempty"`
	}{Before: before, Mkdir: s.Mkdir}
	if len(s.Run) > 0 {
		step.Run = &run{s.Run, merge(t.Env, s.Env), s.User, s.WorkDir}
	} else if len(s.Copy) > 0 {
		step.Copy = &filesCopied{User: s.User, Mode: s.Mode}
		if source != "" {
			step.Copy.Source, step.Copy.From, step.Copy.To = source, s.Copy, s.To
		}
		for _, c := range copies {
			d := dir{Dir: c.Dir, Into: c.Into}
			for _, f := range c.Files {
				d.Files = append(d.Files, entry{[]byte(f.Name), []byte(f.Link), f.Mode, f.Sum})
			}
			step.Copy.Dirs = append(step.Copy.Dirs, d)
		}
	}
	return hashKey(step)
}

// hashKey hashes v in its canonical JSON.
func hashKey(v any) (key, error) {
	h := sha256.New()
	if err := json.NewEncoder(h).Encode(v); err != nil {
		return "", fmt.Errorf("encode step: %w", err)
	}
	return key(hex.EncodeToString(h.Sum(nil))), nil
}
