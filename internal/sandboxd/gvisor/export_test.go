package gvisor

import (
	"context"

	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// AwaitLoaded returns when all of a restored machine is loaded.
func AwaitLoaded(in machine.Instance) { <-in.(*instance).loaded }

// SaveHalf is a memory save whose writer ends between the files that the sentry
// opens, as seen by the sentry: it has no more of them.
func SaveHalf(ctx context.Context, in machine.Instance, dir string) error {
	files, err := createFiles(dir, memoryFiles[:2])
	if err != nil {
		return err
	}
	defer files.Close()
	_, err = in.(*instance).save(ctx, machine.MemoryState, nil, files, 0)
	return err
}
