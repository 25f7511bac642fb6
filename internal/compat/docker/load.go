package docker

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path"

	"github.com/cayhq/cay"
)

// Bounds of an archive of images, in bytes, and of the list in it that names them.
const (
	maxLoad  = 16 << 30
	maxNames = 4 << 20
)

// handleLoad imports the images of an archive that "docker save" has written, each by
// its names, and answers with a line for each name.
func (s *Server) handleLoad(w http.ResponseWriter, r *http.Request) error {
	if err := s.beginBuild(); err != nil {
		return err
	}
	defer s.endBuild()
	f, err := os.CreateTemp("", "cay-load")
	if err != nil {
		return cay.Errorf(cay.Unavailable, "make a file for the archive: %w", err)
	}
	defer os.Remove(f.Name()) // the file is of no more use
	defer f.Close()           // it is removed
	if _, err := io.Copy(f, http.MaxBytesReader(w, r.Body, maxLoad)); err != nil {
		return badArchive(err)
	}
	images, err := savedImages(f)
	if err != nil {
		return err
	}
	lines := &progress{w: w}
	for _, names := range images {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return lines.fail(err)
		}
		img, err := s.cfg.Images.Import(r.Context(), names[0], f, nil)
		if err != nil {
			return lines.fail(err)
		}
		for i, name := range names {
			if i > 0 {
				if _, err := s.cfg.Images.Tag(r.Context(), img.Digest, name); err != nil {
					return lines.fail(err)
				}
			}
			_ = lines.line(map[string]string{"stream": "Loaded image: " + name + "\n"}) // remembered in gone
		}
	}
	return nil
}

// savedImages returns the names of the images in an archive, one name at least of each.
func savedImages(f io.ReadSeeker) ([][]string, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	buffered := bufio.NewReader(f)
	body := io.Reader(buffered)
	if magic, _ := buffered.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) { // shorter archives are not compressed
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, badArchive(err)
		}
		body = io.LimitReader(z, maxLoad)
	}
	for archive := tar.NewReader(body); ; {
		h, err := archive.Next()
		switch {
		case err == io.EOF:
			return nil, failf(http.StatusBadRequest, "the archive has no manifest.json, which \"docker save\" writes; \"cay image import\" reads other archives")
		case err != nil:
			return nil, badArchive(err)
		case path.Clean(h.Name) != "manifest.json":
			continue
		}
		var list []struct{ RepoTags []string }
		if err := json.NewDecoder(io.LimitReader(archive, maxNames)).Decode(&list); err != nil {
			return nil, badArchive(err)
		}
		var images [][]string
		for _, img := range list {
			if len(img.RepoTags) == 0 {
				return nil, failf(http.StatusBadRequest, "the archive has an image without a name, which cay does not keep; save it by its name")
			}
			images = append(images, img.RepoTags)
		}
		return images, nil
	}
}

func badArchive(err error) error {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return failf(http.StatusRequestEntityTooLarge, "the archive has more than %d bytes", large.Limit)
	}
	return failf(http.StatusBadRequest, "the archive of images cannot be read: %v", err)
}
