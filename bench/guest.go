package bench

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/cayhq/cay/sandbox"
)

// Programs that run in sandboxes whose state is saved, each with the data that
// make it large.
var (
	//go:embed workload/disk.py
	diskProgram string
	//go:embed workload/memory.py
	memoryProgram string
)

// diskFile is where a sandbox has its data.
const diskFile = "/tmp/bench-data"

// fill writes random bytes to a sandbox's disk, in place of those it had, and
// returns their checksum.
func (b *sandboxBox) fill(ctx context.Context, mib int) (sum string, err error) {
	return b.run(ctx, "python3", "-c", diskProgram, "write", diskFile, strconv.Itoa(mib))
}

// verify reads all that fill has written.
func (b *sandboxBox) verify(ctx context.Context, sum string) error {
	got, err := b.run(ctx, "python3", "-c", diskProgram, "read", diskFile)
	if err == nil && got != sum {
		err = fmt.Errorf("sandbox %s has other data than were written: checksum %q, want %q", b.id, got, sum)
	}
	return err
}

// holder is a program that holds random bytes in memory, in a sandbox and in all
// that are made of it while it runs. A copy of the struct serves a copy of the
// sandbox.
type holder struct {
	c       *sandbox.Client
	command string
	sum     string // of the bytes, with a line's end
	cursor  int64  // of the next answer
}

// hold starts a holder, and returns when it has its bytes.
func (b *sandboxBox) hold(ctx context.Context, mib int) (*holder, error) {
	cmd, err := b.c.Start(ctx, b.id, sandbox.CommandParams{
		Argv: []string{"python3", "-c", memoryProgram, strconv.Itoa(mib)}, Stdin: true,
	})
	if err != nil {
		return nil, err
	}
	h := &holder{c: b.c, command: cmd.ID}
	h.sum, err = h.answer(ctx, b.id)
	return h, err
}

// ask has the program in the named sandbox go through all of its bytes.
func (h *holder) ask(ctx context.Context, id string) error {
	if err := h.c.WriteStdin(ctx, id, h.command, strings.NewReader("\n"), false); err != nil {
		return err
	}
	got, err := h.answer(ctx, id)
	if err == nil && got != h.sum {
		err = fmt.Errorf("the program in %s has other data than before: checksum %q, want %q", id, got, h.sum)
	}
	return err
}

// answer reads the program's next line.
func (h *holder) answer(ctx context.Context, id string) (string, error) {
	out, err := h.c.Output(ctx, id, h.command, sandbox.OutputParams{Cursor: h.cursor, Follow: true})
	if err != nil {
		return "", err
	}
	defer out.Close() // it was only read
	var line, stderr []byte
	for !bytes.HasSuffix(line, []byte("\n")) {
		e, err := out.Next()
		if err != nil {
			return "", err
		}
		if e.Exit != nil {
			return "", fmt.Errorf("the program that holds data ended with status %d: %s", e.Exit.Code, lastLine(stderr))
		}
		if h.cursor = e.Cursor + int64(len(e.Data)); e.Stream == sandbox.Stdout {
			line = append(line, e.Data...)
		} else {
			stderr = append(stderr, e.Data...)
		}
	}
	return string(line), nil
}
