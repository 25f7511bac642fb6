package gvisor

import (
	"context"

	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// AwaitLoaded returns when all of a restored machine is loaded.
func AwaitLoaded(in machine.Instance) { <-in.(*instance).loaded }

// SaveHalf saves memory to fewer files than the sentry opens: to the sentry the writer
// seems to end between two files.
func SaveHalf(ctx context.Context, in machine.Instance, dir string) error {
	files, err := createFiles(dir, memoryFiles[:2])
	if err != nil {
		return err
	}
	defer files.Close()
	_, err = in.(*instance).save(ctx, machine.MemoryState, nil, files, nil, 0)
	return err
}
