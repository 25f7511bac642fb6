package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
)

// tail has the records that the database has not got yet, in two files, so that
// the end of the process takes none with it: a record is appended as its request
// is settled, before a group of them is written to the database. Records go to one
// of the files while a group with all of the other is on its way. A nil *tail keeps
// nothing. It is guarded by Book.mu.
type tail struct {
	files  [2]*os.File
	sizes  [2]int64
	active int
	failed bool // the last write
}

// openTail opens the files, which are made if they are missing: path with .0 and .1.
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

// append adds a record: a line. What cannot be added is left to the database, and
// the first error of several is returned.
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

// turn is called when all records that are there go into a group: end may be called
// once that is written.
func (t *tail) turn() {
	if t != nil && t.sizes[1-t.active] == 0 { // else a group was not written: what it had is in this one
		t.active = 1 - t.active
	}
}

// end forgets the records that were there at the last turn.
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

// read returns the records there are by their ids, in no order. What the last write
// has left of a line is none.
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

// recover brings the records to the database that the last process left behind, and
// returns them. What they cost is part of what their budgets held then.
func (b *Book) recover(ctx context.Context) ([]*gateway.Request, error) {
	if b.tail == nil {
		return nil, nil
	}
	records, err := b.tail.read()
	if err != nil {
		return nil, err
	}
	var brought []*gateway.Request
	if len(records) > 0 {
		if brought, err = b.bring(ctx, records); err != nil {
			return nil, fmt.Errorf("bring records to the database that the last process left: %w", err)
		}
	}
	return brought, errors.Join(b.tail.clear(0), b.tail.clear(1))
}

// bring writes those of the records that the database has not got.
func (b *Book) bring(ctx context.Context, records map[string][]byte) (brought []*gateway.Request, err error) {
	for {
		n, err := b.store.fold(ctx)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
	}
	number, err := b.store.commits(ctx)
	if err != nil {
		return nil, err
	}
	g := &group{number: number + 1}
	for id, line := range records {
		known, err := b.store.has(ctx, id)
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
	b.log.InfoContext(ctx, "records that the last process left are in the database now", "count", len(brought))
	return brought, b.store.commit(ctx, g)
}

// settled tells the budgets of records that were brought how much of what counts as
// unsettled they are.
func (b *Book) settled(ctx context.Context, brought []*gateway.Request) error {
	for _, r := range brought {
		c := &Caller{TeamID: r.TeamID, ProjectID: r.ProjectID, KeyID: r.KeyID, User: r.User, Tags: r.Tags}
		b.mu.Lock()
		shares, missing := b.balancesOfLocked(nil, c)
		b.mu.Unlock()
		if len(missing) > 0 {
			if err := b.read(ctx, missing); err != nil {
				return err
			}
			b.mu.Lock()
			shares, _ = b.balancesOfLocked(nil, c)
			b.mu.Unlock()
		}
		b.mu.Lock()
		for _, s := range shares {
			a := s.balance
			a.roll(b.now())
			if cost := a.charge(r); cost > 0 { // nothing is unsettled of a new period
				a.unsettled = max(0, a.unsettled-cost)
				b.markLocked(a)
			}
		}
		b.mu.Unlock()
	}
	return nil
}
