package main

import (
	"context"
	"errors"

	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/workflow"
)

// openWorkflows opens a database that no program serves. The engine has no
// worker: calls that need no worker, such as creating and cancelling, work;
// runs continue when their program opens the database again.
func openWorkflows(ctx context.Context, db string) (workflow.Backend, error) {
	var store workflowd.Store
	var err error
	if isPostgres(db) {
		store, err = sqlstore.OpenPostgres(ctx, db, sqlstore.PostgresOptions{Name: "cay workflow"})
	} else {
		store, err = sqlstore.OpenSQLite(ctx, db, sqlstore.SQLiteOptions{Existing: true})
	}
	if err != nil {
		return nil, err
	}
	e, err := workflowd.Open(ctx, workflowd.Config{Store: store})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return openedWorkflows{e.For(""), e}, nil
}

// openedWorkflows is an engine's backend, which ends with it.
type openedWorkflows struct {
	workflow.Backend
	engine *workflowd.Engine
}

func (o openedWorkflows) Close() error { return o.engine.Close() }
