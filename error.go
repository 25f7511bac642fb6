package cay

import (
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// Code is the kind of failure of an Error. Codes are part of the API: HTTP bodies contain
// them, and clients rebuild the same error from them.
type Code string

// The codes. internal/api maps each to one HTTP status, cmd/cay to one exit code.
const (
	Invalid           Code = "invalid"              // the request is wrong: a field, its value, or the combination
	Unauthenticated   Code = "unauthenticated"      // no token, or one that is unknown, expired or revoked
	PermissionDenied  Code = "permission_denied"    // a valid token that may not do this
	NotFound          Code = "not_found"            // no such object, or one of another tenant
	FileNotFound      Code = "file_not_found"       // no such file in the sandbox
	AlreadyExists     Code = "already_exists"       // the name or path is taken
	Conflict          Code = "conflict"             // the object is in a state that does not allow this
	Stopped           Code = "sandbox_stopped"      // the sandbox no longer runs
	ExecutableMissing Code = "executable_not_found" // the program to run does not exist in the sandbox
	TooLarge          Code = "too_large"            // a body, file or archive over its limit
	QuotaExceeded     Code = "quota_exceeded"       // a team's quota or rate is used up; see Error.RetryAfter
	NoSpace           Code = "no_space"             // the sandbox's disk, or the host's, is full
	NotSupported      Code = "not_supported"        // this build, platform or configuration cannot do it
	SourceUnavailable Code = "source_unavailable"   // the source of a new sandbox cannot be fetched now
	Unavailable       Code = "unavailable"          // a part we depend on does not answer; trying again may help
	DeadlineExceeded  Code = "deadline_exceeded"    // the time given was not enough
	Canceled          Code = "canceled"             // the caller gave up
	Internal          Code = "internal"             // our fault; details are in the daemon's log only
)

// Error is a failure with a code and a sentence for the user. An Error has the same value
// in process and over the wire, so errors.Is gives the same result in both cases.
type Error struct {
	Code    Code
	Message string
	// Hint suggests a remedy. May be empty.
	Hint string
	// RetryAfter is how long to wait before trying again. Zero if unknown.
	RetryAfter time.Duration

	cause error
}

// Errorf returns an Error whose message is the formatted text. A %w verb keeps
// the wrapped error as the cause, as with fmt.Errorf.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), cause: errors.Unwrap(err)}
}

// WithHint returns a copy of e with a hint.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

func (e *Error) Error() string { return e.Message }

func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is an *Error of the same code whose message is
// empty or equal, so that errors.Is(err, &cay.Error{Code: cay.NotFound}) works. For programs
// that know errors of files, FileNotFound is fs.ErrNotExist, AlreadyExists fs.ErrExist and
// PermissionDenied fs.ErrPermission.
func (e *Error) Is(target error) bool {
	if t, ok := target.(*Error); ok {
		return t.Code == e.Code && (t.Message == "" || t.Message == e.Message)
	}
	switch e.Code {
	case FileNotFound:
		return target == fs.ErrNotExist
	case AlreadyExists:
		return target == fs.ErrExist
	case PermissionDenied:
		return target == fs.ErrPermission
	}
	return false
}

// CodeOf returns the code of the first Error in err's chain, Internal if the chain has no
// Error, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}
