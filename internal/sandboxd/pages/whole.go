package pages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// Whole returns the manifest that the state in dir would have with its pages in one file,
// WholeName, and the content of that file, which the caller closes. It does not check the
// sums of the parts. Errors: those of machine.ReadState; others if the map is damaged.
func Whole(ctx context.Context, dir string) ([]byte, *Reader, error) {
	s, err := machine.ReadState(dir)
	if err != nil {
		return nil, nil, err
	}
	r, err := Open(dir)
	if err != nil {
		return nil, nil, err
	}
	whole, err := machine.SumReader(ctx, WholeName, r, r.Size())
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	s.Files = append(slices.DeleteFunc(s.Files, func(f machine.StateFile) bool { return f.Name == MapName || IsPart(f.Name) }), whole)
	s.Format = 1
	data, err := json.Marshal(s)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("encode manifest: %w", err), r.Close())
	}
	return data, r, nil
}
