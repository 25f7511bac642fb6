package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// bom is a document of CycloneDX 1.6.
type bom struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Serial       string       `json:"serialNumber"`
	Version      int          `json:"version"`
	Metadata     bomMetadata  `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type bomMetadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl,omitempty"`
	Hashes     []bomHash  `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type bomHash struct {
	Alg     string `json:"alg"`
	Content string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// components writes what the programs of an architecture consist of: the modules that the
// linker has noted in them, the standard library, and the JavaScript packages of the
// embedded pages.
func (r *release) components(w io.Writer, p *programs) error {
	found := map[string]component{}
	goVersion := ""
	for _, program := range []string{p.cay, p.guest, p.sentry} {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return err
		}
		goVersion = strings.TrimPrefix(info.GoVersion, "go")
		for _, m := range info.Deps {
			c := libraryOf(m)
			found[c.Ref] = c
		}
	}
	std := component{Type: "library", Name: "std", Version: goVersion, PURL: "pkg:golang/std@" + goVersion}
	std.Ref = std.PURL
	found[std.Ref] = std
	pages, err := r.javaScript()
	if err != nil {
		return err
	}
	for _, c := range pages {
		found[c.Ref] = c
	}
	program, err := os.ReadFile(p.cay)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(program)
	self := component{
		Type: "application", Name: "cay", Version: r.version, PURL: "pkg:golang/" + module + "@" + url.PathEscape(r.version),
		Hashes: []bomHash{{"SHA-256", hex.EncodeToString(sum[:])}},
	}
	self.Ref = self.PURL
	doc := bom{
		Format: "CycloneDX", Spec: "1.6", Serial: "urn:uuid:" + uuidOf(sum[:]), Version: 1,
		Metadata: bomMetadata{Timestamp: r.time.Format(time.RFC3339), Component: self},
	}
	refs := slices.Sorted(maps.Keys(found))
	for _, ref := range refs {
		doc.Components = append(doc.Components, found[ref])
	}
	doc.Dependencies = []dependency{{Ref: self.Ref, DependsOn: refs}}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(doc)
}

// libraryOf describes a module as the linker has noted it. A module that a directory replaces
// keeps its name and version: the directory has the edited gVisor, which "make inside" wrote.
func libraryOf(m *debug.Module) component {
	edited := m.Replace != nil && (m.Replace.Version == "" || m.Replace.Version == "(devel)")
	if m.Replace != nil && !edited {
		m = m.Replace
	}
	c := component{Type: "library", Name: m.Path, Version: m.Version, PURL: "pkg:golang/" + m.Path + "@" + url.PathEscape(m.Version)}
	c.Ref = c.PURL
	switch {
	case edited:
		c.Properties = []property{{"cay:edited", "by internal/sandboxd/gvisor/edits"}}
	case m.Sum != "":
		c.Properties = []property{{"cay:go.sum", m.Sum}}
	}
	return c
}

// uuidOf makes a UUID, version 8, of a hash.
func uuidOf(sum []byte) string {
	b := slices.Clone(sum[:16])
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// lockFiles are those of the JavaScript that is embedded in cay, built.
var lockFiles = []string{"internal/ui/package-lock.json", "sdk/js/world/package-lock.json"}

// javaScript returns the packages that embedded files were bundled of.
func (r *release) javaScript() ([]component, error) {
	var all []component
	for _, name := range lockFiles {
		b, err := os.ReadFile(filepath.Join(r.repo, name))
		if err != nil {
			return nil, err
		}
		found, err := locked(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// locked reads the packages of a package-lock.json that are more than tools of a build.
func locked(lock []byte) ([]component, error) {
	var file struct {
		Packages map[string]struct {
			Version   string
			Integrity string
			Dev       bool
			Peer      bool
			Optional  bool
		}
	}
	if err := json.Unmarshal(lock, &file); err != nil {
		return nil, err
	}
	var all []component
	for _, key := range slices.Sorted(maps.Keys(file.Packages)) {
		p := file.Packages[key]
		i := strings.LastIndex(key, "node_modules/")
		if i < 0 || p.Dev || p.Peer || p.Optional || p.Version == "" {
			continue
		}
		name := key[i+len("node_modules/"):]
		c := component{Type: "library", Name: name, Version: p.Version, PURL: "pkg:npm/" + strings.Replace(name, "@", "%40", 1) + "@" + p.Version}
		c.Ref = c.PURL
		if sum, ok := strings.CutPrefix(p.Integrity, "sha512-"); ok {
			raw, err := base64.StdEncoding.DecodeString(sum)
			if err != nil {
				return nil, fmt.Errorf("integrity of %s: %w", name, err)
			}
			c.Hashes = []bomHash{{"SHA-512", hex.EncodeToString(raw)}}
		}
		all = append(all, c)
	}
	return all, nil
}
