package guest

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestFrame_roundTrip(t *testing.T) {
	var b []byte
	want := []Frame{{KindStdout, 0, []byte("hello")}, {KindEnd, 0, nil}, {KindStderr, 1<<63 - 1, bytes.Repeat([]byte("x"), MaxPayload)}}
	for _, f := range want {
		b = append(AppendHeader(b, f.Kind, f.Cursor, len(f.Payload)), f.Payload...)
	}
	r := iotest.OneByteReader(bytes.NewReader(b))
	for _, w := range want {
		f, err := ReadFrame(r)
		if err != nil || f.Kind != w.Kind || f.Cursor != w.Cursor || !bytes.Equal(f.Payload, w.Payload) {
			t.Fatalf("got %v %d %d bytes, %v", f.Kind, f.Cursor, len(f.Payload), err)
		}
	}
	if _, err := ReadFrame(r); err != io.EOF {
		t.Fatalf("at the end: %v", err)
	}
	for n := 1; n < HeaderSize+5; n++ {
		if _, err := ReadFrame(bytes.NewReader(b[:n])); err != io.ErrUnexpectedEOF {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(append(AppendHeader(nil, KindStdout, 7, 3), "abc"...))
	f.Add(AppendHeader(nil, 99, 0, 0))
	f.Add(AppendHeader(nil, KindStdout, -1, 0))
	f.Add(AppendHeader(nil, KindStdout, 0, MaxPayload+1))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			fr, err := ReadFrame(r)
			if err != nil {
				if _, ok := errors.AsType[*protocolError](err); !ok && err != io.EOF && err != io.ErrUnexpectedEOF {
					t.Fatal(err)
				}
				return
			}
			if fr.Kind < KindCommand || fr.Kind > KindFileEvent || fr.Cursor < 0 || len(fr.Payload) > MaxPayload {
				t.Fatalf("took %+v", fr)
			}
		}
	})
}
