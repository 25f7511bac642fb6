package docker

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/cayhq/cay/sandbox"
)

const (
	topTime = 10 * time.Second
	maxTop  = 1 << 20 // bytes of output
)

// handleTop runs ps in the container: its processes are not the host's.
func (s *Server) handleTop(w http.ResponseWriter, r *http.Request, c *container) error {
	if !c.running() {
		return failf(http.StatusConflict, "container %s is not running", c.ID)
	}
	args := strings.Fields(r.URL.Query().Get("ps_args"))
	if len(args) == 0 {
		args = []string{"-ef"}
	}
	ctx, cancel := context.WithTimeout(r.Context(), topTime)
	defer cancel()
	out, err := s.cfg.Sandboxes.Exec(ctx, c.box.ID, sandbox.CommandParams{
		Argv: append([]string{"ps"}, args...), Timeout: sandbox.Duration(topTime),
	})
	if err != nil {
		return err
	}
	defer out.Close()
	var text, complaint bytes.Buffer
	code := -1
	for code < 0 {
		ev, err := out.Next()
		if err != nil {
			return err
		}
		switch {
		case ev.Exit != nil:
			code = ev.Exit.Code
		case ev.Stream == sandbox.Stderr:
			complaint.Write(ev.Data)
		default:
			text.Write(ev.Data)
		}
		if text.Len()+complaint.Len() > maxTop {
			return failf(http.StatusInternalServerError, "ps prints more than %d bytes", maxTop)
		}
	}
	if code != 0 {
		return failf(http.StatusInternalServerError, "ps in the container exited with %d: %.300s", code, complaint.String())
	}
	titles, processes := table(text.String())
	return writeJSON(w, http.StatusOK, map[string]any{"Titles": titles, "Processes": processes})
}

// table splits what ps prints. The last column has the rest of its line.
func table(text string) (titles []string, rows [][]string) {
	rows = [][]string{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case titles == nil:
			titles = fields
		default:
			if n := len(titles); len(fields) > n {
				fields = append(fields[:n-1:n-1], strings.Join(fields[n-1:], " "))
			}
			rows = append(rows, fields)
		}
	}
	return titles, rows
}
