// Package cmdarchive defines the file in which the commands of an ended session and their
// output are kept.
//
//	for each command that wrote something: its output, as frames of the guest's
//	protocol, those of its times included, compressed with gzip
//	the index: JSON, compressed with gzip
//	the index's offset, as 8 bytes in big-endian order, and 8 bytes of magic
//
// The commands come from a guest, and the guest client has checked them; the daemon
// writes the file.
package cmdarchive

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// Limits for one session. Bytes of output count with EventCost more for each event.
const (
	MaxCommands = 1000
	MaxOutput   = 1 << 20  // of one command's newest output
	MaxAll      = 16 << 20 // of all commands with their descriptions
)

// EventCost is the bytes that an event adds to the bytes of its data: two frames.
const EventCost = 2 * guest.HeaderSize

const (
	magic       = "cay-cmd1"
	trailerSize = 8 + len(magic)
	maxIndex    = 64 << 20 // decompressed; more than MaxCommands can take
)

// entry is a command in the index.
type entry struct {
	Command sandbox.Command `json:"command"`
	Offset  int64           `json:"offset,omitempty"` // of its output; meaningless if Size is 0
	Size    int64           `json:"size,omitempty"`
}

// Writer writes a file of kept commands.
type Writer struct {
	w     io.Writer
	at    int64
	zip   *gzip.Writer
	index []entry
}

// NewWriter returns a Writer of a file that has no commands yet.
func NewWriter(w io.Writer) *Writer {
	kw := &Writer{w: w}
	kw.zip, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is valid
	return kw
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	w.at += int64(n)
	return n, err
}

// epoch is before all times that are kept.
var epoch = time.Unix(0, 0)

// Add adds a command. output are the events with its data, contiguous from its
// OutputStart to its OutputEnd.
func (w *Writer) Add(c sandbox.Command, output []sandbox.Event) error {
	e := entry{Command: c, Offset: w.at}
	if len(output) > 0 {
		w.zip.Reset(w)
		var at time.Time
		for _, ev := range output {
			if ev.Time.After(epoch) && !ev.Time.Equal(at) {
				at = ev.Time
				if _, err := w.zip.Write(guest.AppendHeader(nil, guest.KindTime, at.UnixNano(), 0)); err != nil {
					return err
				}
			}
			kind := guest.KindStdout
			if ev.Stream == sandbox.Stderr {
				kind = guest.KindStderr
			}
			if _, err := w.zip.Write(guest.AppendHeader(nil, kind, ev.Cursor, len(ev.Data))); err != nil {
				return err
			}
			if _, err := w.zip.Write(ev.Data); err != nil {
				return err
			}
		}
		if err := w.zip.Close(); err != nil {
			return err
		}
		e.Size = w.at - e.Offset
	}
	w.index = append(w.index, e)
	return nil
}

// Close completes the file. It does not close the underlying writer.
func (w *Writer) Close() error {
	at := w.at
	w.zip.Reset(w)
	if err := errors.Join(json.NewEncoder(w.zip).Encode(w.index), w.zip.Close()); err != nil {
		return err
	}
	_, err := w.Write(append(binary.BigEndian.AppendUint64(nil, uint64(at)), magic...))
	return err
}

// File is an open file of kept commands.
type File struct {
	file  blob.File
	index []entry
}

// Open reads the index of a file. If that fails, Open closes the file.
func Open(f blob.File) (*File, error) {
	index, err := readIndex(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read what is kept of commands: %w", err), f.Close())
	}
	return &File{f, index}, nil
}

