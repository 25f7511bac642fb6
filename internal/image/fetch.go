package image

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/flock"
)

// blobDigest names the content of a download.
type blobDigest struct{ algorithm, hex string }

func (d blobDigest) String() string { return d.algorithm + ":" + d.hex }

func (d blobDigest) hash() (hash.Hash, error) {
	switch d.algorithm {
	case "sha256":
		return sha256.New(), nil
	case "sha512":
		return sha512.New(), nil
	}
	return nil, cay.Errorf(cay.NotSupported, "checksums of the kind %q are not supported", d.algorithm)
}

// download is something to fetch by HTTP.
type download struct {
	url      string
	client   *http.Client
	digest   blobDigest
	size     int64 // 0 if not known
	progress func(current, total int64)
}

const (
	fetchTries   = 5
	fetchStall   = time.Minute // without a byte, before a connection counts as dead; see errStalled
	fetchMaximum = 1 << 30     // bytes, of a download of unknown size
)

func (s *Store) httpClient() *http.Client { return &http.Client{Transport: s.opts.Transport} }

// blobPath returns the path of a download of s's owner. Owners do not share downloads:
// knowing a digest does not prove that the owner has the content.
func (s *Store) blobPath(d blobDigest) string {
	name := d.algorithm + "-" + d.hex
	if s.owned() {
		name = s.owner.ID + "." + name
	}
	return filepath.Join(s.dir, "blobs", name)
}

