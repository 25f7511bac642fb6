package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/sandbox"
)

// Visitors of a label that is no longer served learn that the port is gone. The store
// remembers gone labels for goneLifetime, and at most maxGone labels.
const (
	goneLifetime = 30 * 24 * time.Hour
	maxGone      = 100_000
)

// SetURLs fills in the preview URL of each port.
func (s *Store) SetURLs(ports []sandbox.Port) {
	if s.opts.PreviewURL == nil {
		return
	}
	for i := range ports {
		ports[i].URL = s.opts.PreviewURL(ports[i].Label)
	}
}

// portsJSON encodes ports for the database, without their URLs, which may change.
func portsJSON(ports []sandbox.Port) (string, error) {
	kept := make([]sandbox.Port, len(ports))
	for i, p := range ports {
		p.URL = ""
		kept[i] = p
	}
	return toJSON(kept)
}

// insertPorts declares the ports of a new sandbox.
func insertPorts(ctx context.Context, tx *db.Tx, r *Row) error {
	for _, p := range r.Ports {
		if err := insertPort(ctx, tx, r.ID, p, r.CreatedAt); err != nil {
			return err
		}
	}
	return nil
}

func insertPort(ctx context.Context, tx *db.Tx, id string, p sandbox.Port, now time.Time) error {
	_, err := tx.Exec(ctx, `INSERT INTO sandbox_ports (label, sandbox_id, port, access, created_at) VALUES (?, ?, ?, ?, ?)`,
		p.Label, id, p.Port, p.Access, now.UnixMilli())
	return err
}

// setPorts makes want the ports of a sandbox; see Change.Ports. It also returns the
// labels that are gone or whose access has changed.
func setPorts(ctx context.Context, tx *db.Tx, id string, want []sandbox.Port, now time.Time) (ended map[string]bool, err error) {
	have, err := declaredPorts(ctx, tx, id)
	if err != nil {
		return nil, err
	}
	ended = make(map[string]bool)
	for _, p := range have {
		ended[p.Label] = true
	}
	ports := make([]sandbox.Port, 0, len(want)) // a new slice, because the transaction may run again with want
	keep := make(map[string]bool)
	for _, p := range want {
		if p.Label == "" {
			p.Label = have[p.Port].Label
		}
		if p.Label != "" && have[p.Port].Access == p.Access {
			delete(ended, p.Label)
		}
		keep[p.Label] = true
		ports = append(ports, p)
	}
	// Drop labels first: a port has one label at a time.
	if err := dropPorts(ctx, tx, id, keep, now); err != nil {
		return nil, err
	}
	for i := range ports {
		p := &ports[i]
		if p.Label == "" {
			p.Label = ident.NewLabel()
			if err := insertPort(ctx, tx, id, *p, now); err != nil {
				return nil, err
			}
			continue
		}
		if _, err := tx.Exec(ctx, `UPDATE sandbox_ports SET gone_at = NULL, epoch = epoch + (access <> ?), access = ? WHERE label = ?`,
			p.Access, p.Access, p.Label); err != nil {
			return nil, err
		}
	}
	text, err := portsJSON(ports)
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, `UPDATE sandboxes SET ports = ? WHERE id = ?`, text, id)
	return ended, err
}

// declaredPorts returns the ports of a sandbox, by number.
func declaredPorts(ctx context.Context, tx *db.Tx, id string) (map[int]sandbox.Port, error) {
	rows, err := tx.Query(ctx, `SELECT port, label, access FROM sandbox_ports WHERE sandbox_id = ? AND gone_at IS NULL`, id)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := make(map[int]sandbox.Port)
	for rows.Next() {
		var p sandbox.Port
		if err := rows.Scan(&p.Port, &p.Label, &p.Access); err != nil {
			return nil, err
		}
		all[p.Port] = p
	}
	return all, rows.Err()
}

// dropPorts marks the labels of a sandbox as gone, except those in keep.
func dropPorts(ctx context.Context, tx *db.Tx, id string, keep map[string]bool, now time.Time) error {
	have, err := declaredPorts(ctx, tx, id)
	if err != nil {
		return err
	}
	for _, p := range have {
		if keep[p.Label] {
			continue
		}
		if _, err := tx.Exec(ctx, `UPDATE sandbox_ports SET gone_at = ? WHERE label = ?`, now.UnixMilli(), p.Label); err != nil {
			return err
		}
	}
	return nil
}

// PruneLabels deletes the rows of gone labels that are older than goneLifetime or beyond
// maxGone.
func (s *Store) PruneLabels(ctx context.Context, now time.Time) error {
	return s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM sandbox_ports WHERE gone_at <= ?`, now.Add(-goneLifetime).UnixMilli()); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `DELETE FROM sandbox_ports WHERE gone_at <= (
			SELECT gone_at FROM sandbox_ports WHERE gone_at IS NOT NULL ORDER BY gone_at DESC LIMIT 1 OFFSET ?)`, maxGone)
		return err
	})
}

// Declared is the row of a label, with the state of its sandbox.
type Declared struct {
	SandboxID string
	Port      int
	Access    sandbox.PortAccess
	Epoch     int64
	Gone      bool
	Name      string
	Status    sandbox.Status // empty if the sandbox was deleted
	reason    sandbox.Reason
	message   string
}

// Declared returns the sandbox and port of a label. Errors: not_found.
func (s *Store) Declared(ctx context.Context, label string) (d Declared, err error) {
	var name, status, reason, message sql.NullString
	err = s.db.QueryRow(ctx, `SELECT p.sandbox_id, p.port, p.access, p.epoch, p.gone_at IS NOT NULL, s.name, s.status, s.reason, s.message
		FROM sandbox_ports p LEFT JOIN sandboxes s ON s.id = p.sandbox_id WHERE p.label = ?`, label).
		Scan(&d.SandboxID, &d.Port, &d.Access, &d.Epoch, &d.Gone, &name, &status, &reason, &message)
	if errors.Is(err, sql.ErrNoRows) {
		return d, cay.Errorf(cay.NotFound, "there is no such preview")
	}
	if err != nil {
		return d, fmt.Errorf("read port: %w", err)
	}
	d.Name, d.Status = name.String, sandbox.Status(status.String)
	d.reason, d.message = sandbox.Reason(reason.String), message.String
	return d, nil
}
