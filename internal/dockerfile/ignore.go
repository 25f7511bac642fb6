package dockerfile

import (
	"bytes"
	"io"
	"os"
	"path/filepath"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/cayhq/cay"
)

// ignore decides which paths of the context do not exist for COPY.
type ignore struct {
	matcher *patternmatcher.PatternMatcher
}

// newIgnore compiles the lines of a .dockerignore.
func newIgnore(lines []string) (*ignore, error) {
	m, err := patternmatcher.New(lines)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, ".dockerignore: %w", err)
	}
	return &ignore{m}, nil
}

// ignored is template.Template.Ignored.
func (i *ignore) ignored(path string) (drop, all bool) {
	drop, err := i.matcher.MatchesOrParentMatches(path)
	// newIgnore has refused patterns that cannot be matched.
	return drop && err == nil, drop && !i.matcher.Exclusions()
}

// maxIgnore is the most bytes of a .dockerignore.
const maxIgnore = 1 << 20

// ReadIgnore reads the patterns of files that are left out of a context:
// FILE.dockerignore if it exists, else the .dockerignore in the context's directory.
// file is empty if the Dockerfile came from elsewhere. Errors: invalid.
func ReadIgnore(context, file string) ([]string, error) {
	names := []string{filepath.Join(context, ".dockerignore")}
	if file != "" {
		names = append([]string{file + ".dockerignore"}, names...)
	}
	for _, name := range names {
		f, err := os.Open(name)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, cay.Errorf(cay.Invalid, "cannot read which files to ignore: %w", err)
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, maxIgnore+1))
		if err != nil {
			return nil, cay.Errorf(cay.Invalid, "cannot read which files to ignore: %w", err)
		}
		if len(b) > maxIgnore {
			return nil, cay.Errorf(cay.TooLarge, "%s has more than %d bytes", name, maxIgnore)
		}
		lines, err := ignorefile.ReadAll(bytes.NewReader(b))
		if err != nil {
			return nil, cay.Errorf(cay.Invalid, "%s: %w", name, err)
		}
		return lines, nil
	}
	return nil, nil
}
