// Command fusetest is a FUSE file system for tests of the sandbox's kernel. It leaves out
// each operation that Linux lets a server leave out, and answers names that do not exist
// with a negative entry:
//
//	fusetest DIRECTORY LOG
//
// It mounts itself, goes on in the background, keeps all files in its memory, and writes a
// line for each request to LOG. The answer to a request about a name that begins with
// "signal" comes after the caller has got SIGUSR1, of a name that begins with "mountinfo" after
// the server has read the list of mounts.
package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// Operations of the protocol, version 7.31.
const (
	opLookup   = 1
	opGetattr  = 3
	opSetattr  = 4
	opMknod    = 8
	opMkdir    = 9
	opUnlink   = 10
	opOpen     = 14
	opRead     = 15
	opWrite    = 16
	opStatfs   = 17
	opRelease  = 18
	opInit     = 26
	opReaddir  = 28
	headerIn   = 40
	headerOut  = 16
	maxWrite   = 128 << 10
	validity   = 3600 // seconds that the kernel may cache attributes
	bigWrites  = 1 << 5
	firstInode = 1000 // inode numbers are not node ids
)

type node struct {
	name    string
	mode    uint32
	content []byte
	mtime   uint64
	nsec    uint32
}

type server struct {
	device int
	log    io.Writer
	nodes  []*node // by node id
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) == 2 { // the server, with the device and the log of its parent
		s := &server{device: 3, log: os.NewFile(4, "log"), nodes: []*node{nil, {mode: unix.S_IFDIR | 0o777}}}
		return s.serve()
	}
	if len(os.Args) != 3 {
		return fmt.Errorf("usage: fusetest DIRECTORY LOG")
	}
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	log, err := os.Create(os.Args[2])
	if err != nil {
		return err
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device.Fd())
	if err := unix.Mount("fusetest", os.Args[1], "fuse.fusetest", 0, options); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	child := exec.Command("/proc/self/exe", "serve")
	child.ExtraFiles = []*os.File{device, log}
	return child.Start()
}

func (s *server) serve() error {
	buf := make([]byte, maxWrite+4096)
	for {
		n, err := unix.Read(s.device, buf)
		switch err {
		case nil:
		case unix.EINTR, unix.EAGAIN:
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(s.device), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
				return err
			}
			continue
		default:
			return err
		}
		req := buf[:n]
		op := binary.LittleEndian.Uint32(req[4:])
		unique := binary.LittleEndian.Uint64(req[8:])
		id := binary.LittleEndian.Uint64(req[16:])
		pid := binary.LittleEndian.Uint32(req[32:])
		out, errno, subject := s.answer(op, id, req[headerIn:])
		if strings.HasPrefix(subject, "signal") {
			s.signal(pid)
		}
		if strings.HasPrefix(subject, "mountinfo") {
			list, err := os.ReadFile("/proc/self/mountinfo")
			fmt.Fprintln(s.log, "mountinfo", bytes.Contains(list, []byte(" - fuse.fusetest ")), err)
		}
		head := make([]byte, headerOut, headerOut+len(out))
		binary.LittleEndian.PutUint32(head, uint32(headerOut+len(out)))
		binary.LittleEndian.PutUint32(head[4:], uint32(-int32(errno)))
		binary.LittleEndian.PutUint64(head[8:], unique)
		if _, err := unix.Write(s.device, append(head, out...)); err != nil && err != unix.EINVAL {
			return err // EINVAL: nobody waits for the answer any more
		}
	}
}

// signal interrupts the caller, and gives it the time to ask again, which it must not.
func (s *server) signal(pid uint32) {
	fmt.Fprintln(s.log, "signal", unix.Kill(int(pid), unix.SIGUSR1))
	wait := []unix.PollFd{{Fd: int32(s.device), Events: unix.POLLIN}}
	n, err := unix.Poll(wait, 200)
	for err == unix.EINTR { // a signal of Go's runtime
		n, err = unix.Poll(wait, 200)
	}
	fmt.Fprintln(s.log, "requests meanwhile", n, err)
}

