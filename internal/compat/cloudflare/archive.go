package cloudflare

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// Bounds of the list of paths that an archive leaves out.
const (
	maxExcludes     = 1000
	maxExcludeBytes = 64 << 10
)

// excludes are the paths that an archive leaves out, relative to the workspace.
type excludes []*regexp.Regexp

// parseExcludes reads a comma-separated list of paths, in which * stands for any
// characters and ? for one. A directory stands for all below it. Errors: invalid.
func parseExcludes(list string) (excludes, error) {
	if len(list) > maxExcludeBytes {
		return nil, cay.Errorf(cay.Invalid, "excludes has %d bytes, more than %d", len(list), maxExcludeBytes)
	}
	var out excludes
	for p := range strings.SplitSeq(list, ",") {
		if strings.Contains(p, "..") {
			return nil, cay.Errorf(cay.Invalid, `exclude paths must not contain "..": %.200q`, p)
		}
		p = strings.Trim(strings.TrimPrefix(p, "./"), "/")
		if p == "" {
			continue
		}
		if len(out) == maxExcludes {
			return nil, cay.Errorf(cay.Invalid, "excludes has more than %d paths", maxExcludes)
		}
		pattern := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(p))
		re, err := regexp.Compile("(?s)^" + pattern + "(/|$)")
		if err != nil {
			return nil, cay.Errorf(cay.Invalid, "exclude path %.200q cannot be used: %w", p, err)
		}
		out = append(out, re)
	}
	return out, nil
}

// has reports whether the path of a member, relative to the workspace, is left out.
func (x excludes) has(path string) bool {
	for _, re := range x {
		if re.MatchString(path) {
			return true
		}
	}
	return false
}

// handlePersist answers with the workspace as a tar archive.
func (h *handler) handlePersist(w http.ResponseWriter, r *http.Request) error {
	out, err := parseExcludes(r.URL.Query().Get("excludes"))
	if err != nil {
		return err
	}
	ctx := r.Context()
	sb, err := h.ensure(ctx, r.PathValue("id"))
	if err != nil {
		return err
	}
	src, err := h.Sandboxes.Archive(ctx, sb.ID, workspace, sandbox.Tar)
	if err != nil {
		return forCodes(http.StatusBadGateway, codeArchiveRead, err, cay.FileNotFound, cay.Invalid, cay.PermissionDenied)
	}
	defer src.Close() // it was only read
	members := tar.NewReader(bufio.NewReaderSize(src, 64<<10))
	root, err := members.Next()
	if err == nil && (root.Typeflag != tar.TypeDir || root.Name != workspace[1:]+"/") {
		err = cay.Errorf(cay.Conflict, "%s is not a directory", workspace)
	}
	if err != nil {
		return shaped(http.StatusBadGateway, codeArchiveRead, err)
	}
	return sendTar(ctx, w, func(dst io.Writer) error { return repack(dst, root, members, out) })
}

// sendTar answers with what write writes. A failure breaks the connection, so that the
// client does not take half an archive for a whole one.
func sendTar(ctx context.Context, w http.ResponseWriter, write func(io.Writer) error) error {
	read, written := io.Pipe()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		written.CloseWithError(write(written))
	}()
	defer func() {
		read.CloseWithError(context.Canceled)
		<-finished
	}()
	stop := context.AfterFunc(ctx, func() { read.CloseWithError(context.Cause(ctx)) })
	defer stop()
	buf, free := api.Buffer()
	defer free()
	w.Header().Set("Content-Type", wire.TypeBytes)
	w.WriteHeader(http.StatusOK)
	return api.Copy(w, nil, read, buf)
}

// repack copies an archive of the workspace whose first header is root. Names of members
// begin with "./" in the copy, and members that are left out are missing.
func repack(dst io.Writer, root *tar.Header, members *tar.Reader, out excludes) error {
	tw := tar.NewWriter(dst)
	for hdr := root; ; {
		if rel, err := relative(hdr.Name); err != nil {
			return err
		} else if !out.has(rel) {
			if err := repackMember(tw, hdr, members, rel, out); err != nil {
				return err
			}
		}
		var err error
		if hdr, err = members.Next(); errors.Is(err, io.EOF) {
			return tw.Close()
		} else if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
	}
}

func repackMember(tw *tar.Writer, hdr *tar.Header, content io.Reader, rel string, out excludes) error {
	hdr.Name = "./" + rel
	hdr.Format = tar.FormatUnknown // the simplest that has room for all
	if hdr.Typeflag == tar.TypeLink {
		target, err := relative(hdr.Linkname)
		if err != nil {
			return err
		}
		if out.has(target) {
			return cay.Errorf(cay.Conflict, "%.200q is another name of %.200q, which is excluded", rel, target).
				WithHint("exclude both")
		}
		hdr.Linkname = "./" + target
	}
	if err := tw.WriteHeader(hdr); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	if _, err := io.Copy(tw, content); err != nil {
		return fmt.Errorf("copy %.200q: %w", rel, err)
	}
	return nil
}

// relative returns the name of a member without the workspace.
func relative(name string) (string, error) {
	rel, ok := strings.CutPrefix(name, workspace[1:]+"/")
	if !ok {
		return "", fmt.Errorf("the archive has a member %.200q", name)
	}
	return rel, nil
}

// handleHydrate unpacks a tar archive over the workspace.
func (h *handler) handleHydrate(w http.ResponseWriter, r *http.Request) error {
	body, err := upload(w, r, "tar")
	if err != nil {
		return shaped(http.StatusBadRequest, codeInvalid, err)
	}
	buffered := bufio.NewReader(body)
	if _, err := buffered.Peek(1); errors.Is(err, io.EOF) {
		return cay.Errorf(cay.Invalid, "Empty tar payload").WithHint("send an uncompressed tar archive")
	} else if err != nil {
		return err
	}
	ctx := r.Context()
	sb, err := h.ensure(ctx, r.PathValue("id"))
	if err != nil {
		return err
	}
	p := sandbox.ExtractParams{Format: sandbox.Tar, MaxBytes: maxUpload}
	if err := h.Sandboxes.Extract(ctx, sb.ID, workspace, buffered, p); err != nil {
		err = forCodes(http.StatusBadRequest, codeInvalid, err, cay.TooLarge)
		return forCodes(http.StatusBadGateway, codeArchiveWrite, err,
			cay.Invalid, cay.FileNotFound, cay.PermissionDenied, cay.NoSpace, cay.Conflict, cay.AlreadyExists)
	}
	return api.WriteJSON(w, http.StatusOK, done)
}
