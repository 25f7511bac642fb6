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

// Programs that run in sandboxes whose state is saved, each with data that make
// the state large.
var (
	//go:embed workload/disk.py
	diskProgram string
	//go:embed workload/memory.py
	memoryProgram string
)

// diskFile is the file with a sandbox's data.
const diskFile = "/tmp/bench-data"

// fill writes random bytes to a sandbox's disk, replaces the former data, and
// returns their checksum.
func (b *sandboxBox) fill(ctx context.Context, mib int) (sum string, err error) {
	return b.run(ctx, "python3", "-c", diskProgram, "write", diskFile, strconv.Itoa(mib))
}

// verify reads all data that fill has written.
func (b *sandboxBox) verify(ctx context.Context, sum string) error {
	got, err := b.run(ctx, "python3", "-c", diskProgram, "read", diskFile)
	if err == nil && got != sum {
		err = fmt.Errorf("sandbox %s has other data than were written: checksum %q, want %q", b.id, got, sum)
	}
	return err
}

// partner is a program in a sandbox that answers each line with a line. A copy of
// the struct serves a copy of the sandbox.
type partner struct {
	c       *sandbox.Client
	command string
	cursor  int64 // of the next answer
}

// converse starts a partner.
func (b *sandboxBox) converse(ctx context.Context, argv ...string) (*partner, error) {
	cmd, err := b.c.Start(ctx, b.id, sandbox.CommandParams{Argv: argv, Stdin: true})
	if err != nil {
		return nil, err
	}
	return &partner{c: b.c, command: cmd.ID}, nil
}

// ask returns the partner's answer in the named sandbox to an empty line.
func (p *partner) ask(ctx context.Context, id string) (string, error) {
	if err := p.prompt(ctx, id); err != nil {
		return "", err
	}
	return p.answer(ctx, id)
}

// prompt has the partner answer.
func (p *partner) prompt(ctx context.Context, id string) error {
	return p.c.WriteStdin(ctx, id, p.command, strings.NewReader("\n"), false)
}

// listen opens a stream of answers, starting with the next.
func (p *partner) listen(ctx context.Context, id string) (sandbox.Output, error) {
	return p.c.Output(ctx, id, p.command, sandbox.OutputParams{Cursor: p.cursor, Follow: true})
}

// answer reads the partner's next line, with its end.
func (p *partner) answer(ctx context.Context, id string) (string, error) {
	out, err := p.listen(ctx, id)
	if err != nil {
		return "", err
	}
	defer out.Close() // it was only read
	return p.read(out)
}

// read is answer for an open stream.
func (p *partner) read(out sandbox.Output) (string, error) {
	var line, stderr []byte
	for !bytes.HasSuffix(line, []byte("\n")) {
		e, err := out.Next()
		if err != nil {
			return "", err
		}
		if e.Exit != nil {
			return "", fmt.Errorf("a program that should answer ended with status %d: %s", e.Exit.Code, lastLine(stderr))
		}
		if p.cursor = e.Cursor + int64(len(e.Data)); e.Stream == sandbox.Stdout {
			line = append(line, e.Data...)
		} else {
			stderr = append(stderr, e.Data...)
		}
	}
	return string(line), nil
}

// holder is a program that holds random bytes in memory, in a sandbox and in all
// copies made of the sandbox while it runs.
type holder struct {
	partner
	sum string // of the bytes, with a line's end
}

// hold starts a holder, and returns when it holds its memory.
func (b *sandboxBox) hold(ctx context.Context, mib int) (*holder, error) {
	p, err := b.converse(ctx, "python3", "-c", memoryProgram, strconv.Itoa(mib))
	if err != nil {
		return nil, err
	}
	h := &holder{partner: *p}
	h.sum, err = h.answer(ctx, b.id)
	return h, err
}

// check lets the program in the named sandbox read all of its bytes.
func (h *holder) check(ctx context.Context, id string) error {
	got, err := h.ask(ctx, id)
	if err == nil && got != h.sum {
		err = fmt.Errorf("the program in %s has other data than before: checksum %q, want %q", id, got, h.sum)
	}
	return err
}
