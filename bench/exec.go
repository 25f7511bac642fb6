package bench

import (
	"bytes"
	"context"
	"debug/elf"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay/sandbox"
)

// spawnProgram starts programs from inside a sandbox.
//
//go:embed workload/spawn.py
var spawnProgram string

// staticPath is where boxes have the program of exec_static.
const staticPath = "/tmp/bench-static"

// execRows are the rows of running programs: the time from the request to the exit;
// the time that the same program takes if a program in the sandbox starts it, which is
// the kernel's part; and the difference.
func execRows(name string, budget float64) []Row {
	return []Row{{name, "ms", budget}, {name + ".inside", "ms", 0}, {name + ".added", "ms", 2.5}, {name + ".to_inside", "x", 0}}
}

// spawn measures a program from start to exit, after prepare has prepared the box.
func spawn(program string, prepare func(ctx context.Context, b box) error) opener {
	return func(ctx context.Context, r runner, _ int) (*Session, error) {
		b, err := r.create(ctx)
		if err != nil {
			return nil, err
		}
		err = prepare(ctx, b)
		var inside *partner
		// A single stream of output serves all samples: ending a stream is work, which
		// would count in the next sample.
		var answers sandbox.Output
		ours, ok := b.(*sandboxBox)
		if ok && err == nil {
			inside, err = ours.converse(ctx, "python3", "-c", spawnProgram, program)
		}
		if ok && err == nil {
			answers, err = inside.listen(ctx, ours.id)
		}
		if err != nil {
			removeBox(ctx, b, &err)
			return nil, err
		}
		end := func(ctx context.Context) error {
			if answers != nil {
				answers.Close() // it was only read
			}
			return b.remove(ctx)
		}
		return &Session{Close: end, Sample: func(ctx context.Context) ([]float64, error) {
			begun := time.Now()
			if _, err := b.run(ctx, program); err != nil {
				return nil, err
			}
			took := ms(time.Since(begun))
			if _, native := b.(*nativeBox); native {
				return []float64{took, took}, nil
			}
			if !ok {
				return []float64{took}, nil
			}
			if err := inside.prompt(ctx, ours.id); err != nil {
				return nil, err
			}
			answer, err := inside.read(answers)
			if err != nil {
				return nil, err
			}
			within, err := strconv.ParseFloat(strings.TrimSpace(answer), 64)
			if err != nil {
				return nil, fmt.Errorf("the program that starts programs wrote %q", answer)
			}
			return []float64{took, within, took - within, took / within}, nil
		}}, nil
	}
}

func asItIs(context.Context, box) error { return nil }

// putStatic writes a program of three instructions to staticPath.
func putStatic(ctx context.Context, b box) error {
	program, err := staticProgram()
	if err != nil {
		return err
	}
	f, ok := b.(files)
	if !ok {
		return errors.New("it has no API for files")
	}
	if err := f.write(ctx, staticPath, program); err != nil {
		return err
	}
	_, err = b.run(ctx, "chmod", "755", staticPath)
	return err
}

// exits are programs that end at once: exit(0) of Linux.
var exits = map[string]struct {
	machine elf.Machine
	code    []byte
}{
	"amd64": {elf.EM_X86_64, []byte{
		0x31, 0xff, // xor edi, edi
		0xb8, 0x3c, 0, 0, 0, // mov eax, 60
		0x0f, 0x05, // syscall
	}},
	"arm64": {elf.EM_AARCH64, []byte{
		0x00, 0x00, 0x80, 0xd2, // mov x0, #0
		0xa8, 0x0b, 0x80, 0xd2, // mov x8, #93
		0x01, 0x00, 0x00, 0xd4, // svc #0
	}},
}

// staticProgram returns an executable file without libraries.
func staticProgram() ([]byte, error) {
	exit, ok := exits[runtime.GOARCH]
	if !ok {
		return nil, notMeasured("no program for " + runtime.GOARCH)
	}
	const base = 0x400000
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(exit.machine), Version: uint32(elf.EV_CURRENT),
	}
	var load elf.Prog64
	header.Ehsize, header.Phentsize, header.Phnum = uint16(binary.Size(header)), uint16(binary.Size(load)), 1
	header.Phoff = uint64(header.Ehsize)
	start := uint64(header.Ehsize + header.Phentsize)
	header.Entry = base + start
	size := start + uint64(len(exit.code))
	load = elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base,
		Filesz: size, Memsz: size, Align: 0x1000,
	}
	var file bytes.Buffer
	for _, part := range []any{header, load, exit.code} {
		if err := binary.Write(&file, binary.LittleEndian, part); err != nil {
			return nil, err
		}
	}
	return file.Bytes(), nil
}