// answer returns the answer to a request, and the name of the file that it is about.
func (s *server) answer(op uint32, id uint64, in []byte) (out []byte, errno unix.Errno, subject string) {
	if int(id) >= len(s.nodes) || op != opInit && s.nodes[id] == nil {
		return nil, unix.ESTALE, ""
	}
	n := s.nodes[id]
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(in[at:]) }
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(in[at:]) }
	name := func(at int) string { return string(bytes.TrimRight(in[at:], "\x00")) }
	switch op {
	case opInit:
		fmt.Fprintf(s.log, "init flags %#x\n", u32(12))
		return pack(uint32(7), uint32(31), uint32(maxWrite), uint32(bigWrites)&u32(12), uint16(12), uint16(9), uint32(maxWrite),
			uint32(1), uint16(0), uint16(0), make([]byte, 32)), 0, ""
	case opLookup:
		fmt.Fprintln(s.log, "lookup", name(0))
		return s.entry(s.find(name(0))), 0, ""
	case opGetattr:
		fmt.Fprintln(s.log, "getattr", n.name)
		return pack(uint64(validity), uint64(0), s.attr(id)), 0, ""
	case opSetattr:
		fmt.Fprintf(s.log, "setattr %s %#x\n", n.name, u32(0))
		s.set(n, u32, u64)
		return pack(uint64(validity), uint64(0), s.attr(id)), 0, ""
	case opMknod, opMkdir:
		at, mode := 16, u32(0)
		if op == opMkdir {
			at, mode = 8, u32(0)|unix.S_IFDIR
		}
		fmt.Fprintf(s.log, "make %s %#o\n", name(at), mode)
		if s.find(name(at)) != 0 {
			return nil, unix.EEXIST, ""
		}
		s.nodes = append(s.nodes, &node{name: name(at), mode: mode})
		return s.entry(uint64(len(s.nodes) - 1)), 0, name(at)
	case opUnlink:
		fmt.Fprintln(s.log, "unlink", name(0))
		if at := s.find(name(0)); at != 0 {
			s.nodes[at].name = ""
			return nil, 0, ""
		}
		return nil, unix.ENOENT, ""
	case opOpen:
		return pack(uint64(id), uint64(0)), 0, ""
	case opRead:
		from := min(u64(8), uint64(len(n.content)))
		return n.content[from:min(from+uint64(u32(16)), uint64(len(n.content)))], 0, n.name
	case opWrite:
		end := u64(8) + uint64(u32(16))
		fmt.Fprintln(s.log, "write", n.name, u32(16))
		n.content = append(n.content, make([]byte, max(int(end)-len(n.content), 0))...)
		copy(n.content[u64(8):end], in[40:])
		n.mtime++
		return pack(u32(16), uint32(0)), 0, ""
	case opReaddir:
		return s.list(u64(8), u32(16)), 0, ""
	case opStatfs:
		return make([]byte, 80), 0, ""
	case opRelease:
		return nil, 0, ""
	}
	fmt.Fprintln(s.log, "absent", op)
	return nil, unix.ENOSYS, ""
}

func (s *server) find(name string) uint64 {
	for id, n := range s.nodes {
		if n != nil && n.name == name && name != "" {
			return uint64(id)
		}
	}
	return 0
}

// set sets attributes: the size, the mode, and the time of the last change.
func (s *server) set(n *node, u32 func(int) uint32, u64 func(int) uint64) {
	valid := u32(0)
	if valid&(1<<0) != 0 {
		n.mode = n.mode&unix.S_IFMT | u32(68)&0o7777
	}
	if valid&(1<<3) != 0 {
		size := int(u64(16))
		n.content = append(n.content, make([]byte, max(size-len(n.content), 0))...)[:size]
	}
	if valid&(1<<5) != 0 {
		n.mtime, n.nsec = u64(40), u32(60)
	}
	if valid&(1<<8) != 0 { // now
		n.mtime, n.nsec = 1<<32, 0
	}
}

// entry returns the answer with a node; the node id 0 means that there is no such name.
func (s *server) entry(id uint64) []byte {
	if id == 0 {
		return make([]byte, 128)
	}
	return pack(id, uint64(0), uint64(0), uint64(validity), uint64(0), s.attr(id))
}

func (s *server) attr(id uint64) []byte {
	n := s.nodes[id]
	return pack(firstInode+id, uint64(len(n.content)), uint64(len(n.content)+511)/512, uint64(0), n.mtime, uint64(0),
		uint32(0), n.nsec, uint32(0), n.mode, uint32(1), uint32(0), uint32(0), uint32(0), uint32(4096), uint32(0))
}

// list returns entries of the root from an offset on.
func (s *server) list(offset uint64, size uint32) []byte {
	var out []byte
	for id := max(offset, 1) + 1; int(id) < len(s.nodes); id++ {
		n := s.nodes[id]
		if n.name == "" {
			continue
		}
		entry := pack(firstInode+id, id, uint32(len(n.name)), n.mode>>12, []byte(n.name))
		entry = append(entry, make([]byte, -len(entry)&7)...)
		if len(out)+len(entry) > int(size) {
			break
		}
		out = append(out, entry...)
	}
	return out
}

func pack(values ...any) []byte {
	var b bytes.Buffer
	for _, v := range values {
		binary.Write(&b, binary.LittleEndian, v) // to memory
	}
	return b.Bytes()
}
