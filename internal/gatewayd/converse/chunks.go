package converse

import (
	"encoding/base64"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
	"github.com/tidwall/gjson"
)

// Chunks converts an answer of InvokeModelWithResponseStream to server-sent events: each
// frame of the type chunk contains {"bytes": "..."}, the Base64 of an event in the
// model's own format, whose member type is the event's name. An exception frame becomes
// an event named error, in Anthropic's form. Bytes that are no frame end the stream with
// an error.
// https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InvokeModelWithResponseStream.html
func Chunks(body io.ReadCloser) io.ReadCloser {
	return &chunks{body: body, frames: frameReader{r: body, decode: eventstream.NewDecoder()}}
}

type chunks struct {
	body   io.ReadCloser
	frames frameReader
	buf    []byte // the decoded events
	rest   []byte // the unread part of buf
	err    error
}

// Read implements io.Reader. It returns at most one event per call.
func (c *chunks) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		m, err := c.frames.next()
		if err != nil {
			c.err = err
			continue
		}
		c.buf = appendChunk(c.buf[:0], &m)
		c.rest = c.buf
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// Close closes the answer.
func (c *chunks) Close() error { return c.body.Close() }

// exceptionTypes maps Bedrock's exceptions to Anthropic's error types.
var exceptionTypes = map[string]string{
	"throttlingException": "rate_limit_error", "validationException": "invalid_request_error", "serviceUnavailableException": "overloaded_error",
	"modelTimeoutException": "timeout_error",
}

func appendChunk(dst []byte, m *eventstream.Message) []byte {
	if header(m, ":message-type") != "event" {
		kind := exceptionTypes[header(m, ":exception-type")]
		if kind == "" {
			kind = "api_error"
		}
		message := gjson.GetBytes(m.Payload, "message").Str
		if message == "" {
			message = header(m, ":error-message")
		}
		dst = append(append(dst, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\""...), kind...)
		dst = append(dst, "\",\"message\":"...)
		return append(gjson.AppendJSONString(dst, message), "}}\n\n"...)
	}
	if header(m, ":event-type") != "chunk" {
		return dst
	}
	event, err := base64.StdEncoding.DecodeString(gjson.GetBytes(m.Payload, "bytes").Str)
	if err != nil {
		event = []byte("{") // invalid JSON, which the reader of the events reports
	}
	name := gjson.GetBytes(event, "type").Str
	dst = append(append(dst, "event: "...), clean(name)...)
	dst = append(dst, "\ndata: "...)
	for _, b := range event { // JSON has no line breaks but between its tokens
		if b != '\n' && b != '\r' {
			dst = append(dst, b)
		}
	}
	return append(dst, "\n\n"...)
}

// clean removes characters from a name that would end a line.
func clean(name string) string {
	for i := range len(name) {
		if name[i] < ' ' {
			return ""
		}
	}
	return name
}
