package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// copySpec is one --copy or --copy-out.
type copySpec struct{ src, dst string }

func parseCopies(flag string, texts []string) ([]copySpec, error) {
	var specs []copySpec
	for _, t := range texts {
		src, dst, err := parseCopySpec(flag, t)
		if err != nil {
			return nil, err
		}
		specs = append(specs, copySpec{src, dst})
	}
	return specs, nil
}

const copyHelp = `Copy a file or a directory into a sandbox or out of it. One of SRC and DST is
SANDBOX:PATH, where PATH may be relative to the sandbox's working directory; the
other is a path here. A path here that contains a colon is written ./a:b.

If DST is a directory that exists, or ends in a slash, SRC is copied into it under
its own name; else DST is what the copy will be called. A SRC that ends in "/."
means what is in the directory. "-" is standard input or output: of a file its
content, of a directory a tar archive. Owners are not copied.`

func newSandboxCopy(a *app) *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use: "copy SRC DST", Aliases: []string{"cp"}, Short: "Copy files into a sandbox or out of it", Long: copyHelp,
		Example: "  cay sandbox copy ./src web:app\n  cay sandbox copy web:/var/log/app.log .\n  cay sandbox copy web:app - | tar t",
		Args:    exactly(2, "SRC and DST"),
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	return a.verb(c, func(ctx context.Context, args []string) error {
		src, err := parsePlace(args[0])
		if err != nil {
			return &exitError{exitUsage, err}
		}
		dst, err := parsePlace(args[1])
		if err != nil {
			return &exitError{exitUsage, err}
		}
		if src.local() == dst.local() {
			return &exitError{exitUsage, cay.Errorf(cay.Invalid, "one of %q and %q must be SANDBOX:PATH, the other a path here", args[0], args[1])}
		}
		if a.json && dst.path == "-" {
			return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--json does not go together with copying to standard output")}
		}
		p := a.newProgress(quiet || a.json || dst.path == "-" && dst.local() && isTerminal(a.stdout))
		if src.local() {
			err = a.copyIn(ctx, a.sandboxes(), p, src.path, dst)
		} else {
			err = a.copyOut(ctx, a.sandboxes(), p, src, dst.path)
		}
		p.done()
		if err != nil || !a.json {
			return err
		}
		return a.printJSON(map[string]string{"source": args[0], "destination": args[1]})
	})
}

// copyIn copies src, here, to a sandbox.
func (a *app) copyIn(ctx context.Context, c *sandbox.Client, p *progress, src string, dst place) error {
	if src == "-" {
		_, err := c.WriteFile(ctx, dst.sandbox, dst.path, p.reader(a.stdin, dst.path, 0), sandbox.WriteParams{Parents: true})
		return err
	}
	fi, err := os.Stat(src)
	if err != nil {
		return cay.Errorf(cay.FileNotFound, "cannot copy: %w", err)
	}
	contents := isContents(src)
	if !contents {
		into, err := intoDir(ctx, c, dst)
		if err != nil {
			return err
		}
		if into {
			name, err := localName(src)
			if err != nil {
				return err
			}
			dst.path = path.Join(dst.path, name)
		}
	}
	switch {
	case fi.IsDir():
		return sendDir(ctx, c, p, src, dst)
	case fi.Mode().IsRegular():
		return sendFile(ctx, c, p, src, dst)
	}
	return cay.Errorf(cay.Invalid, "%s is neither a file nor a directory", src)
}

func sendFile(ctx context.Context, c *sandbox.Client, p *progress, src string, dst place) error {
	f, err := os.Open(src)
	if err != nil {
		return cay.Errorf(cay.FileNotFound, "cannot copy: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("copy %s: %w", src, err)
	}
	size := fi.Size()
	if size == 0 {
		size = -1 // known to be empty
	}
	_, err = c.WriteFile(ctx, dst.sandbox, dst.path, p.reader(f, clean(src), fi.Size()),
		sandbox.WriteParams{Mode: fi.Mode().Perm(), Parents: true, Size: size})
	return err
}

// sendDir streams what is in src into dst, which becomes a directory.
func sendDir(ctx context.Context, c *sandbox.Client, p *progress, src string, dst place) error {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		buf := bufio.NewWriterSize(w, 256<<10)
		err := packTar(buf, src)
		if err == nil {
			err = buf.Flush()
		}
		packed <- err
		w.CloseWithError(err)
	}()
	err := c.Extract(ctx, dst.sandbox, dst.path, p.reader(r, clean(src), 0), sandbox.ExtractParams{Format: sandbox.Tar})
	r.CloseWithError(errors.New("the other side has stopped reading"))
	if perr := <-packed; perr != nil && err != nil && cay.CodeOf(err) != cay.Canceled && errors.Is(err, perr) {
		return perr
	}
	return err
}

