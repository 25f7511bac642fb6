package vercelsandbox

import (
	"fmt"
	"net/http"
	"unicode/utf8"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/cmdoutput"
	"github.com/cayhq/cay/sandbox"
)

// serveOutput answers with a line for each event of out, and closes out. The
// command continues when the client leaves.
func serveOutput(w http.ResponseWriter, r *http.Request, out sandbox.Output, l *lines) error {
	return api.ServeLines(w, r, cmdoutput.Own(out), l)
}

// codeStreamClosed is the code of a stream whose session ended.
const codeStreamClosed = "sandbox_stream_closed"

// lines encodes the events of a command as lines of JSON: the command when it
// starts and when it has ended, and its output in between. The lines are pure
// ASCII, because some clients take U+0085 for the end of a line, or decode the
// bytes piece by piece. lines is an api.Encoder.
type lines struct {
	command func(*sandbox.Command) command // nil: no lines of the command
	output  bool                           // lines of its output

	started        sandbox.Command
	cursor         int64 // of the next byte of output
	stdout, stderr text
}

var _ api.Encoder[sandbox.Event] = (*lines)(nil)

// Append implements api.Encoder.
func (l *lines) Append(dst []byte, e sandbox.Event) ([]byte, error) {
	switch {
	case e.Command != nil:
		l.started = *e.Command
		l.started.Exit = nil
		return l.appendCommand(dst)
	case e.Exit != nil:
		l.started.Exit = e.Exit
		return l.appendCommand(l.Release(dst))
	case !l.output:
		return dst, nil
	}
	if e.Truncated {
		// The protocol cannot express lost output, and silence would mislead.
		dst = l.Release(dst)
		dst = l.stderr.append(dst, sandbox.Stderr, fmt.Appendf(nil, "[cay: %d bytes of output are no longer kept]\n", e.Cursor-l.cursor), true)
		l.cursor = e.Cursor
	}
	l.cursor += int64(len(e.Data))
	if e.Stream == sandbox.Stderr {
		return l.stderr.append(dst, sandbox.Stderr, e.Data, false), nil
	}
	return l.stdout.append(dst, sandbox.Stdout, e.Data, false), nil
}

func (l *lines) appendCommand(dst []byte) ([]byte, error) {
	if l.command == nil {
		return dst, nil
	}
	return appendLine(dst, commandAnswer{l.command(&l.started)})
}

// Held implements api.Encoder: half a character waits for the rest for any time.
func (l *lines) Held() bool { return false }

// Release implements api.Encoder.
func (l *lines) Release(dst []byte) []byte {
	dst = l.stdout.append(dst, sandbox.Stdout, nil, true)
	return l.stderr.append(dst, sandbox.Stderr, nil, true)
}

// AppendError implements api.Encoder.
func (l *lines) AppendError(dst []byte, e *cay.Error) []byte {
	_, body := shapeOf(e, e)
	if e.Code == cay.Stopped {
		body.Code = codeStreamClosed
	}
	// Two texts can be encoded.
	dst, _ = appendLine(dst, struct {
		Stream string    `json:"stream"`
		Data   errorBody `json:"data"`
	}{"error", body})
	return dst
}

// appendLine appends v as a line.
func appendLine(dst []byte, v any) ([]byte, error) {
	b, err := encode(v)
	if err != nil {
		return dst, err
	}
	// Characters outside ASCII occur only within strings.
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		dst = appendRune(dst, r)
		b = b[n:]
	}
	return dst, nil
}

// text decodes one stream of a command as UTF-8. Each byte that is not valid
// UTF-8 becomes U+FFFD, so that the result does not depend on how the bytes are
// divided into reads.
type text struct{ cmdoutput.Splitter }

// append appends a line with the characters that p completes. last means that no
// more bytes follow.
func (t *text) append(dst []byte, stream sandbox.Stream, p []byte, last bool) []byte {
	if last {
		p = append(t.Rest(), p...)
	} else {
		p = t.Whole(p)
	}
	if len(p) == 0 {
		return dst
	}
	dst = fmt.Appendf(dst, `{"stream":"%s","data":"`, stream)
	return append(appendText(dst, p), "\"}\n"...)
}

// appendText appends the inside of a JSON text.
func appendText(dst, p []byte) []byte {
	for len(p) > 0 {
		n := 0
		for n < len(p) && ' ' <= p[n] && p[n] < utf8.RuneSelf && p[n] != '"' && p[n] != '\\' {
			n++
		}
		dst = append(dst, p[:n]...)
		if p = p[n:]; len(p) == 0 {
			break
		}
		switch c := p[0]; c {
		case '"', '\\':
			dst, n = append(dst, '\\', c), 1
		case '\n':
			dst, n = append(dst, `\n`...), 1
		case '\r':
			dst, n = append(dst, `\r`...), 1
		case '\t':
			dst, n = append(dst, `\t`...), 1
		default:
			if c < ' ' {
				dst, n = appendUnit(dst, uint16(c)), 1
				break
			}
			var r rune
			r, n = utf8.DecodeRune(p)
			dst = appendRune(dst, r)
		}
		p = p[n:]
	}
	return dst
}

// appendRune appends a character of JSON, escaped if it is not ASCII.
func appendRune(dst []byte, r rune) []byte {
	switch {
	case r < utf8.RuneSelf:
		return append(dst, byte(r))
	case r <= 0xffff:
		return appendUnit(dst, uint16(r))
	}
	r -= 0x10000
	return appendUnit(appendUnit(dst, 0xd800+uint16(r>>10)), 0xdc00+uint16(r&0x3ff))
}

func appendUnit(dst []byte, u uint16) []byte {
	const hex = "0123456789abcdef"
	return append(dst, '\\', 'u', hex[u>>12], hex[u>>8&15], hex[u>>4&15], hex[u&15])
}
