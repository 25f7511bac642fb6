package sandbox

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

// eventJSON is the JSON form of an Event, which is one of
//
//	{"type":"start","command":{...}}
//	{"type":"stdout","cursor":0,"data":"text"}    or "stderr"; with "encoding":"base64" when data is not text,
//	                                              and "time" if the reader asked for times
//	{"type":"truncated","cursor":4096}
//	{"type":"exit","exit":{...}}
type eventJSON struct {
	Type     string     `json:"type"`
	Command  *Command   `json:"command,omitempty"`
	Cursor   *int64     `json:"cursor,omitempty"`
	Data     *string    `json:"data,omitempty"`
	Time     *time.Time `json:"time,omitempty"`
	Encoding string     `json:"encoding,omitempty"`
	Exit     *Exit      `json:"exit,omitempty"`
}

const encodingBase64 = "base64"

// isText reports whether output is encoded as a JSON string. Bytes that are not UTF-8 cannot be,
// and control characters, such as NUL, take six bytes each in a JSON string: base64 is shorter if
// there are many.
func isText(b []byte) bool {
	const (
		escape = 6  // bytes that JSON has for a control character
		spare  = 64 // so that the escape sequences of a terminal stay readable
	)
	length := len(b)
	for _, c := range b {
		if c < ' ' && c != '\n' && c != '\r' && c != '\t' {
			length += escape - 1
		}
	}
	return length <= 2*len(b)+spare && utf8.Valid(b)
}

// MarshalJSON writes an object whose member "type" is start, stdout, stderr,
// truncated or exit.
func (e Event) MarshalJSON() ([]byte, error) {
	var out eventJSON
	switch {
	case e.Command != nil:
		out = eventJSON{Type: "start", Command: e.Command}
	case e.Exit != nil:
		out = eventJSON{Type: "exit", Exit: e.Exit}
	case e.Truncated:
		out = eventJSON{Type: "truncated", Cursor: &e.Cursor}
	case e.Stream == Stdout || e.Stream == Stderr:
		out = eventJSON{Type: string(e.Stream), Cursor: &e.Cursor}
		var data string
		if isText(e.Data) {
			data = string(e.Data)
		} else {
			data, out.Encoding = base64.StdEncoding.EncodeToString(e.Data), encodingBase64
		}
		out.Data = &data
		if !e.Time.IsZero() {
			out.Time = &e.Time
		}
	default:
		return nil, fmt.Errorf("sandbox: an event of stream %q has nothing to say", e.Stream)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // six bytes for each < would be a poor log of HTML
	if err := enc.Encode(out); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (e *Event) UnmarshalJSON(b []byte) error {
	var in eventJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	return e.set(&in)
}

func (e *Event) set(in *eventJSON) error {
	*e = Event{}
	if in.Cursor != nil {
		if e.Cursor = *in.Cursor; e.Cursor < 0 {
			return fmt.Errorf("sandbox: an event has the cursor %d", e.Cursor)
		}
	}
	switch in.Type {
	case "start":
		e.Command = in.Command
		if e.Command == nil {
			return fmt.Errorf("sandbox: a start event without command")
		}
	case "exit":
		e.Exit = in.Exit
		if e.Exit == nil {
			return fmt.Errorf("sandbox: an exit event without exit")
		}
	case "truncated":
		e.Truncated = true
	case string(Stdout), string(Stderr):
		e.Stream = Stream(in.Type)
		if in.Time != nil {
			e.Time = *in.Time
		}
		return e.setData(in)
	default:
		return fmt.Errorf("sandbox: an event of unknown type %q", in.Type)
	}
	return nil
}

func (e *Event) setData(in *eventJSON) (err error) {
	if in.Data == nil || in.Cursor == nil {
		return fmt.Errorf("sandbox: a %s event without data or cursor", in.Type)
	}
	switch in.Encoding {
	case "":
		e.Data = []byte(*in.Data)
	case encodingBase64:
		e.Data, err = base64.StdEncoding.DecodeString(*in.Data)
	default:
		err = fmt.Errorf("sandbox: data of unknown encoding %q", in.Encoding)
	}
	return err
}
