package agent

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

const (
	defaultMaxBytes   = 64 << 30
	defaultMaxEntries = 1_000_000
)

func (s *Server) handleExtract(w http.ResponseWriter, r *http.Request) error {
	real, shown, err := s.pathParam(r, "path")
	if err != nil {
		return err
	}
	format, err := formatParam(r)
	if err != nil {
		return err
	}
	x := &extractor{ctx: r.Context(), keepOwner: flagParam(r, "keep_owner"), contentOnly: flagParam(r, "content_only"), whole: shown == "/", taking: taking{memory: &s.memory}}
	if x.own, err = s.owner(r.URL.Query().Get("user")); err != nil {
		return err
	}
	if x.keepOwner && os.Geteuid() != 0 {
		return cay.Errorf(cay.NotSupported, "extract: this sandbox cannot give files to other users").WithHint("leave out keep_owner")
	}
	if x.maxBytes, err = intParam(r, "max_bytes"); err != nil {
		return err
	}
	if x.maxEntries, err = intParam(r, "max_entries"); err != nil {
		return err
	}
	if err := makeParents(path.Clean(real), 0o755, x.own); err != nil {
		return fileError("extract to", shown, err)
	}
	if x.root, err = openDir(unix.AT_FDCWD, real, true); err != nil {
		return fileError("extract to", shown, err)
	}
	defer x.root.Close()
	defer x.leaveDirs()
	if err := x.extract(r.Body, format); err != nil {
		return x.staying(fileError("extract to", shown, err))
	}
	return nil
}

// extractor unpacks one archive below root. It finds directories by openBeneath, and
// creates each file by its bare name in its directory, without following links.
//
// An archive is a stream, so an error may appear when half of it is unpacked. The
// unpacked files stay, because many of them may have replaced earlier files.
type extractor struct {
	ctx         context.Context // of the request
	root        *os.File
	whole       bool // root is the machine's /, which no path can leave
	own         owner
	keepOwner   bool
	contentOnly bool
	maxBytes    int64 // of content; 0 means defaultMaxBytes
	maxEntries  int64 // 0 means defaultMaxEntries
	taking      taking

	bytesLeft   int64
	entriesLeft int64
	unpacked    int64 // members

	// dirs are the directories of earlier members, which often are the next member's,
	// too; the newest is last. All were found below root.
	dirs []enteredDir

	times []dirTime // to set when all is in place
}

type enteredDir struct {
	name     string
	file     *os.File
	fd       int  // of file, which Fd would make blocking each time
	inMemory bool // files in it have their content in memory
}

// maxEntered bounds how many directories are kept open.
const maxEntered = 64

type dirTime struct {
	name string
	mod  time.Time
}

// maxDirTimes bounds how many directories get their time from the archive.
const maxDirTimes = 1 << 16

func (x *extractor) extract(body io.Reader, format sandbox.ArchiveFormat) error {
	set(&x.maxBytes, defaultMaxBytes)
	set(&x.maxEntries, defaultMaxEntries)
	x.bytesLeft, x.entriesLeft = min(x.maxBytes, 1<<60), min(x.maxEntries, 1<<40)
	r := io.Reader(bufio.NewReaderSize(body, guest.CopyBuffer))
	if format == sandbox.TarGz {
		zip, err := gzip.NewReader(r)
		if err != nil {
			return cay.Errorf(cay.Invalid, "the archive is not gzip: %w", err)
		}
		r = zip
	}
	// Headers and padding count, too: a decompression bomb may consist of them alone.
	raw := &countingReader{r: r, left: x.bytesLeft + x.entriesLeft*maxHeader, end: x.tooMuch()}
	tr := tar.NewReader(raw)
	for {
		if err := x.ctx.Err(); err != nil {
			return &begunError{err}
		}
		h, err := tr.Next()
		if err == io.EOF {
			// The rest is padding, and the checksum of a compressed archive.
			if _, err := copyAll(io.Discard, raw); err != nil {
				return archiveError(err)
			}
			return x.setTimes()
		}
		if err != nil {
			return archiveError(err)
		}
		if x.entriesLeft--; x.entriesLeft < 0 {
			return cay.Errorf(cay.TooLarge, "the archive has more than %d members", x.maxEntries).WithHint("raise max_entries, or split it")
		}
		if err := x.member(h, tr); err != nil {
			return memberError(h.Name, err)
		}
		x.unpacked++
	}
}

func (x *extractor) tooMuch() error {
	return cay.Errorf(cay.TooLarge, "the archive has more than %d bytes of content", x.maxBytes).WithHint("raise max_bytes, or split it")
}

// staying adds to an error how much of the archive was unpacked before it.
func (x *extractor) staying(err error) error {
	e, ok := errors.AsType[*cay.Error](err)
	if !ok {
		return err
	}
	told := *e
	if x.unpacked == 0 {
		told.Message = err.Error() + "; no member was unpacked"
	} else {
		told.Message = fmt.Sprintf("%s; members unpacked before, which stay: %d", err, x.unpacked)
	}
	return &told
}

