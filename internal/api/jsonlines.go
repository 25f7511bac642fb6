package api

import (
	"encoding/json"
	"fmt"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// JSONLines is the Encoder of most streams: each value is a line of JSON.
type JSONLines[T any] struct{}

var _ Encoder[any] = JSONLines[any]{}

func (JSONLines[T]) Append(dst []byte, v T) ([]byte, error) { return AppendLine(dst, v) }
func (JSONLines[T]) Held() bool                             { return false }
func (JSONLines[T]) Release(dst []byte) []byte              { return dst }
func (JSONLines[T]) AppendError(dst []byte, e *cay.Error) []byte {
	return AppendErrorLine(dst, wire.ErrorBody{Error: wire.FromError(e)})
}

// AppendLine appends v as a line of JSON.
func AppendLine[T any](dst []byte, v T) ([]byte, error) {
	var line []byte
	var err error
	if m, ok := any(v).(json.Marshaler); ok {
		line, err = m.MarshalJSON() // without the second look that json.Marshal takes
	} else {
		line, err = json.Marshal(v)
	}
	if err != nil {
		return dst, fmt.Errorf("encode a line: %w", err)
	}
	return append(append(dst, line...), '\n'), nil
}

// AppendErrorLine appends the last line of a stream that failed.
func AppendErrorLine(dst []byte, body wire.ErrorBody) []byte {
	dst, err := AppendLine(dst, body)
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return dst
}
