package template

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

// tree makes files below a new directory: "name" with content, "name/" for a
// directory, "name ->" for a link to the content.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "context")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		link, isLink := strings.CutSuffix(name, " ->")
		p := filepath.Join(dir, link)
		err := os.MkdirAll(filepath.Dir(p), 0o755)
		switch {
		case err != nil:
		case isLink:
			err = os.Symlink(content, p)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(p, 0o755)
		default:
			err = os.WriteFile(p, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func openRoot(t *testing.T, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// listing returns the files of a scan as "dir: name mode link-or-size".
func listing(all []copied) []string {
	var lines []string
	for _, c := range all {
		for _, f := range c.Files {
			what := f.Link
			if f.Mode.IsRegular() {
				what = fmt.Sprint(f.size)
			}
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s: %s %v %s", c.Dir, f.Name, f.Mode, what)))
		}
	}
	return lines
}

func TestScan(t *testing.T) {
	t.Parallel()
	dir := tree(t, map[string]string{
		"a.txt": "one", "bin/run": "run", "src/main.js": "main", "src/main.test.js": "test", "src/deep/x.test.js": "t",
		"src/node_modules/m/i.js": "m", "src/link ->": "../a.txt", "src/empty/": "", "current ->": "src/deep",
	})
	if err := os.Chmod(filepath.Join(dir, "bin/run"), 0o755|fs.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "src/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	root := openRoot(t, dir)
	for _, c := range []struct {
		name string
		step Step
		want []string
	}{
		{"a file into the working directory", Step{Copy: texts{"a.txt"}}, []string{".: a.txt -rw-r--r-- 3"}},
		{"a file by another name", Step{Copy: texts{"./bin/run"}, To: "/usr/bin/go"}, []string{"/usr/bin: go -rwxr-xr-x 3"}},
		{"a file into a directory", Step{Copy: texts{"bin/run"}, To: "/usr/bin/"}, []string{"/usr/bin: run -rwxr-xr-x 3"}},
		{"a file to the root", Step{Copy: texts{"a.txt"}, To: "/"}, []string{"/: a.txt -rw-r--r-- 3"}},
		{"a directory by another name, without some", Step{Copy: texts{"src"}, To: "/app", Exclude: []string{"node_modules/", "src/**/*.test.js"}}, []string{
			"/app: deep drwxr-xr-x", "/app: empty drwxr-xr-x", "/app: link Lrwxrwxrwx ../a.txt", "/app: main.js -rw-r--r-- 4",
		}},
		{"several into a directory", Step{Copy: texts{"bin", "a.txt"}, To: "x/"}, []string{"x/bin: run -rwxr-xr-x 3", "x: a.txt -rw-r--r-- 3"}},
		{"a link, followed", Step{Copy: texts{"current"}, To: "d"}, []string{"d: x.test.js -rw-r--r-- 1"}},
		{"below a link", Step{Copy: texts{"current/x.test.js"}}, []string{".: x.test.js -rw-r--r-- 1"}},
		{"everything, to the working directory", Step{Copy: texts{"."}, Exclude: []string{"src", "current"}}, []string{
			".: a.txt -rw-r--r-- 3", ".: bin drwxr-xr-x", ".: bin/run -rwxr-xr-x 3",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			all, err := scan(t.Context(), root, c.step, nil)
			got := listing(all)
			for i := range got { // how the mode of a link is shown is not the point
				got[i] = strings.Replace(got[i], "L---------", "Lrwxrwxrwx", 1)
			}
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("got  %q, %v\nwant %q", got, err, c.want)
			}
		})
	}
}

// Only files below the template's directory are read, whatever links say.
func TestScan_Refused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		files map[string]string
		src   string
		want  string
	}{
		{"missing", nil, "a", "no such file"},
		{"a link out, as the source", map[string]string{"a ->": "../secret"}, "a", "escapes"},
		{"an absolute link, as the source", map[string]string{"a ->": "/etc"}, "a", "escapes"},
		{"a directory that is a link out", map[string]string{"a ->": "../outside"}, "a/secret", "escapes"},
		{"a link out, in a directory", map[string]string{"d/a ->": "../../secret"}, "d", `"d/a" leads to "../../secret", out of`},
		{"an absolute link, in a directory", map[string]string{"d/a ->": "/etc/shadow"}, "d", "out of the template's directory"},
		{"a link to a directory outside, through one inside", map[string]string{"d/a ->": "../e", "e ->": "../outside"}, "d/a/secret", "escapes"},
		{"a pipe", map[string]string{"x": ""}, "pipe", "neither a file nor a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := tree(t, c.files)
			outside := filepath.Join(filepath.Dir(dir), "outside")
			if err := errors.Join(os.WriteFile(filepath.Join(filepath.Dir(dir), "secret"), []byte("s"), 0o600), os.Mkdir(outside, 0o700),
				os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o600), syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600)); err != nil {
				t.Fatal(err)
			}
			all, err := scan(t.Context(), openRoot(t, dir), Step{Copy: texts{c.src}, To: "/x/"}, nil)
			if cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q, %v; want invalid with %q", listing(all), err, c.want)
			}
		})
	}
}

func TestPack(t *testing.T) {
	t.Parallel()
	dir := tree(t, map[string]string{"d/a": "aaa", "d/b ->": "a", "d/c/": ""})
	when := time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC)
	if err := os.Chtimes(filepath.Join(dir, "d/a"), when, when); err != nil {
		t.Fatal(err)
	}
	root := openRoot(t, dir)
	all, err := scan(t.Context(), root, Step{Copy: texts{"d"}, To: "/x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := pack(t.Context(), &b, root, all[0].Files); err != nil {
		t.Fatal(err)
	}
	var got []string
	for tr := tar.NewReader(&b); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "a" && !h.ModTime.Equal(when) {
			t.Errorf("time %v", h.ModTime)
		}
		got = append(got, fmt.Sprintf("%c %s %o %d:%d %s%s", h.Typeflag, h.Name, h.Mode, h.Uid, h.Gid, h.Linkname, content))
	}
	want := []string{"0 a 644 0:0 aaa", "2 b 777 0:0 a", "5 c/ 755 0:0 "}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// pack sends the hashed content or fails: a layer is named after its content.
func TestPack_Changed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(p string) error{
		"other content": func(p string) error { return os.WriteFile(p, []byte("bbb"), 0o600) },
		"shorter":       func(p string) error { return os.Truncate(p, 1) },
		"gone":          os.Remove,
		"a pipe":        func(p string) error { return errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o600)) },
		"a link out": func(p string) error {
			return errors.Join(os.Remove(p), os.WriteFile(filepath.Join(p, "../../../a"), []byte("aaa"), 0o600), os.Symlink("../../a", p))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tree(t, map[string]string{"d/a": "aaa", "d/": ""})
			root := openRoot(t, dir)
			all, err := scan(t.Context(), root, Step{Copy: texts{"d"}, To: "/x"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := change(filepath.Join(dir, "d", "a")); err != nil {
				t.Fatal(err)
			}
			err = pack(t.Context(), io.Discard, root, all[0].Files)
			if code := cay.CodeOf(err); code != cay.Conflict && code != cay.Invalid {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestScan_Canceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := scan(ctx, openRoot(t, tree(t, map[string]string{"a": "1"})), Step{Copy: texts{"a"}}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