// maxHeader is how many bytes a member may take in addition to its content, on average.
const maxHeader = 4096

type countingReader struct {
	r    io.Reader
	left int64
	end  error // when nothing is left
}

func (c *countingReader) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, c.end
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

func archiveError(err error) error {
	if _, ok := errors.AsType[*cay.Error](err); ok {
		return err
	}
	if _, ok := errors.AsType[*begunError](err); ok {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return cay.Errorf(cay.Invalid, "the archive ends in the middle: %w", err)
	}
	return cay.Errorf(cay.Invalid, "the archive is malformed: %w", err)
}

func memberError(name string, err error) error {
	if _, ok := errors.AsType[*cay.Error](err); ok {
		return err
	}
	if _, ok := errors.AsType[*begunError](err); ok {
		return err
	}
	return fileError("extract", name, err)
}

// member unpacks one member.
func (x *extractor) member(h *tar.Header, content io.Reader) error {
	name, err := memberName(h.Name)
	if err != nil {
		return err
	}
	if h.Size < 0 || h.Size > x.bytesLeft {
		return x.tooMuch()
	}
	if x.contentOnly && !isFile(h) {
		return cay.Errorf(cay.Invalid, "member %s is not a regular file", quote(h.Name))
	}
	if err := x.taking.takeName(x.ctx, h); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return x.makeDir(name, h)
	}
	if name == "." {
		return cay.Errorf(cay.Invalid, "member %s has the name of the directory itself", quote(h.Name))
	}
	in, base, err := x.enter(name)
	if err != nil {
		return err
	}
	dir := in.fd
	x.forget(name)
	if isFile(h) {
		x.bytesLeft -= h.Size
		if in.inMemory {
			content = &takingReader{ctx: x.ctx, r: content, taking: &x.taking}
		}
		return x.makeFile(dir, base, h, content)
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		if err := unlinkOld(dir, base); err != nil {
			return err
		}
		if err := unix.Symlinkat(h.Linkname, dir, base); err != nil {
			return err
		}
		if err := x.chown(dir, base, h); err != nil {
			return err
		}
		return x.setTime(dir, base, h.ModTime)
	case tar.TypeLink:
		return x.makeLink(dir, base, h)
	case tar.TypeXGlobalHeader:
		return nil
	}
	return cay.Errorf(cay.Invalid, "member %s is a device, pipe or of unknown type %q", quote(h.Name), h.Typeflag)
}

func isFile(h *tar.Header) bool {
	return h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeGNUSparse || h.Typeflag == tar.TypeCont
}

// memberName checks that a name stays below the directory, as text.
func memberName(name string) (string, error) {
	clean := strings.TrimRight(name, "/")
	if name == "" || strings.HasPrefix(name, "/") || strings.ContainsRune(name, 0) || len(name) > guest.MaxPath || !filepath.IsLocal(clean) {
		return "", cay.Errorf(cay.Invalid, "member %s would land outside of the directory", quote(name))
	}
	return path.Clean(clean), nil
}

// enter opens the directory of a member, and makes the directory if it is missing.
func (x *extractor) enter(name string) (dir enteredDir, base string, err error) {
	up, base := path.Split(name)
	up = path.Clean(up)
	for _, d := range slices.Backward(x.dirs) {
		if d.name == up {
			return d, base, nil
		}
	}
	d, err := x.open(up)
	if err != nil {
		return enteredDir{}, "", err
	}
	dir = enteredDir{name: up, file: d, fd: int(d.Fd())}
	if dir.inMemory, err = inMemory(dir.fd); err != nil {
		d.Close()
		return enteredDir{}, "", err
	}
	if len(x.dirs) == maxEntered {
		x.dirs[0].file.Close()
		x.dirs = slices.Delete(x.dirs, 0, 1)
	}
	x.dirs = append(x.dirs, dir)
	return dir, base, nil
}

// forget closes the directories that were found through name, perhaps a link, because
// name is about to be replaced.
func (x *extractor) forget(name string) {
	below := name + "/"
	x.dirs = slices.DeleteFunc(x.dirs, func(d enteredDir) bool {
		if d.name != name && !strings.HasPrefix(d.name, below) {
			return false
		}
		d.file.Close()
		return true
	})
}

func (x *extractor) leaveDirs() {
	for _, d := range x.dirs {
		d.file.Close()
	}
	x.dirs = nil
}

