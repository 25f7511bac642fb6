package faults

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// world records the external effects of programs: a service that writes every call to a
// file before it answers, and that survives all crashes.
type world struct {
	mu   sync.Mutex
	file *os.File
	path string
}

func openWorld(path string) (*world, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	return &world{file: f, path: path}, nil
}

// do is a call with an idempotency key. A line is one write, which a killed process has
// made completely or not at all.
func (w *world) do(key, path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := fmt.Fprintf(w.file, "%s %s\n", key, path)
	return err
}

// calls returns how often the effect at a path was requested so far.
func (w *world) calls(path string) int {
	all, err := w.read()
	if err != nil {
		return 0
	}
	n := 0
	for _, c := range all {
		if c.path == path {
			n++
		}
	}
	return n
}

type call struct{ key, path string }

func (w *world) read() ([]call, error) {
	f, err := os.Open(w.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []call
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, path, ok := strings.Cut(lines.Text(), " ")
		if !ok {
			return nil, fmt.Errorf("half a call: %q", lines.Text())
		}
		all = append(all, call{key, path})
	}
	return all, nil
}

// check returns an error if the effects of programs are not those at the paths of want,
// each once per idempotency key.
func (w *world) check(want []string) error {
	calls, err := w.read()
	if err != nil {
		return err
	}
	var errs []error
	byPath, byKey := map[string]string{}, map[string]string{}
	for _, c := range calls {
		if key, ok := byPath[c.path]; ok && key != c.key {
			errs = append(errs, fmt.Errorf("effect %s happened by key %s and by key %s", c.path, key, c.key))
		}
		if path, ok := byKey[c.key]; ok && path != c.path {
			errs = append(errs, fmt.Errorf("key %s was used for %s and for %s", c.key, path, c.path))
		}
		byPath[c.path], byKey[c.key] = c.key, c.path
	}
	for _, path := range want {
		if _, ok := byPath[path]; !ok {
			errs = append(errs, fmt.Errorf("effect %s did not happen", path))
		}
	}
	for path := range byPath {
		if !slices.Contains(want, path) {
			errs = append(errs, fmt.Errorf("effect %s happened, and should not have", path))
		}
	}
	return errors.Join(errs...)
}

func (w *world) close() error { return w.file.Close() }
