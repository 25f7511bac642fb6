package workflow

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"github.com/cayhq/cay"
)

// Codec turns values of workflows, steps, hooks and streams into bytes and back.
// The default is encoding/json. Decode must read what Encode of any earlier
// version of the program wrote. Both are called concurrently.
type Codec interface {
	Encode(v any) ([]byte, error)
	// Decode stores the value in the variable that v points to.
	Decode(data []byte, v any) error
}

// The kinds of envelopes, the first four bytes of every payload. They nest: a
// value is written, then compressed, then sealed.
const (
	envelopeJSON   = "json" // encoding/json
	envelopeUser   = "user" // the encoding of the program's Codec
	envelopeGzip   = "gzip" // an envelope, compressed
	envelopeSealed = "encr" // an envelope, encrypted; see crypt.go
	envelopeBlob   = "blob" // the name of a payload that the engine stores elsewhere; workers never see it
)

const (
	// maxPayload bounds the encoding of one value, in bytes.
	maxPayload = 100 << 20
	// compressFrom is the size in bytes from which compression is tried. The compressed
	// form is used if it saves a twentieth.
	compressFrom = 1 << 10
)

// envelopes encodes and decodes payloads. The zero value writes JSON in the clear.
type envelopes struct {
	codec Codec // nil: JSON
	keys  []EncryptionKey
}

// encode returns the envelope of a value. scope is the run that the value belongs to: it
// determines the key. Errors: invalid if the value cannot be encoded, too_large.
func (p *envelopes) encode(scope string, v any) ([]byte, error) {
	if p.codec == nil {
		return p.encodeJSON(scope, v, badText)
	}
	body, err := p.codec.Encode(v)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "value of type %T cannot be stored: %w", v, err)
	}
	return p.wrap(scope, append([]byte(envelopeUser), body...))
}

var jsonBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// encodeJSON returns the envelope of a value as JSON, unless check, which may be nil,
// returns an error.
func (p *envelopes) encodeJSON(scope string, v any, check func(v any, body []byte) error) ([]byte, error) {
	buf := jsonBuffers.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= 64<<10 {
			buf.Reset()
			jsonBuffers.Put(buf)
		}
	}()
	buf.WriteString(envelopeJSON)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, cay.Errorf(cay.Invalid, "value of type %T cannot be stored as JSON: %w", v, err)
	}
	if check != nil {
		if err := check(v, buf.Bytes()); err != nil {
			return nil, err
		}
	}
	return p.wrap(scope, bytes.Clone(buf.Bytes()[:buf.Len()-1])) // without the newline that Encode adds
}

// wrap compresses and seals an envelope, as configured.
func (p *envelopes) wrap(scope string, env []byte) ([]byte, error) {
	if len(env) > maxPayload {
		return nil, cay.Errorf(cay.TooLarge, "value of %d bytes is larger than %d; keep it elsewhere and pass a reference", len(env), maxPayload)
	}
	if len(env) >= compressFrom {
		env = compress(env)
	}
	if len(p.keys) > 0 {
		return seal(p.keys[0], scope, env)
	}
	return env, nil
}

// decode stores the value of an envelope in the variable that v points to; an empty
// envelope leaves the variable unchanged. Errors: invalid, as when the type of a value
// has changed incompatibly; permission_denied if no key fits.
func (p *envelopes) decode(env []byte, v any) error {
	if len(env) == 0 {
		return nil
	}
	kind, body, err := p.open(env)
	if err != nil {
		return err
	}
	switch kind {
	case envelopeJSON:
		err = unmarshal(body, v)
	case envelopeUser:
		if p.codec == nil {
			return cay.Errorf(cay.Invalid, "value was stored by a codec that this client does not have")
		}
		err = p.codec.Decode(body, target(v))
	}
	if err != nil {
		return cay.Errorf(cay.Invalid, "stored value does not fit %T: %w", target(v), err)
	}
	return nil
}

