package rootfs

import (
	"bytes"
	"io"
	"os"
)

// sparseFile appends to a file in large blocks and leaves holes where a whole
// block is zero.
type sparseFile struct {
	f    *os.File
	buf  []byte
	size int64 // bytes written, buffered bytes included
}

const sparseBlock = 64 << 10

var zeros [sparseBlock]byte

func newSparseFile(f *os.File) *sparseFile {
	return &sparseFile{f: f, buf: make([]byte, 0, sparseBlock)}
}

func (s *sparseFile) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		k := copy(s.buf[len(s.buf):cap(s.buf)], p)
		s.buf = s.buf[:len(s.buf)+k]
		s.size += int64(k)
		p = p[k:]
		if len(s.buf) == cap(s.buf) {
			if err := s.writeBlock(); err != nil {
				return n - len(p), err
			}
		}
	}
	return n, nil
}

// ReadFrom reads into the buffer itself, sparing io.Copy one.
func (s *sparseFile) ReadFrom(r io.Reader) (int64, error) {
	var total int64
	for {
		n, err := r.Read(s.buf[len(s.buf):cap(s.buf)])
		s.buf = s.buf[:len(s.buf)+n]
		s.size += int64(n)
		total += int64(n)
		if len(s.buf) == cap(s.buf) {
			if err := s.writeBlock(); err != nil {
				return total, err
			}
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// Flush makes all that was written readable from the file.
func (s *sparseFile) Flush() error {
	if len(s.buf) > 0 {
		if _, err := s.f.WriteAt(s.buf, s.size-int64(len(s.buf))); err != nil {
			return err
		}
	}
	// The end may be a hole.
	return s.f.Truncate(s.size)
}

func (s *sparseFile) writeBlock() error {
	if !bytes.Equal(s.buf, zeros[:]) {
		if _, err := s.f.WriteAt(s.buf, s.size-int64(len(s.buf))); err != nil {
			return err
		}
	}
	s.buf = s.buf[:0]
	return nil
}