// fetch returns the verified content of a download, from the blob directory if it is
// there. fetch resumes a partial download of an earlier attempt, by any process, if the
// server supports ranges. The file holds a lock against removal; give it to dropBlob.
// Errors: unavailable, invalid (the content does not match its digest or size),
// too_large, no_space.
func (s *Store) fetch(ctx context.Context, d download) (*os.File, error) {
	path := s.blobPath(d.digest)
	if f, err := openBlobFile(path, d); !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	unlock, err := s.lockKey(ctx, s.key("blob "+d.digest.String()), nil)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if f, err := openBlobFile(path, d); !errors.Is(err, fs.ErrNotExist) {
		return f, err // another fetch was faster
	}
	f, err := openLocked(path+".partial", os.O_RDWR|os.O_CREATE, unix.LOCK_EX)
	if err != nil {
		return nil, diskError(err)
	}
	if err := s.fill(ctx, f, d); err != nil {
		if cay.CodeOf(err) == cay.NoSpace {
			s.removeBlob(f.Name())
		}
		f.Close()
		return nil, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		f.Close()
		return nil, err
	}
	if err := flock.Lock(f, unix.LOCK_SH); err != nil {
		f.Close()
		return nil, err
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, err
}

// openBlobFile opens a verified blob and locks it against removal.
func openBlobFile(path string, d download) (*os.File, error) {
	f, err := openLocked(path, os.O_RDONLY, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && d.size > 0 && info.Size() != d.size {
		err = wrongSize(d, info.Size())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func wrongSize(d download, got int64) error {
	return cay.Errorf(cay.Invalid, "%s has %d bytes and not the %d it should", d.url, got, d.size)
}

// fill completes f and verifies it.
func (s *Store) fill(ctx context.Context, f *os.File, d download) error {
	sum, err := d.digest.hash()
	if err != nil {
		return err
	}
	have, err := io.Copy(sum, f)
	if err != nil {
		return err
	}
	fresh := have == 0
	restart := func() error {
		sum.Reset()
		have, fresh = 0, true
		_, err := f.Seek(0, io.SeekStart)
		return errors.Join(err, f.Truncate(0))
	}
	attempt := func() (struct{}, error) {
		err := s.fillOnce(ctx, f, sum, &have, d, restart)
		switch {
		case err != nil:
			return struct{}{}, err
		case hex.EncodeToString(sum.Sum(nil)) == d.digest.hex:
			return struct{}{}, nil
		}
		wrong := cay.Errorf(cay.Invalid, "%s does not have the content it should: its checksum is not %s", d.url, d.digest)
		if fresh {
			return struct{}{}, backoff.Permanent(errors.Join(wrong, restart()))
		}
		// The part that an earlier process left may be the damaged part.
		return struct{}{}, errors.Join(wrong, restart())
	}
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = s.retryAfter
	_, err = backoff.Retry(ctx, attempt, backoff.WithBackOff(wait), backoff.WithMaxTries(fetchTries), backoff.WithMaxElapsedTime(0),
		backoff.WithNotify(func(err error, wait time.Duration) {
			s.log.DebugContext(ctx, "download failed, trying again", "url", d.url, "wait", wait, "error", err)
		}))
	if err = diskError(err); err == nil || ctx.Err() != nil {
		return err
	}
	var coded *cay.Error
	if errors.As(err, &coded) {
		return err
	}
	s.log.WarnContext(ctx, "a download failed", "url", d.url, "error", err)
	return cay.Errorf(cay.Unavailable, "download %s: %w", d.url, outcomeOf(err)).
		WithHint("check the network of this machine; trying again continues where this attempt ended")
}

// fillOnce requests the missing part once. Errors that a retry cannot fix are permanent.
func (s *Store) fillOnce(ctx context.Context, f io.Writer, sum hash.Hash, have *int64, d download, restart func() error) error {
	if d.size > 0 && *have >= d.size {
		if *have > d.size {
			return restart()
		}
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(fetchStall, func() { cancel(errStalled) })
	defer stalled.Stop()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url, nil)
	if err != nil {
		return backoff.Permanent(err)
	}
	// This keeps the transport from decompressing content that is itself compressed.
	req.Header.Set("Accept-Encoding", "identity")
	if *have > 0 {
		req.Header.Set("Range", rangeHeader(*have, d.size))
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return stallCause(ctx, err)
	}
	defer resp.Body.Close()
	if err := checkStatus(resp); err != nil {
		if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
			return errors.Join(err, restart())
		}
		return err
	}
	if resp.StatusCode != http.StatusPartialContent && *have > 0 {
		if err := restart(); err != nil { // it does not do ranges
			return backoff.Permanent(err)
		}
	}
	total := d.size
	if total == 0 && resp.ContentLength > 0 {
		total = *have + resp.ContentLength
	}
	limit := d.size
	if limit == 0 {
		limit = fetchMaximum
	}
	buf := make([]byte, 128<<10)
	for {
		n, err := resp.Body.Read(buf)
		stalled.Reset(fetchStall)
		if *have+int64(n) > limit {
			if d.size > 0 {
				return backoff.Permanent(errors.Join(
					cay.Errorf(cay.Invalid, "%s has more than the %d bytes it should", d.url, d.size), restart()))
			}
			return backoff.Permanent(cay.Errorf(cay.TooLarge, "%s has more than %d bytes", d.url, limit))
		}
		if _, err := f.Write(buf[:n]); err != nil {
			return backoff.Permanent(err)
		}
		sum.Write(buf[:n])
		*have += int64(n)
		if n > 0 && d.progress != nil {
			d.progress(*have, total)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return stallCause(ctx, err)
		}
	}
	if d.size > 0 && *have < d.size {
		return wrongSize(d, *have)
	}
	return nil
}

// rangeHeader requests all bytes from from on. Some servers require an end.
func rangeHeader(from, size int64) string {
	if size > 0 {
		return fmt.Sprintf("bytes=%d-%d", from, size-1)
	}
	return fmt.Sprintf("bytes=%d-", from)
}

// stallCause says why a request was cut if it was us.
func stallCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// statusText returns a status in the usual form: "404 Not Found".
func statusText(code int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
}

func checkStatus(resp *http.Response) error {
	switch c := resp.StatusCode; {
	case c == http.StatusOK || c == http.StatusPartialContent:
		return nil
	case c >= 500 || c == http.StatusTooManyRequests || c == http.StatusRequestTimeout,
		c == http.StatusRequestedRangeNotSatisfiable:
		return statusError(statusText(c))
	default:
		return backoff.Permanent(statusError(statusText(c)))
	}
}

// dropBlob closes a file that fetch returned and removes it if it is not in use
// elsewhere: blobs serve work in progress only.
func (s *Store) dropBlob(f *os.File) {
	defer f.Close()
	if err := flock.Lock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return // the other user removes it
	}
	s.removeBlob(strings.TrimSuffix(f.Name(), ".partial"))
}

// dropPartial removes the partial file of an unfinished fetch, unless another fetch is
// working on it.
func (s *Store) dropPartial(d blobDigest) {
	path := s.blobPath(d) + ".partial"
	f, err := openLocked(path, os.O_RDONLY, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return // missing, or in use
	}
	defer f.Close()
	s.removeBlob(path)
}

func (s *Store) removeBlob(path string) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("cannot remove a download that is no longer needed", "file", path, "error", err)
	}
}
