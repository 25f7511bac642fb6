package agent

import (
	"context"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
)

func (s *Server) handleGlob(w http.ResponseWriter, r *http.Request) error {
	pattern := r.URL.Query().Get("pattern")
	if pattern == "" {
		return cay.Errorf(cay.Invalid, "pattern is empty")
	}
	_, shown, err := s.absolute(pattern)
	if err != nil {
		return err
	}
	elems, err := parseGlob(shown)
	if err != nil {
		return err
	}
	g := &globber{ctx: r.Context(), root: strings.TrimSuffix(s.cfg.Root, "/"), found: map[string]struct{}{}}
	if err := g.walk("", elems); err != nil {
		return err
	}
	paths := make([][]byte, 0, len(g.found))
	for p := range g.found {
		paths = append(paths, []byte(p))
	}
	slices.SortFunc(paths, slices.Compare)
	return writeJSON(w, guest.GlobResult{Paths: paths})
}

const (
	// maxAlternatives bounds the product of the alternatives in an element's braces,
	// which is the number of attempts to match one name.
	maxAlternatives = 1024
	// maxGlobDepth bounds how deep ** looks.
	maxGlobDepth = 256
)

// parseGlob splits a pattern into elements; each element matches a single name, or is **.
// Errors: invalid.
func parseGlob(pattern string) ([]string, error) {
	var elems []string
	for elem := range strings.SplitSeq(strings.Trim(pattern, "/"), "/") {
		if elem == "**" && len(elems) > 0 && elems[len(elems)-1] == "**" {
			continue // two stars match the same as one
		}
		if !doublestar.ValidatePattern(elem) {
			return nil, cay.Errorf(cay.Invalid, "pattern %s: the element %s is malformed", quote(pattern), quote(elem)).
				WithHint("braces and brackets must be closed within an element; quote special characters by a backslash")
		}
		if alternatives(elem) > maxAlternatives {
			return nil, cay.Errorf(cay.Invalid, "pattern %s: the braces of %s have more than %d combinations", quote(pattern), quote(elem), maxAlternatives)
		}
		elems = append(elems, elem)
	}
	return elems, nil
}

// alternatives returns an upper bound of the number of brace-free patterns that a pattern
// stands for.
func alternatives(pattern string) int {
	n, commas, depth := 1, 0, 0
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '\\':
			i++
		case '{':
			depth++
		case ',':
			if depth > 0 {
				commas++
			}
		case '}':
			if depth--; depth == 0 {
				n *= commas + 1
				commas = 0
			}
		}
		if n > maxAlternatives || commas > maxAlternatives {
			return maxAlternatives + 1
		}
	}
	return n
}

type globber struct {
	ctx   context.Context // of the request
	root  string
	found map[string]struct{}
	bytes int
}

// walk finds the paths below a directory that match elems; dir is "" for the root.
// Directories that cannot be read have no matches.
func (g *globber) walk(dir string, elems []string) error {
	if err := g.ctx.Err(); err != nil {
		return &begunError{err}
	}
	elem := elems[0]
	switch {
	case elem == "**":
		return g.walkDeep(dir, elems[1:], 0)
	case !strings.ContainsAny(elem, `*?[{\`):
		next := dir + "/" + elem
		var st unix.Stat_t
		if unix.Lstat(g.root+next, &st) != nil {
			return nil
		}
		return g.step(next, elems[1:])
	}
	return g.each(dir, func(name string, _ bool) error {
		// The pattern was validated, so there is no error.
		if ok, err := doublestar.Match(elem, name); err != nil || !ok {
			return nil
		}
		return g.step(dir+"/"+name, elems[1:])
	})
}

// walkDeep finds the paths that match elems in a directory or in any directory below it.
func (g *globber) walkDeep(dir string, elems []string, depth int) error {
	if len(elems) > 0 {
		if err := g.walk(dir, elems); err != nil {
			return err
		}
	}
	if depth >= maxGlobDepth {
		return nil
	}
	return g.each(dir, func(name string, isDir bool) error {
		next := dir + "/" + name
		if len(elems) == 0 {
			if err := g.add(next); err != nil {
				return err
			}
		}
		if !isDir {
			return nil
		}
		return g.walkDeep(next, elems, depth+1)
	})
}

func (g *globber) step(p string, rest []string) error {
	if len(rest) == 0 {
		return g.add(p)
	}
	return g.walk(p, rest)
}

func (g *globber) add(p string) error {
	if _, ok := g.found[p]; ok {
		return nil
	}
	g.bytes += len(p)
	if len(g.found) >= guest.MaxGlob || g.bytes > guest.MaxGlobBytes {
		return cay.Errorf(cay.TooLarge, "the pattern matches more than %d paths", len(g.found)).
			WithHint("narrow the pattern, or list directories page by page")
	}
	g.found[p] = struct{}{}
	return nil
}

// each calls do for each name in a directory. isDir reports whether the name is a
// directory.
func (g *globber) each(dir string, do func(name string, isDir bool) error) error {
	d, err := openDir(unix.AT_FDCWD, g.root+dir+"/", true)
	if err != nil {
		return nil
	}
	defer d.Close()
	for {
		batch, err := d.ReadDir(512)
		for _, e := range batch {
			if err := g.ctx.Err(); err != nil {
				return &begunError{err}
			}
			if err := do(e.Name(), e.IsDir()); err != nil {
				return err
			}
		}
		if err == io.EOF || len(batch) == 0 {
			return nil
		}
		if err != nil {
			return fileError("list", path.Clean(dir+"/"), err)
		}
	}
}