// open opens a directory, and makes it and its parents if they are missing.
func (x *extractor) open(name string) (*os.File, error) {
	d, err := openBeneath(x.root, name, x.whole)
	if err != unix.ENOENT {
		return d, err
	}
	up, err := x.open(path.Dir(name))
	if err != nil {
		return nil, err
	}
	defer up.Close()
	base := path.Base(name)
	if err := unix.Mkdirat(int(up.Fd()), base, 0o700); err != nil {
		return nil, err // a link to nowhere, too
	}
	if d, err = openDir(int(up.Fd()), base, false); err != nil {
		return nil, err
	}
	if x.own.uid >= 0 {
		err = d.Chown(x.own.uid, x.own.gid)
	}
	if err == nil {
		err = d.Chmod(0o755)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (x *extractor) makeDir(name string, h *tar.Header) error {
	d, err := x.open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	if name != "." || x.keepOwner {
		if uid, gid := x.ownerOf(h); uid >= 0 {
			if err := unix.Fchown(int(d.Fd()), uid, gid); err != nil {
				return err
			}
		}
	}
	if err := unix.Fchmod(int(d.Fd()), uint32(h.Mode)&0o7777); err != nil {
		return err
	}
	if err := setAttrs(int(d.Fd()), h); err != nil {
		return err
	}
	if len(x.times) < maxDirTimes && !h.ModTime.IsZero() {
		x.times = append(x.times, dirTime{name, h.ModTime})
	}
	return nil
}

// makeFile makes a file with few system calls, because archives have many small files.
func (x *extractor) makeFile(dir int, base string, h *tar.Header, content io.Reader) (err error) {
	fd, err := createFile(dir, base)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unix.Unlinkat(dir, base, 0))
		}
	}()
	defer unix.Close(fd)
	if n, err := copyAll(rawFile(fd), content); err != nil {
		if _, ok := errors.AsType[*os.PathError](err); ok {
			return err
		}
		return archiveError(err)
	} else if n != h.Size {
		return archiveError(io.ErrUnexpectedEOF)
	}
	if uid, gid := x.ownerOf(h); uid >= 0 {
		if err := unix.Fchown(fd, uid, gid); err != nil {
			return err
		}
	}
	if !x.contentOnly {
		if err := setAttrs(fd, h); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, uint32(h.Mode)&0o7777); err != nil {
		return err
	}
	if x.contentOnly {
		return nil
	}
	return x.setTime(dir, base, h.ModTime)
}

// createFile makes a file, replacing any existing file.
func createFile(dir int, base string) (fd int, err error) {
	create := func() (int, error) {
		return unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	}
	fd, err = ignoringEINTR(create)
	if err != unix.EEXIST {
		return fd, err
	}
	if err := unlinkOld(dir, base); err != nil {
		return -1, err
	}
	return ignoringEINTR(create)
}

// makeLink makes a hard link to an earlier member, or to an existing file. Both must be
// below the directory.
func (x *extractor) makeLink(dir int, base string, h *tar.Header) error {
	target, err := memberName(h.Linkname)
	if err != nil {
		return err
	}
	up, name := path.Split(target)
	from, err := openBeneath(x.root, up, x.whole)
	if err != nil {
		return err
	}
	defer from.Close()
	var st, old unix.Stat_t
	if err := unix.Fstatat(int(from.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if unix.Fstatat(dir, base, &old, unix.AT_SYMLINK_NOFOLLOW) == nil && old.Ino == st.Ino && old.Dev == st.Dev {
		return nil // the link exists already
	}
	if err := unlinkOld(dir, base); err != nil {
		return err
	}
	return unix.Linkat(int(from.Fd()), name, dir, base, 0)
}

// unlinkOld removes a file that is in the way. A directory is not removed, and is an
// error.
func unlinkOld(dir int, base string) error {
	err := unix.Unlinkat(dir, base, 0)
	if err == unix.ENOENT {
		return nil
	}
	return err
}

func (x *extractor) ownerOf(h *tar.Header) (uid, gid int) {
	if x.keepOwner {
		return h.Uid, h.Gid
	}
	return x.own.uid, x.own.gid
}

func (x *extractor) chown(dir int, base string, h *tar.Header) error {
	uid, gid := x.ownerOf(h)
	if uid < 0 {
		return nil
	}
	return unix.Fchownat(dir, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
}

func (x *extractor) setTime(dir int, base string, mod time.Time) error {
	if mod.IsZero() {
		return nil
	}
	ts, err := unix.TimeToTimespec(mod)
	if err != nil {
		return cay.Errorf(cay.Invalid, "member %s has a time out of range", quote(base))
	}
	return unix.UtimesNanoAt(dir, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// setTimes sets the times of directories, which changed when files were made in them.
func (x *extractor) setTimes() error {
	for _, t := range x.times {
		d, err := openBeneath(x.root, t.name, x.whole)
		if err != nil {
			continue // gone, or a link by now
		}
		err = x.setTime(int(d.Fd()), ".", t.mod)
		d.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// setAttrs sets a member's user.* attributes. It leaves out other attributes, which have
// a meaning to the kernel.
func setAttrs(fd int, h *tar.Header) error {
	for record, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(record, paxAttr)
		if !ok || !allowedAttr(name) {
			continue
		}
		if err := unix.Fsetxattr(fd, name, []byte(value), 0); err != nil && !noAttrs(err) {
			return err
		}
	}
	return nil
}
