package scripted

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Limits of a script.
const (
	maxFile       = 4 << 20
	maxReplies    = 10_000 // and of a sequence
	maxToolCalls  = 128
	maxDelay      = 10 * time.Minute
	maxDimensions = 4096
	// DefaultDimensions is the default length of vectors.
	DefaultDimensions = 64
)

// Script defines the model's answers. It is immutable. The zero value generates all
// answers automatically.
type Script struct {
	rules      []rule
	dimensions int
}

// rule is one or several replies, and the calls they answer.
type rule struct {
	match   *regexp.Regexp // nil: anything
	turn    int            // 0: any
	replies []reply        // at least one
}

// file is the form of a script.
type file struct {
	Replies    []fileRule `yaml:"replies"`
	Embeddings struct {
		Dimensions int `yaml:"dimensions"`
	} `yaml:"embeddings"`
}

type fileRule struct {
	Match    string  `yaml:"match"`
	Turn     int     `yaml:"turn"`
	Sequence []reply `yaml:"sequence"`
	Reply    reply   `yaml:",inline"`
}

// reply is one answer.
type reply struct {
	Text      string        `yaml:"text"`
	Reasoning string        `yaml:"reasoning"`
	ToolCalls []toolCall    `yaml:"tool_calls"`
	Usage     *usage        `yaml:"usage"`
	Finish    hub.Reason    `yaml:"finish"`
	Error     *failure      `yaml:"error"`
	Delay     time.Duration `yaml:"delay"`
}

type toolCall struct {
	Name  string `yaml:"name"`
	Input any    `yaml:"input"`
	input string // as text
}

type usage struct {
	Input      int64 `yaml:"input"`
	CacheRead  int64 `yaml:"cache_read"`
	CacheWrite int64 `yaml:"cache_write"`
	Output     int64 `yaml:"output"`
	Reasoning  int64 `yaml:"reasoning"`
}

type failure struct {
	Status     int           `yaml:"status"`
	Message    string        `yaml:"message"`
	Code       string        `yaml:"code"`
	RetryAfter time.Duration `yaml:"retry_after"`
}

// empty reports whether the reply has no content and must be filled in.
func (r *reply) empty() bool {
	return r.Text == "" && r.Reasoning == "" && len(r.ToolCalls) == 0 && r.Error == nil
}

// Load reads the script in a file. Without a file name it returns a Script that generates
// all answers automatically. Errors give the reason and the place.
func Load(name string) (*Script, error) {
	if name == "" {
		return new(Script), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read the script: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the script: %w", err)
	}
	s, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("script %s: %w", name, err)
	}
	return s, nil
}

// Parse parses a script. Errors: see Load.
func Parse(b []byte) (*Script, error) {
	if len(b) > maxFile {
		return nil, fmt.Errorf("it has more than %d MiB", maxFile>>20)
	}
	var f file
	if err := decode(b, &f); err != nil && !errors.Is(err, io.EOF) { // io.EOF: an empty script
		return nil, err
	}
	if len(f.Replies) > maxReplies {
		return nil, fmt.Errorf("it has %d replies; at most %d are possible", len(f.Replies), maxReplies)
	}
	s := &Script{dimensions: f.Embeddings.Dimensions}
	if s.dimensions < 0 || s.dimensions > maxDimensions {
		return nil, fmt.Errorf("embeddings.dimensions is %d; it must be 1 to %d", s.dimensions, maxDimensions)
	}
	for i := range f.Replies {
		r, err := f.Replies[i].rule()
		if err != nil {
			return nil, fmt.Errorf("reply %d: %w", i+1, err)
		}
		s.rules = append(s.rules, r)
	}
	return s, nil
}

func decode(b []byte, into *file) (err error) {
	defer func() {
		if p := recover(); p != nil { // the YAML library panics on some damaged input
			err = fmt.Errorf("it is not YAML: %v", p)
		}
	}()
	return yaml.NewDecoder(bytes.NewReader(b), yaml.Strict()).Decode(into)
}

func (f *fileRule) rule() (rule, error) {
	r := rule{turn: f.Turn, replies: f.Sequence}
	if len(f.Sequence) == 0 {
		r.replies = []reply{f.Reply}
	} else if !f.Reply.empty() || f.Reply.Usage != nil || f.Reply.Finish != "" || f.Reply.Delay != 0 {
		return r, errors.New("has a sequence and an answer of its own; put that into the sequence")
	}
	if f.Match != "" {
		match, err := regexp.Compile(f.Match)
		if err != nil {
			return r, fmt.Errorf("match: %w", err)
		}
		r.match = match
	}
	switch {
	case f.Turn < 0:
		return r, fmt.Errorf("turn is %d; the first answer of a conversation is 1", f.Turn)
	case len(r.replies) > maxReplies:
		return r, fmt.Errorf("its sequence has %d replies; at most %d are possible", len(r.replies), maxReplies)
	}
	for i := range r.replies {
		if err := r.replies[i].check(); err != nil {
			if len(f.Sequence) > 0 {
				err = fmt.Errorf("sequence %d: %w", i+1, err)
			}
			return r, err
		}
	}
	return r, nil
}

// reasons are the valid values of finish.
var reasons = []hub.Reason{"", hub.Stop, hub.Length, hub.ToolCalls, hub.ContentFilter, hub.Failed, hub.OtherReason}

func (r *reply) check() error {
	switch {
	case r.Delay < 0 || r.Delay > maxDelay:
		return fmt.Errorf("delay is %v; it must be 0 to %v", r.Delay, maxDelay)
	case !slices.Contains(reasons, r.Finish):
		return fmt.Errorf("finish is %q; it must be stop, length, tool-calls, content-filter, error or other", r.Finish)
	case len(r.ToolCalls) > maxToolCalls:
		return fmt.Errorf("it has %d tool calls; at most %d are possible", len(r.ToolCalls), maxToolCalls)
	}
	for i := range r.ToolCalls {
		if err := r.ToolCalls[i].check(); err != nil {
			return fmt.Errorf("tool call %d: %w", i+1, err)
		}
	}
	if u := r.Usage; u != nil {
		if min(u.Input, u.CacheRead, u.CacheWrite, u.Output, u.Reasoning) < 0 {
			return errors.New("usage has a number below 0")
		}
		if u.CacheRead+u.CacheWrite > u.Input || u.Reasoning > u.Output {
			return errors.New("usage has more in a part than in all: cache_read and cache_write are parts of input, reasoning is a part of output")
		}
	}
	if e := r.Error; e != nil {
		if e.Status < 400 || e.Status > 599 {
			return fmt.Errorf("error.status is %d; it must be 400 to 599", e.Status)
		}
		if e.RetryAfter < 0 {
			return fmt.Errorf("error.retry_after is %v; it must not be below 0", e.RetryAfter)
		}
		if e.Message == "" {
			e.Message = "the script says that this fails"
			if text := http.StatusText(e.Status); text != "" {
				e.Message += ": " + text
			}
		}
	}
	return nil
}

func (c *toolCall) check() error {
	if c.Name == "" {
		return errors.New("it has no name")
	}
	switch input := c.Input.(type) {
	case nil:
		c.input = "{}"
	case string:
		c.input = input
	default:
		b, err := json.Marshal(input)
		if err != nil {
			return fmt.Errorf("its input cannot be JSON: %w", err)
		}
		c.input = string(b)
	}
	return nil
}