func readIndex(f blob.File) (index []entry, err error) {
	end := f.Size() - int64(trailerSize)
	var trailer [trailerSize]byte
	if end < 0 {
		return nil, io.ErrUnexpectedEOF
	}
	if _, err := f.ReadAt(trailer[:], end); err != nil && err != io.EOF {
		return nil, err
	}
	at := int64(binary.BigEndian.Uint64(trailer[:]))
	if string(trailer[8:]) != magic || at < 0 || at > end {
		return nil, errors.New("it is damaged, or of a later version of cay")
	}
	zip, err := gzip.NewReader(io.NewSectionReader(f, at, end-at))
	if err != nil {
		return nil, err
	}
	// Decoded one by one, because the commands of a guest can be long.
	dec := json.NewDecoder(io.LimitReader(zip, maxIndex))
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	for dec.More() {
		var e entry
		if err := dec.Decode(&e); err != nil {
			return nil, err
		}
		index = append(index, e)
	}
	_, err = dec.Token()
	return index, err
}

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

// Commands returns all commands, in the order they were added.
func (f *File) Commands() []sandbox.Command {
	all := make([]sandbox.Command, len(f.index))
	for i, e := range f.index {
		all[i] = e.Command
	}
	return all
}

// Command returns a command, nil if there is none with that id.
func (f *File) Command(id string) *sandbox.Command {
	e := f.entry(id)
	if e == nil {
		return nil
	}
	c := e.Command // a copy, so that the result does not retain the other commands
	return &c
}

func (f *File) entry(id string) *entry {
	for i := range f.index {
		if f.index[i].Command.ID == id {
			return &f.index[i]
		}
	}
	return nil
}

// Output returns the output of a command from p.Cursor on, followed by its exit, if exit is
// not nil. Closing the output closes the file. Errors: not_found, invalid (cursor).
func (f *File) Output(id string, p sandbox.OutputParams, exit *sandbox.Exit) (sandbox.Output, error) {
	e := f.entry(id)
	switch {
	case e == nil:
		return nil, cay.Errorf(cay.NotFound, "command %q not found", id)
	case p.Cursor > e.Command.OutputEnd:
		return nil, cay.Errorf(cay.Invalid, "cursor %d is beyond the output's end at %d", p.Cursor, e.Command.OutputEnd)
	}
	o := &output{file: f.file, cursor: p.Cursor, times: p.Times, start: e.Command.OutputStart, exit: exit}
	if e.Size > 0 {
		zip, err := gzip.NewReader(io.NewSectionReader(f.file, e.Offset, e.Size))
		if err != nil {
			return nil, fmt.Errorf("read what is kept of command %s: %w", id, err)
		}
		o.frames = zip
	}
	return o, nil
}

// output is the sandbox.Output of a kept command.
type output struct {
	file   io.Closer
	frames io.Reader // nil: at the end
	cursor int64     // of the next byte
	start  int64     // of the first kept byte
	times  bool      // events get their times
	at     time.Time // of the next byte
	exit   *sandbox.Exit
}

// Next implements sandbox.Output.
func (o *output) Next() (sandbox.Event, error) {
	if o.cursor < o.start {
		o.cursor = o.start
		return sandbox.Event{Truncated: true, Cursor: o.start}, nil
	}
	for o.frames != nil {
		f, err := guest.ReadFrame(o.frames)
		if err == io.EOF {
			o.frames = nil
			break
		}
		if err != nil {
			return sandbox.Event{}, fmt.Errorf("read what is kept of a command: %w", err)
		}
		if f.Kind == guest.KindTime {
			o.at = time.Unix(0, f.Cursor).UTC()
			continue
		}
		skip := o.cursor - f.Cursor
		if skip < 0 {
			return sandbox.Event{}, errors.New("what is kept of a command has a gap")
		}
		if skip >= int64(len(f.Payload)) {
			continue
		}
		ev := sandbox.Event{Stream: sandbox.Stdout, Data: f.Payload[skip:], Cursor: o.cursor}
		if o.times {
			ev.Time = o.at
		}
		if f.Kind == guest.KindStderr {
			ev.Stream = sandbox.Stderr
		}
		o.cursor += int64(len(ev.Data))
		return ev, nil
	}
	if o.exit != nil {
		ev := sandbox.Event{Exit: o.exit}
		o.exit = nil
		return ev, nil
	}
	return sandbox.Event{}, io.EOF
}

// Close implements sandbox.Output.
func (o *output) Close() error { return o.file.Close() }
