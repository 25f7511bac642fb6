package chat

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
)

// Request is the POST of a page: the conversation so far, which the agent is to
// answer.
type Request struct {
	// ID is the page's id of the chat, at most 256 bytes. WorkflowChatTransport sends
	// it only if prepareSendMessagesRequest puts it into the body. Without ID, a
	// repeated POST joins the first one's run only while that run answers: afterwards
	// a repeated POST cannot be distinguished from regenerate().
	ID       string
	Messages []UIMessage
	Trigger  Trigger // empty means SubmitMessage
	// MessageID is the message that is edited, or to be answered again.
	MessageID string
	// Body is the whole body, with the members that the page has added.
	Body json.RawMessage

	// Call is the agent's Call, and StartOptions are the options of the run.
	// Options.Prepare may change both; it must leave workflow.Key and the attributes
	// of a Handler alone.
	Call         agent.Call
	StartOptions []workflow.StartOption

	lastJSON json.RawMessage // the last message
	allJSON  json.RawMessage // all messages
}

// Trigger is the reason why a page sends its messages.
type Trigger string

// The triggers.
const (
	SubmitMessage     Trigger = "submit-message"
	RegenerateMessage Trigger = "regenerate-message"
)

// The limits of a page's request, beside Options.MaxBody.
const (
	maxMessages = 10_000
	maxParts    = 50_000 // of all messages
	maxID       = 256    // bytes of ids of chats and messages
	runPrefix   = "wrun_"
)

// maxBodies bounds the bytes of all bodies that a Handler holds at one time.
const maxBodies = 256 << 20

// bodies counts the bytes of the bodies that are held in memory.
type bodies struct{ held atomic.Int64 }

// errFull means that the bodies in memory have reached maxBodies.
var errFull = cay.Errorf(cay.Unavailable, "too much is being sent by others: try again")

// counted is a body that counts its bytes in bodies until it is released.
type counted struct {
	io.Reader
	in   *bodies
	held int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.held += int64(n)
	if c.in.held.Add(int64(n)) > maxBodies {
		return n, errFull
	}
	return n, err
}

func (c *counted) release() { c.in.held.Add(-c.held) }

// readRequest reads the body of a POST. Errors: invalid, too_large, unavailable.
func readRequest(w http.ResponseWriter, from io.Reader, limit int64) (*Request, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, io.NopCloser(from), limit))
	if tooLong := (*http.MaxBytesError)(nil); errors.As(err, &tooLong) {
		return nil, cay.Errorf(cay.TooLarge, "the body has more than %d bytes", limit)
	}
	if errors.Is(err, errFull) {
		return nil, errFull
	}
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the body cannot be read: %w", err)
	}
	return parseRequest(body)
}

func parseRequest(body []byte) (*Request, error) {
	var in struct {
		ID        string          `json:"id"`
		Messages  json.RawMessage `json:"messages"`
		Trigger   Trigger         `json:"trigger"`
		MessageID string          `json:"messageId"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, cay.Errorf(cay.Invalid, "the body is not the JSON of a chat: %w", err)
	}
	q := &Request{ID: in.ID, Trigger: in.Trigger, MessageID: in.MessageID, Body: body}
	if strings.HasPrefix(in.ID, runPrefix) {
		return nil, cay.Errorf(cay.Invalid, "id begins as the ids of runs do")
	}
	if len(q.ID) > maxID || len(q.MessageID) > maxID {
		return nil, cay.Errorf(cay.Invalid, "an id has more than %d bytes", maxID)
	}
	switch q.Trigger {
	case "":
		q.Trigger = SubmitMessage
	case SubmitMessage, RegenerateMessage:
	default:
		return nil, cay.Errorf(cay.Invalid, "trigger is %.40q: it must be %s or %s", q.Trigger, SubmitMessage, RegenerateMessage)
	}
	parts := maxParts
	err := elements(in.Messages, func(i int, raw json.RawMessage) error {
		if i >= maxMessages {
			return cay.Errorf(cay.Invalid, "there are more than %d messages", maxMessages)
		}
		m, err := readMessage(raw, &parts, fmt.Sprintf("messages[%d]", i))
		q.Messages = append(q.Messages, m)
		q.lastJSON = raw
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(q.Messages) == 0 {
		return nil, cay.Errorf(cay.Invalid, "messages is empty: there is nothing to answer")
	}
	q.allJSON = in.Messages
	return q, nil
}

// last returns the message to be answered, or continued.
func (q *Request) last() *UIMessage { return &q.Messages[len(q.Messages)-1] }

// repeatable reports whether a repeated request can be recognised. Without the chat's
// id, only the ids of its messages, which pages make up, distinguish it from another
// user's request with the same text.
func (q *Request) repeatable() bool { return q.ID != "" || q.last().ID != "" }

// key returns the idempotency key of the run that answers: the same for a repeated
// POST, another one for other content, even in the same message. n counts the requests
// to answer again.
func (q *Request) key(handler, user string, n int) string {
	said := q.lastJSON
	if q.ID == "" {
		said = q.allJSON
	}
	return digest("chat:", handler, user, q.ID, string(q.Trigger), q.MessageID, string(said), strconv.Itoa(n))
}

// answerKey returns the idempotency key of the run that gets the answer to a question:
// see agent.Answers.
func (q *Request) answerKey(handler, user, question string) string {
	return digest("chat-answer:", handler, user, q.ID, question)
}

// conversation returns the name of the chat for the agent: see agent.Call.
func (q *Request) conversation(handler, user string) string {
	return digest("chat:", handler, user, q.ID)
}

// digest returns a name for some texts that no other texts have.
func digest(prefix string, texts ...string) string {
	h := sha256.New()
	for _, text := range texts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		io.WriteString(h, text)
	}
	return prefix + hex.EncodeToString(h.Sum(nil))
}
