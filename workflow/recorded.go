package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// RecordedError is an error in the form that a log keeps: type, message, code and causes,
// but not the value itself. The workflow's code gets the same error from a step whether
// the step ran just now or before a crash.
//
// errors.Is finds errors given to RegisterError, those of the standard library
// that programs compare with (context.Canceled, io.EOF, fs.ErrNotExist and the
// like), and *cay.Error by its code; errors.As finds *cay.Error and registered
// types.
type RecordedError struct {
	// Type is the name of the error's Go type, or the name it was registered by.
	Type    string
	Message string
	// Code is the code of a *cay.Error, else "".
	Code cay.Code
	// Causes are the errors that the error wrapped, at most one unless errors were
	// joined.
	Causes []error

	value error // of a registered type, a registered sentinel, or a *cay.Error; may be nil
}

func (e *RecordedError) Error() string { return e.Message }

// Unwrap returns the causes.
func (e *RecordedError) Unwrap() []error { return e.Causes }

// Is reports whether target is the recorded error, as far as the log tells.
func (e *RecordedError) Is(target error) bool { return e.value != nil && errors.Is(e.value, target) }

// As sets target to the value that was recorded, if its type is known.
func (e *RecordedError) As(target any) bool { return e.value != nil && errors.As(e.value, target) }

// Bounds of a recorded error. The rest is cut off, because a log must not hold large
// errors.
const (
	maxErrorDepth = 32
	maxErrorNodes = 100
	maxErrorWords = 16 << 10
	maxErrorData  = 64 << 10
)

// errorRecord is the payload of step_failed, step_retrying and run_failed, JSON in
// an envelope.
type errorRecord struct {
	Type       string          `json:"type"`
	Message    string          `json:"message"`
	Code       cay.Code        `json:"code,omitempty"`
	Hint       string          `json:"hint,omitempty"`
	RetryAfter int64           `json:"retry_after_ms,omitempty"`
	Data       json.RawMessage `json:"data,omitempty"` // fields of a registered type
	Causes     []errorRecord   `json:"causes,omitempty"`
}

// recordError returns the record of err.
func recordError(err error) errorRecord {
	nodes := maxErrorNodes
	return recordNode(err, maxErrorDepth, &nodes)
}

func recordNode(err error, depth int, nodes *int) errorRecord {
	*nodes--
	r := errorRecord{Type: reflect.TypeOf(err).String(), Message: cut(wordsOf(err), maxErrorWords)}
	switch e := err.(type) {
	case *cay.Error:
		r.Code, r.Hint, r.RetryAfter = e.Code, cut(e.Hint, maxErrorWords), e.RetryAfter.Milliseconds()
	case *RecordedError:
		// The error was read from a log and is returned again: it keeps its type and
		// code.
		r.Type, r.Code = e.Type, e.Code
		if e.value != nil {
			v := recordNode(e.value, 1, new(int))
			r.Code, r.Hint, r.RetryAfter, r.Data = v.Code, v.Hint, v.RetryAfter, v.Data
		}
	default:
		if name, data, ok := errorTypes.record(err); ok {
			r.Type, r.Data = name, data
		}
	}
	if depth <= 1 {
		return r
	}
	var causes []error
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		if c := e.Unwrap(); c != nil {
			causes = []error{c}
		}
	case interface{ Unwrap() []error }:
		causes = e.Unwrap()
	}
	for _, c := range causes {
		if c != nil && *nodes > 0 {
			r.Causes = append(r.Causes, recordNode(c, depth-1, nodes))
		}
	}
	return r
}

// error returns the error that r describes.
func (r *errorRecord) error() error {
	causes := make([]error, len(r.Causes))
	for i := range r.Causes {
		causes[i] = r.Causes[i].error()
	}
	// Errors of this package that wrap another error get their own type again.
	if len(causes) == 1 {
		switch r.Type {
		case "*workflow.FatalError":
			return &FatalError{Err: causes[0]}
		case "*workflow.StepError":
			e := &StepError{Err: causes[0]}
			if json.Unmarshal(r.Data, e) == nil {
				return e
			}
		case "*workflow.RunFailedError":
			e := &RunFailedError{Cause: causes[0]}
			if json.Unmarshal(r.Data, e) == nil {
				return e
			}
		}
	}
	e := &RecordedError{Type: r.Type, Message: r.Message, Code: r.Code, Causes: causes}
	if r.Code != "" {
		e.value = &cay.Error{Code: r.Code, Message: r.Message, Hint: r.Hint, RetryAfter: time.Duration(r.RetryAfter) * time.Millisecond}
	} else {
		e.value = errorTypes.value(r.Type, r.Data)
	}
	return e
}

