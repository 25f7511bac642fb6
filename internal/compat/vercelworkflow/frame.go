package vercelworkflow

import (
	"encoding/binary"
	"io"

	"github.com/fxamacker/cbor/v2"

	"github.com/cayhq/cay"
)

// frameType is the media type of an answer that is a sequence of frames.
const frameType = "application/vnd.workflow.v4-frames"

// Bounds of frames, in bytes.
const (
	maxMeta  = 1 << 20
	maxFrame = 100_000_000 // the engine's bound of a payload
)

// The SDK decodes dates from tag 1, and sends them so.
var encoding, decoding = modes()

func modes() (cbor.EncMode, cbor.DecMode) {
	enc, err := cbor.EncOptions{Time: cbor.TimeUnixDynamic, TimeTag: cbor.EncTagRequired}.EncMode()
	if err != nil {
		panic(err) // the options are constant
	}
	dec, err := cbor.DecOptions{TimeTag: cbor.DecTagOptional, MaxNestedLevels: 64, UTF8: cbor.UTF8DecodeInvalid}.DecMode()
	if err != nil {
		panic(err)
	}
	return enc, dec
}

// appendFrame appends a frame to b.
func appendFrame(b []byte, meta any, body []byte) ([]byte, error) {
	m, err := encoding.Marshal(meta)
	if err != nil {
		return nil, err
	}
	return appendBytes(appendBytes(b, m), body), nil
}

// appendBytes appends the length of v, four bytes, and v.
func appendBytes(b, v []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
	return append(b, v...)
}

// takeFrame reads a frame from the start of b and returns what is behind it. Errors: invalid.
func takeFrame(b []byte, meta any) (body, rest []byte, err error) {
	m, b, ok := takeBytes(b)
	if !ok || len(m) > maxMeta {
		return nil, nil, cay.Errorf(cay.Invalid, "the frame is cut short, or its fields take more than %d bytes", maxMeta)
	}
	body, rest, ok = takeBytes(b)
	if !ok {
		return nil, nil, cay.Errorf(cay.Invalid, "the body of the frame is cut short")
	}
	if err := decoding.Unmarshal(m, meta); err != nil {
		return nil, nil, cay.Errorf(cay.Invalid, "the fields of the frame are no CBOR that is understood: %v", err)
	}
	return body, rest, nil
}

// takeBytes takes what is behind its length, four bytes.
func takeBytes(b []byte) (v, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := binary.BigEndian.Uint32(b)
	if uint64(n) > uint64(len(b)-4) {
		return nil, nil, false
	}
	return b[4 : 4+n : 4+n], b[4+n:], true
}

// readAll reads a body of at most limit bytes. Errors: too_large, and those of the reader.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, cay.Errorf(cay.TooLarge, "the body has more than %d bytes", limit)
	}
	return b, nil
}
