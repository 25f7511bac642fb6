package ledger

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	jsonexp "github.com/go-json-experiment/json"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/db"
)

const (
	// foldRows is the number of journal rows that one transaction moves; each has up to
	// groupSize records, and the writer waits during the transaction.
	foldRows = 4
	// pruneRows is the number of rows that one transaction deletes.
	pruneRows = 500
	// requestColumns are the columns of gateway_requests; insertRows is the number of
	// rows per INSERT, which is far cheaper than one row each.
	requestColumns = `id, created_at, team_id, project_id, key_id, user_id, session, surface, model, asked, provider, byok, status, cost, market_cost,
		input, cache_read, cache_write, cache_write_1h, output, reasoning, estimated, latency, first_token, record`
	columnCount = 25
	insertRows  = 16
)

// insertRequests is the statement that inserts n requests. A row whose id exists is
// replaced; ids come from NewID, so it is the same record.
func insertRequests(n int) string {
	row := "(" + strings.Repeat("?, ", columnCount-1) + "?)"
	return `INSERT OR REPLACE INTO gateway_requests (` + requestColumns + `) VALUES ` + strings.Repeat(row+", ", n-1) + row
}

var insertOne, insertMany = insertRequests(1), insertRequests(insertRows)

// fold moves some of the oldest records from the journal to the table of requests, and
// returns the number moved.
func (s store) fold(ctx context.Context) (n int, err error) {
	err = s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		n = 0
		last, rows, err := oldest(ctx, tx)
		if err != nil || len(rows) == 0 {
			return err
		}
		var all []folded
		for _, records := range rows {
			for line := range bytes.Lines(records) {
				r := folded{record: string(bytes.TrimSuffix(line, []byte("\n")))}
				if err := jsonexp.Unmarshal(line, &r.columns); err != nil {
					return fmt.Errorf("the journal has a record that makes no sense, up to its row %d: %w", last, err)
				}
				all = append(all, r)
			}
		}
		if err := insertAll(ctx, tx, all); err != nil {
			return err
		}
		n = len(all)
		_, err = tx.Exec(ctx, `DELETE FROM gateway_journal WHERE seq <= ?`, last)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("move records from the journal: %w", err)
	}
	return n, nil
}

// folded is a record that is being moved from the journal to the table of requests.
type folded struct {
	columns
	record string // its JSON
}

// columns are the members of gateway.Request that are stored in columns, or as tags. The
// other members stay in the JSON and are not decoded by fold.
type columns struct {
	ID         string                `json:"id"`
	CreatedAt  time.Time             `json:"created_at"`
	TeamID     string                `json:"team_id"`
	ProjectID  string                `json:"project_id"`
	KeyID      string                `json:"key_id"`
	User       string                `json:"user"`
	Tags       []string              `json:"tags"`
	Session    string                `json:"session"`
	Surface    string                `json:"surface"`
	Model      string                `json:"model"`
	Served     string                `json:"served"`
	Provider   string                `json:"provider"`
	BYOK       bool                  `json:"byok"`
	Status     gateway.RequestStatus `json:"status"`
	Tokens     gateway.Tokens        `json:"tokens"`
	Cost       *gateway.Money        `json:"cost"`
	MarketCost *gateway.Money        `json:"market_cost"`
	Latency    gateway.Millis        `json:"latency_ms"`
	FirstToken gateway.Millis        `json:"first_token_ms"`
}

// oldest returns the oldest rows of the journal and the sequence number of the last row
// returned.
func oldest(ctx context.Context, tx *db.Tx) (last int64, all [][]byte, err error) {
	rows, err := tx.Query(ctx, `SELECT seq, records FROM gateway_journal ORDER BY seq LIMIT ?`, foldRows)
	if err != nil {
		return 0, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var records []byte
		if err := rows.Scan(&last, &records); err != nil {
			return 0, nil, err
		}
		all = append(all, records)
	}
	return last, all, rows.Err()
}

func insertAll(ctx context.Context, tx *db.Tx, all []folded) error {
	var args []any
	for i := 0; i < len(all); {
		n, query := 1, insertOne
		if len(all)-i >= insertRows {
			n, query = insertRows, insertMany
		}
		args = args[:0]
		for j := range all[i : i+n] {
			args = appendColumns(args, &all[i+j])
		}
		if _, err := tx.Exec(ctx, query, args...); err != nil {
			return err
		}
		i += n
	}
	for i := range all {
		for _, tag := range all[i].Tags {
			if _, err := tx.Exec(ctx, `INSERT OR IGNORE INTO gateway_request_tags (request_id, tag) VALUES (?, ?)`, all[i].ID, tag); err != nil {
				return err
			}
		}
	}
	return nil
}

func appendColumns(args []any, r *folded) []any {
	model := r.Served
	if model == "" {
		model = r.Model
	}
	return append(args, r.ID, r.CreatedAt.UnixMilli(), r.TeamID, r.ProjectID, r.KeyID, r.User, r.Session, r.Surface, model, r.Model, r.Provider, r.BYOK, string(r.Status),
		moneyOrNull(r.Cost), moneyOrNull(r.MarketCost), r.Tokens.Input, r.Tokens.CacheRead, r.Tokens.CacheWrite, r.Tokens.CacheWrite1h,
		r.Tokens.Output, r.Tokens.Reasoning, r.Tokens.Estimated, micros(r.Latency), micros(r.FirstToken), r.record)
}

// micros converts a duration to its stored form, microseconds, or NULL if it is unset.
func micros(m gateway.Millis) any {
	if m <= 0 || math.IsNaN(float64(m)) || m > 1e12 {
		return nil
	}
	return int64(m * 1000)
}

func moneyOrNull(m *gateway.Money) any {
	if m == nil {
		return nil
	}
	return int64(*m)
}

