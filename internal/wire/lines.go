package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// MaxLine is the longest line that a LineReader accepts, in bytes. Lines of cay are shorter:
// output comes in chunks of 32 KiB, and at most 4 KiB of a command's arguments are sent.
const MaxLine = 8 << 20

// LineReader reads newline-delimited JSON, skipping the blank lines that are
// heartbeats.
type LineReader struct {
	r    *bufio.Reader
	long []byte // a line that does not fit r's buffer
}

// NewLineReader returns a LineReader of r.
func NewLineReader(r io.Reader) *LineReader {
	return &LineReader{r: bufio.NewReaderSize(r, 64<<10)}
}

// Next returns the next line that is not blank, valid until the next call.
// io.EOF means the stream ended after a whole line; io.ErrUnexpectedEOF that
// it ended within one. seen, if not nil, is called for every line, heartbeats
// included.
func (l *LineReader) Next(seen func()) ([]byte, error) {
	for {
		line, err := l.line()
		if err != nil {
			return nil, err
		}
		if seen != nil {
			seen()
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
	}
}

func (l *LineReader) line() ([]byte, error) {
	l.long = l.long[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		switch {
		case err == nil && len(l.long) == 0:
			return part, nil
		case err == nil:
			return append(l.long, part...), nil
		case errors.Is(err, bufio.ErrBufferFull):
			if len(l.long)+len(part) > MaxLine {
				return nil, fmt.Errorf("a line of the stream is longer than %d bytes", MaxLine)
			}
			l.long = append(l.long, part...)
		case err == io.EOF && len(l.long)+len(part) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}