// wordsOf returns err.Error(), also for broken errors: a nil pointer in an error must not
// crash the worker.
func wordsOf(err error) (s string) {
	defer func() {
		if p := recover(); p != nil {
			s = fmt.Sprintf("%T whose Error method panics: %v", err, p)
		}
	}()
	return err.Error()
}

// cut shortens s to n bytes and marks the cut.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + " ... (cut)"
}

// RegisterError registers an error under a name, so that errors.Is or errors.As find the
// error in errors read from logs. The name is stored in logs and must not change. If the
// error's type has exported fields, or marshals itself, the whole type is registered, and
// its values are stored as JSON; an error of another type, such as errors.New returns, is
// registered as a single value. Call RegisterError before a Worker or a Client is used,
// for example in a package variable:
//
//	var ErrSoldOut = workflow.RegisterError("shop.sold_out", errors.New("sold out"))
//
// It returns err, and panics if the name is already in use.
func RegisterError(name string, err error) error {
	errorTypes.register(name, err)
	return err
}

// errorTypes are the errors that keep their identity in logs.
var errorTypes = newErrorRegistry()

type errorRegistry struct {
	mu        sync.RWMutex // guards the fields below
	sentinels map[error]string
	types     map[reflect.Type]string
	byName    map[string]any // error or reflect.Type
}

func newErrorRegistry() *errorRegistry {
	r := &errorRegistry{sentinels: map[error]string{}, types: map[reflect.Type]string{}, byName: map[string]any{}}
	for name, err := range map[string]error{
		"context.Canceled":            context.Canceled,
		"context.DeadlineExceeded":    context.DeadlineExceeded,
		"io.EOF":                      io.EOF,
		"io.ErrUnexpectedEOF":         io.ErrUnexpectedEOF,
		"fs.ErrNotExist":              fs.ErrNotExist,
		"fs.ErrExist":                 fs.ErrExist,
		"fs.ErrPermission":            fs.ErrPermission,
		"workflow.ErrCancelled":       ErrCancelled,
		"workflow.ErrTimeout":         ErrTimeout,
		"workflow.ErrPoisoned":        ErrPoisoned,
		"workflow.ErrMaxEvents":       ErrMaxEvents,
		"*workflow.StepError":         &StepError{},
		"*workflow.PanicError":        &PanicError{},
		"*workflow.RunFailedError":    &RunFailedError{},
		"*workflow.RunCancelledError": &RunCancelledError{},
		"workflow.HookConflict":       &HookConflictError{},
		"*workflow.DivergenceError":   &DivergenceError{},
	} {
		r.register(name, err)
	}
	return r
}

func (r *errorRegistry) register(name string, err error) {
	if name == "" || err == nil {
		panic("workflow: RegisterError needs a name and an error")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var it any = err
	if t := reflect.TypeOf(err); describable(t) {
		it = t
		r.types[t] = name
	} else {
		r.sentinels[err] = name // an uncomparable value panics here, as it should
	}
	if old, taken := r.byName[name]; taken && old != it {
		panic(fmt.Sprintf("workflow: RegisterError: the name %q is taken", name))
	}
	r.byName[name] = it
}

// describable reports whether the JSON of different values of t differs.
func describable(t reflect.Type) bool {
	if t.Implements(reflect.TypeFor[json.Marshaler]()) {
		return true
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return t.Kind() != reflect.Pointer && t.Name() != ""
	}
	for i := range t.NumField() {
		if t.Field(i).IsExported() {
			return true
		}
	}
	return false
}

// record returns the name and fields of a registered error.
func (r *errorRegistry) record(err error) (name string, data json.RawMessage, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if name, ok := r.types[reflect.TypeOf(err)]; ok {
		data, jsonErr := json.Marshal(err)
		if jsonErr != nil || len(data) > maxErrorData {
			return "", nil, false // only its message is recorded then
		}
		return name, data, true
	}
	if !reflect.ValueOf(err).Comparable() {
		return "", nil, false
	}
	name, ok = r.sentinels[err]
	return name, nil, ok
}

// value returns the error with a name, nil if the name is unknown.
func (r *errorRegistry) value(name string, data json.RawMessage) error {
	r.mu.RLock()
	it := r.byName[name]
	r.mu.RUnlock()
	switch it := it.(type) {
	case reflect.Type:
		p := reflect.New(it)
		if json.Unmarshal(data, p.Interface()) != nil {
			return nil
		}
		err, _ := p.Elem().Interface().(error)
		if v := reflect.ValueOf(err); v.IsValid() && v.Kind() == reflect.Pointer && v.IsNil() {
			return nil // JSON "null"
		}
		return err
	case error:
		return it
	}
	return nil
}