// request returns a request that is visible to a team, or to one of its projects. Errors:
// not_found.
func (s store) request(ctx context.Context, team, project, id string) (*gateway.Request, error) {
	var record string
	err := s.db.QueryRow(ctx, `SELECT record FROM gateway_requests WHERE id = ? AND team_id = ? AND (? = '' OR project_id = ?)`, id, team, project, project).Scan(&record)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, cay.Errorf(cay.NotFound, "request %q not found", id)
	}
	if err != nil {
		return nil, fmt.Errorf("read request: %w", err)
	}
	r, err := decodeRequest(record)
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", id, err)
	}
	return r, nil
}

// has reports whether the table of requests contains the id.
func (s store) has(ctx context.Context, id string) (there bool, err error) {
	err = s.db.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM gateway_requests WHERE id = ?)`, id).Scan(&there)
	return there, err
}

// decodeRequest decodes a record. Records of older versions may have null attempts.
func decodeRequest(record string) (*gateway.Request, error) {
	r := new(gateway.Request)
	if err := json.Unmarshal([]byte(record), r); err != nil {
		return nil, err
	}
	if r.Attempts == nil {
		r.Attempts = []gateway.Attempt{}
	}
	return r, nil
}

// selection builds the WHERE clause that selects requests.
type selection struct {
	where strings.Builder
	args  []any
}

func selectRequests(team, project string) *selection {
	s := new(selection)
	s.where.WriteString(`r.team_id = ?`)
	s.args = append(s.args, team)
	s.equal("project_id", project)
	return s
}

// equal adds the condition column = v, unless v is empty.
func (s *selection) equal(column, v string) {
	if v != "" {
		s.and(`r.`+column+` = ?`, v)
	}
}

// indexed adds conditions that a filter implies, so that SQLite uses partial indexes. The
// indexes of some columns leave out one value; SQLite uses such an index only if the
// statement excludes that value.
func (s *selection) indexed(f *gateway.RequestFilter) {
	if f.User != "" {
		s.and(`r.user_id <> ''`)
	}
	if f.Session != "" {
		s.and(`r.session <> ''`)
	}
	if f.Status != "" && f.Status != gateway.Succeeded {
		s.and(`r.status <> 'succeeded'`)
	}
}

func (s *selection) and(condition string, args ...any) {
	s.where.WriteString(` AND ` + condition)
	s.args = append(s.args, args...)
}

func (s *selection) times(since, until time.Time) {
	if !since.IsZero() {
		s.and(`r.created_at >= ?`, since.UnixMilli())
	}
	if !until.IsZero() {
		s.and(`r.created_at < ?`, until.UnixMilli())
	}
}

func (s *selection) model(name string) {
	if name != "" {
		s.and(`(r.model = ? OR r.asked = ?)`, name, name)
	}
}

// tags selects requests that have at least one of the tags; empty tags are ignored.
func (s *selection) tags(tags ...string) {
	var args []any
	for _, tag := range tags {
		if tag != "" {
			args = append(args, tag)
		}
	}
	if len(args) > 0 {
		s.and(`EXISTS (SELECT 1 FROM gateway_request_tags t WHERE t.request_id = r.id AND t.tag IN (?`+strings.Repeat(`, ?`, len(args)-1)+`))`, args...)
	}
}

func (s *selection) filter(f *gateway.RequestFilter) {
	s.times(f.Since, f.Until)
	s.equal("project_id", f.ProjectID)
	s.equal("key_id", f.KeyID)
	s.equal("user_id", f.User)
	s.equal("session", f.Session)
	s.equal("provider", f.Provider)
	s.equal("status", string(f.Status))
	s.model(f.Model)
	s.tags(f.Tag)
}

// requests returns requests, newest first.
func (s store) requests(ctx context.Context, team, project string, f gateway.RequestFilter, after position, limit int) ([]gateway.Request, error) {
	sel := selectRequests(team, project)
	sel.filter(&f)
	sel.indexed(&f)
	if after.ID != "" {
		sel.and(`(r.created_at, r.id) < (?, ?)`, after.At, after.ID)
	}
	rows, err := s.db.Query(ctx, `SELECT r.record FROM gateway_requests r WHERE `+sel.where.String()+` ORDER BY r.created_at DESC, r.id DESC LIMIT ?`, append(sel.args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("list requests: %w", err)
	}
	defer rows.Close()
	var all []gateway.Request
	for rows.Next() {
		var record string
		if err := rows.Scan(&record); err != nil {
			return nil, fmt.Errorf("list requests: %w", db.Error(err))
		}
		r, err := decodeRequest(record)
		if err != nil {
			return nil, fmt.Errorf("list requests: %w", err)
		}
		all = append(all, *r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list requests: %w", db.Error(err))
	}
	return all, nil
}

// pruneRequests deletes a batch of requests created before a time, and returns the number
// deleted. It looks only at the requests that were recorded first; an old request that
// was recorded late is deleted in a later batch.
func (s store) pruneRequests(ctx context.Context, before time.Time) (n int64, err error) {
	err = s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		const old = `(SELECT %s FROM (SELECT seq, id, created_at FROM gateway_requests ORDER BY seq LIMIT ?) WHERE created_at < ?)`
		if _, err := tx.Exec(ctx, `DELETE FROM gateway_request_tags WHERE request_id IN `+fmt.Sprintf(old, "id"), pruneRows, before.UnixMilli()); err != nil {
			return err
		}
		res, err := tx.Exec(ctx, `DELETE FROM gateway_requests WHERE seq IN `+fmt.Sprintf(old, "seq"), pruneRows, before.UnixMilli())
		n = res.Rows
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("delete old requests: %w", err)
	}
	return n, nil
}
