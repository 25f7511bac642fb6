// Package workflow has the names of the real one that the analysis knows, and
// some that users call.
package workflow

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

type Context interface {
	Now() time.Time
	Rand() *rand.Rand
	NewID() string
	Logger() *slog.Logger
	Err() error
}

type (
	Definition[In, Out any] struct{}
	StepDef[In, Out any]    struct{}
	Future[T any]           struct{}
)

func Define[In, Out any](name string, fn func(Context, In) (Out, error)) *Definition[In, Out] {
	time.Now() // the SDK itself may
	return nil
}

func Step[In, Out any](name string, fn func(context.Context, In) (Out, error)) *StepDef[In, Out] {
	return nil
}

func (s *StepDef[In, Out]) Run(ctx Context, in In) (out Out, err error) { return }
func (s *StepDef[In, Out]) Go(ctx Context, in In) *Future[Out]          { return nil }
func (f *Future[T]) Get(ctx Context) (v T, err error)                   { return }

func Do[T any](ctx Context, name string, fn func(context.Context) (T, error)) (v T, err error) {
	return
}
func Go[T any](ctx Context, fn func(Context) (T, error)) *Future[T] { return nil }
func Sleep(ctx Context, d time.Duration) error                      { return nil }
