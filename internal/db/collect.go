package db

import (
	"context"
	"database/sql"
)

// Querier is a database, or a transaction of it.
type Querier interface {
	Query(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

var (
	_ Querier = (*DB)(nil)
	_ Querier = (*Tx)(nil)
)

// Scanner is one row of a result.
type Scanner interface{ Scan(dest ...any) error }

// Collect runs a query and returns what scan makes of each row, nil if there are no rows.
// Errors have the codes of Error.
func Collect[T any](ctx context.Context, q Querier, scan func(Scanner) (T, error), query string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, Error(err)
		}
		all = append(all, v)
	}
	if err := rows.Err(); err != nil {
		return nil, Error(err)
	}
	return all, nil
}

// Column scans a row of a single column, for Collect.
func Column[T any](row Scanner) (v T, err error) {
	err = row.Scan(&v)
	return v, err
}
