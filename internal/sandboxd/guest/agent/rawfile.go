package agent

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// rawFile is the descriptor of a regular file. An os.File makes two or three system calls
// to find out whether it can be polled, each of which takes 10 to 50 µs in a sandbox.
type rawFile int

// Read implements io.Reader.
func (f rawFile) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := ignoringEINTR(func() (int, error) { return unix.Read(int(f), p) })
	switch {
	case err != nil:
		return 0, &os.PathError{Op: "read", Err: err}
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements io.Writer.
func (f rawFile) Write(p []byte) (written int, err error) {
	for written < len(p) {
		n, err := ignoringEINTR(func() (int, error) { return unix.Write(int(f), p[written:]) })
		if err != nil {
			return written, &os.PathError{Op: "write", Err: err}
		}
		if n == 0 {
			return written, &os.PathError{Op: "write", Err: io.ErrShortWrite}
		}
		written += n
	}
	return written, nil
}

// Close must be called once, because afterwards the descriptor may belong to another
// file.
func (f rawFile) Close() error { return unix.Close(int(f)) }
