package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay/workflow"
)

// world is everything outside of this program.
var world shop

// shop is the world of this example: a file with a line for every request. The
// shop carries out the request of each key only once.
type shop struct {
	ledger string
	slow   time.Duration
	out    io.Writer
}

var ledgerMu sync.Mutex // guards the ledger

// do appends a line, unless the file has a line with the step's key.
func (s shop) do(ctx context.Context, format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	select {
	case <-time.After(s.slow):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	ledgerMu.Lock()
	defer ledgerMu.Unlock()
	f, err := os.OpenFile(s.ledger, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() // every write was checked
	done, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	key := workflow.StepInfo(ctx).IdempotencyKey
	if strings.Contains(string(done), key+"\t") {
		fmt.Fprintf(s.out, "%s: was done before\n", what)
		return nil
	}
	if _, err := fmt.Fprintf(f, "%s\t%s\n", key, what); err != nil {
		return err
	}
	fmt.Fprintln(s.out, what)
	return nil
}
