package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

const statusHelp = `Show the daemon that commands speak to: its version, its sandboxes, the machine's
memory and disk, the AI gateway and the databases. The machine and the databases are
shown to admin tokens.

Exit codes: 0 the daemon answers, 1 it does not.`

// daemonStatus is the result of status.
type daemonStatus struct {
	URL       string                 `json:"url"`
	Context   string                 `json:"context,omitempty"`
	Version   string                 `json:"version"`
	Program   string                 `json:"program_version"`
	Identity  *account.Identity      `json:"identity"`
	Sandboxes map[sandbox.Status]int `json:"sandboxes"`      // that run or can be resumed, by status
	Host      *account.Host          `json:"host,omitempty"` // nil without an admin token
	Gateway   string                 `json:"gateway,omitempty"`
}

func newStatusCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "status", Short: "Show how the daemon is", Long: statusHelp,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, _ []string) error {
		s, err := a.status(ctx)
		if err != nil {
			return err
		}
		return a.show(s, func(w io.Writer) { s.print(w) })
	})
}

func (a *app) status(ctx context.Context) (*daemonStatus, error) {
	accounts, client := a.accounts(), a.sandboxes()
	s := &daemonStatus{URL: cmp.Or(a.url, os.Getenv("CAY_URL"), wire.DefaultURL), Program: cay.Version(), Sandboxes: map[sandbox.Status]int{}}
	var err error
	if s.Context, _, err = a.contextInUse(); err != nil {
		return nil, err
	}
	d, err := accounts.Daemon(ctx)
	if err != nil {
		return nil, err
	}
	s.Version = d.Version
	if s.Identity, err = accounts.WhoAmI(ctx); err != nil {
		return nil, err
	}
	list, _, err := pages(0, func(n int, cursor string) (*sandbox.Page[sandbox.Sandbox], error) {
		return client.List(ctx, sandbox.ListParams{ProjectID: "*", Resumable: true, Limit: n, Cursor: cursor})
	})
	if err != nil {
		return nil, err
	}
	for _, b := range list {
		s.Sandboxes[b.Status]++
	}
	if s.Host, err = accounts.Host(ctx); err != nil && cay.CodeOf(err) != cay.PermissionDenied {
		return nil, err
	}
	s.Gateway, err = gatewayClient(a).Address(ctx)
	if c := cay.CodeOf(err); err != nil && c != cay.NotFound && c != cay.Invalid {
		return nil, err
	}
	return s, nil
}

func (s *daemonStatus) print(w io.Writer) {
	version := s.Version
	if s.Version != s.Program {
		version += "; this program is " + s.Program
	}
	daemon := s.URL
	if s.Context != "" {
		daemon += " (" + s.Context + ")"
	}
	var counts []string
	for _, status := range statuses {
		if n := s.Sandboxes[status]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, status))
		}
	}
	var load, memory, disk, databases string
	if h := s.Host; h != nil {
		load = fmt.Sprintf("%s CPUs, load %.2f", vcpuText(h.CPUs), h.Load[0])
		if h.CPUBusy != nil {
			load += fmt.Sprintf(", %.0f%% busy", 100**h.CPUBusy)
		}
		memory = fmt.Sprintf("%s free of %s; the daemon has %s", bytesText(h.MemoryAvailableBytes), bytesText(h.MemoryTotalBytes), bytesText(h.DaemonMemoryBytes))
		disk = fmt.Sprintf("%s free of %s", bytesText(h.DiskFreeBytes), bytesText(h.DiskTotalBytes))
		databases = databasesText(h.Databases)
		version += ", started " + humanize.RelTime(h.StartedAt, time.Now(), "ago", "from now")
	}
	fields(w,
		"daemon", daemon,
		"version", version,
		"token", identityText(s.Identity),
		"sandboxes", cmp.Or(strings.Join(counts, ", "), "none"),
		"cpu", load,
		"memory", memory,
		"disk", disk,
		"gateway", cmp.Or(s.Gateway, "off, or not reachable from here"),
		"databases", databases,
	)
}

// identityText describes the rights of the token in use.
func identityText(id *account.Identity) string {
	switch {
	case id.Token.Admin:
		return fmt.Sprintf("%s, admin, for team %s", id.Token.Name, id.Team.Name)
	case id.Project != nil:
		return fmt.Sprintf("%s, for project %s of team %s", id.Token.Name, id.Project.Name, id.Team.Name)
	}
	return fmt.Sprintf("%s, for team %s", id.Token.Name, id.Team.Name)
}

func databasesText(all []account.Database) string {
	var texts []string
	for _, d := range all {
		size := bytesText(d.SizeBytes)
		if d.Elsewhere {
			size = "on a server of its own"
		}
		texts = append(texts, d.Name+" "+size)
	}
	return strings.Join(texts, ", ")
}