// open decompresses and unseals an envelope. kind is json or user.
func (p *envelopes) open(env []byte) (kind string, body []byte, err error) {
	for range 4 { // as deep as encode nests, and one more
		if len(env) < 4 {
			break
		}
		kind, body = string(env[:4]), env[4:]
		switch kind {
		case envelopeJSON, envelopeUser:
			return kind, body, nil
		case envelopeGzip:
			env, err = decompress(body)
		case envelopeSealed:
			env, err = unseal(p.keys, env)
		default:
			return "", nil, cay.Errorf(cay.Invalid, "stored value is of unknown kind %q", kind)
		}
		if err != nil {
			return "", nil, err
		}
	}
	return "", nil, cay.Errorf(cay.Invalid, "stored value is not an envelope")
}

// encodeError returns the envelope of an error. It is JSON with every codec, so that all
// readers of the log understand the error.
func (p *envelopes) encodeError(scope string, err error) []byte {
	r := recordError(err)
	env, encErr := p.encodeJSON(scope, &r, nil)
	if encErr != nil {
		// Only the data of a registered type can fail to encode: it is JSON of our own,
		// but compacted again here.
		env, encErr = p.encodeJSON(scope, &errorRecord{Type: r.Type, Message: r.Message, Code: r.Code}, nil)
		if encErr != nil {
			panic("workflow: " + encErr.Error()) // strings always encode
		}
	}
	return env
}

// decodeError returns the error in an envelope; if the envelope cannot be read, it
// returns the reason.
func (p *envelopes) decodeError(env []byte) error {
	if len(env) == 0 {
		return &RecordedError{Message: "the error is no longer kept"}
	}
	kind, body, err := p.open(env)
	if err != nil {
		return err
	}
	var r errorRecord
	if kind != envelopeJSON {
		err = errors.New("it is not JSON")
	} else {
		err = json.Unmarshal(body, &r)
	}
	if err != nil {
		return cay.Errorf(cay.Invalid, "stored error cannot be read: %w", err)
	}
	return r.error()
}

var gzipWriters = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return w
}}

// compress returns env in a gzip envelope, or env itself if compression saves too little.
func compress(env []byte) []byte {
	// Data whose beginning does not compress, such as a picture, is not compressed as a
	// whole.
	const probe = 32 << 10
	if len(env) > 4*probe && !saves(len(gzipped(env[:probe])), probe) {
		return env
	}
	if z := gzipped(env); saves(len(z), len(env)) {
		return z
	}
	return env
}

func saves(after, before int) bool { return after <= before-before/20 }

func gzipped(env []byte) []byte {
	w := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(w)
	out := bytes.NewBuffer(make([]byte, 0, len(env)/2))
	out.WriteString(envelopeGzip)
	w.Reset(out)
	// Writes to a bytes.Buffer do not fail.
	_, _ = w.Write(env)
	_ = w.Close()
	return out.Bytes()
}

// decompress bounds its output, because logs may come from other machines.
func decompress(z []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(z))
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "stored value is damaged: %w", err)
	}
	var out bytes.Buffer
	n, err := io.Copy(&out, io.LimitReader(r, maxPayload+1))
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "stored value is damaged: %w", err)
	}
	if n > maxPayload {
		return nil, cay.Errorf(cay.TooLarge, "stored value is larger than %d bytes", maxPayload)
	}
	return out.Bytes(), nil
}

// forRun returns the envelopes of one run.
func (p *envelopes) forRun(id string) payloads { return &runEnvelopes{all: p, run: id} }

// runEnvelopes encodes and decodes the payloads of one run.
type runEnvelopes struct {
	all *envelopes
	run string
}

var _ payloads = (*runEnvelopes)(nil)

func (p *runEnvelopes) encode(v any) ([]byte, error)   { return p.all.encode(p.run, v) }
func (p *runEnvelopes) decode(env []byte, v any) error { return p.all.decode(env, v) }
func (p *runEnvelopes) encodeError(err error) []byte   { return p.all.encodeError(p.run, err) }
func (p *runEnvelopes) decodeError(env []byte) error   { return p.all.decodeError(env) }
func (p *runEnvelopes) forRun(id string) payloads      { return p.all.forRun(id) }
