package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
)

// tail stores, in two files, the records that are not yet in the database, so that the
// death of the process loses no record: Settle appends a record before the record's group
// is written to the database. Records go to one file while a group with all records of
// the other file is being written. A nil *tail stores nothing. It is guarded by memory.mu.
type tail struct {
	files  [2]*os.File
	sizes  [2]int64
	active int
	failed bool // the last write
}

// openTail opens or creates the two files, path with .0 and .1 appended.
func openTail(path string) (*tail, error) {
	t := new(tail)
	for i := range t.files {
		f, err := os.OpenFile(fmt.Sprintf("%s.%d", path, i), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open the file of records that are not in the database yet: %w", err), t.close())
		}
		t.files[i] = f
	}
	return t, nil
}

// append appends a record as a line. A record that cannot be appended is left to the
// database; append returns only the first of several errors.
func (t *tail) append(line []byte) error {
	if t == nil {
		return nil
	}
	n, err := t.files[t.active].Write(line)
	t.sizes[t.active] += int64(n)
	return t.first(err)
}

func (t *tail) first(err error) error {
	if failed := t.failed; failed && err != nil {
		return nil
	}
	t.failed = err != nil
	return err
}

// turn switches files when a group takes all queued records; end may be called once the
// group is written.
func (t *tail) turn() {
	if t != nil && t.sizes[1-t.active] == 0 { // else a group failed, and this group contains its records
		t.active = 1 - t.active
	}
}

// end deletes the records that were queued at the last turn.
func (t *tail) end() error {
	if t == nil || t.sizes[1-t.active] == 0 {
		return nil
	}
	return t.first(t.clear(1 - t.active))
}

func (t *tail) clear(i int) error {
	if err := t.files[i].Truncate(0); err != nil {
		return err
	}
	t.sizes[i] = 0
	return nil
}

func (t *tail) close() (err error) {
	if t == nil {
		return nil
	}
	for _, f := range t.files {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// read returns the stored records by id. An incomplete last line is ignored.
func (t *tail) read() (map[string][]byte, error) {
	records := make(map[string][]byte)
	for _, f := range t.files {
		all, err := io.ReadAll(f)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.Name(), err)
		}
		for line := range bytes.Lines(all) {
			if id := gjson.GetBytes(line, "id").Str; id != "" && line[len(line)-1] == '\n' && gjson.ValidBytes(line) {
				records[id] = line
			}
		}
	}
	return records, nil
}

// recover writes to the database the records that the last process left in the files, and
// returns them. The costs of these records are part of the amounts that budgets held at
// that time.
func (t *tail) recover(ctx context.Context, s store, log *slog.Logger) ([]*gateway.Request, error) {
	if t == nil {
		return nil, nil
	}
	records, err := t.read()
	if err != nil {
		return nil, err
	}
	var brought []*gateway.Request
	if len(records) > 0 {
		if brought, err = bring(ctx, s, log, records); err != nil {
			return nil, fmt.Errorf("bring records to the database that the last process left: %w", err)
		}
	}
	return brought, errors.Join(t.clear(0), t.clear(1))
}

// bring writes the records that the database does not have.
func bring(ctx context.Context, s store, log *slog.Logger, records map[string][]byte) (brought []*gateway.Request, err error) {
	for {
		n, err := s.fold(ctx)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
	}
	number, err := s.commits(ctx)
	if err != nil {
		return nil, err
	}
	g := &group{number: number + 1}
	for id, line := range records {
		known, err := s.has(ctx, id)
		if err != nil {
			return nil, err
		}
		if known {
			continue
		}
		r, err := decodeRequest(string(line))
		if err != nil {
			return nil, fmt.Errorf("request %s: %w", id, err)
		}
		brought = append(brought, r)
		g.holds = append(g.holds, nil)
		g.records = append(g.records, line...)
	}
	if len(brought) == 0 {
		return nil, nil
	}
	log.InfoContext(ctx, "records that the last process left are in the database now", "count", len(brought))
	return brought, s.commit(ctx, g)
}