// copyOut copies src, in a sandbox, to a path here.
func (a *app) copyOut(ctx context.Context, c *sandbox.Client, p *progress, src place, dst string) error {
	info, err := c.Stat(ctx, src.sandbox, src.path, true)
	if err != nil {
		return err
	}
	if info.Type == sandbox.TypeDir {
		return a.receiveDir(ctx, c, p, src, dst)
	}
	body, info, err := c.ReadFile(ctx, src.sandbox, src.path, sandbox.ReadParams{})
	if err != nil {
		return err
	}
	defer body.Close()
	r := p.reader(body, clean(src.path), info.Size)
	if dst == "-" {
		_, err := io.Copy(a.stdout, r)
		return err
	}
	if into, err := localDir(dst); err != nil {
		return err
	} else if into {
		name, err := guestName(src.path)
		if err != nil {
			return err
		}
		dst = filepath.Join(dst, name)
	}
	return receiveFile(r, dst, info.Mode&0o777)
}

// receiveFile replaces dst with what r holds, all of it or nothing.
func receiveFile(r io.Reader, dst string, mode fs.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(dst), ".cay-*")
	if err != nil {
		return fmt.Errorf("copy to %s: %w", dst, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), dst)
}

func (a *app) receiveDir(ctx context.Context, c *sandbox.Client, p *progress, src place, dst string) error {
	if dst != "-" && !isContents(src.path) {
		into, err := localDir(dst)
		if err != nil {
			return err
		}
		if into {
			name, err := guestName(src.path)
			if err != nil {
				return err
			}
			dst = filepath.Join(dst, name)
		}
	}
	body, err := c.Archive(ctx, src.sandbox, src.path, sandbox.Tar)
	if err != nil {
		return err
	}
	defer body.Close()
	r := p.reader(body, clean(src.path), 0)
	if dst == "-" {
		_, err := io.Copy(a.stdout, r)
		return err
	}
	if err := os.MkdirAll(dst, 0o777); err != nil {
		return fmt.Errorf("copy to %s: %w", dst, err)
	}
	skipped, err := unpackTar(r, dst)
	if skipped > 0 {
		p.done()
		a.warn("%d devices, pipes or sockets were left out", skipped)
	}
	return err
}

// isContents reports whether a path means what is in a directory.
func isContents(p string) bool {
	return p == "." || p == ".." || p == "/" || strings.HasSuffix(p, "/.") || strings.HasSuffix(p, "/..")
}

// intoDir reports whether a copy to dst goes into it rather than in its place.
func intoDir(ctx context.Context, c *sandbox.Client, dst place) (bool, error) {
	if strings.HasSuffix(dst.path, "/") || isContents(dst.path) {
		return true, nil
	}
	info, err := c.Stat(ctx, dst.sandbox, dst.path, true)
	if cay.CodeOf(err) == cay.FileNotFound {
		return false, nil
	}
	return err == nil && info.Type == sandbox.TypeDir, err
}

// localDir is intoDir for a path here.
func localDir(dst string) (bool, error) {
	fi, err := os.Stat(dst)
	switch {
	case err == nil && fi.IsDir():
		return true, nil
	case strings.HasSuffix(dst, "/"):
		if err != nil {
			return false, cay.Errorf(cay.FileNotFound, "%s is not a directory: %w", dst, err)
		}
		return false, cay.Errorf(cay.Invalid, "%s is not a directory", dst)
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, fmt.Errorf("copy to %s: %w", dst, err)
}

// localName is the name a copy of a path here gets.
func localName(src string) (string, error) {
	abs, err := filepath.Abs(src)
	if err != nil {
		return "", fmt.Errorf("copy %s: %w", src, err)
	}
	return filepath.Base(abs), nil
}

// guestName is the name a copy of a path in a sandbox gets here.
func guestName(src string) (string, error) {
	name := path.Base(path.Clean(src))
	if !filepath.IsLocal(name) || name == "." {
		return "", cay.Errorf(cay.Invalid, "%q has no name to use here", src).WithHint("name the copy, or write %s/. for its contents", strings.TrimSuffix(src, "/"))
	}
	return name, nil
}
