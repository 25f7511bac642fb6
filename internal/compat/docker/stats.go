package docker

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// statsEvery is how often a stream of counters is written, as Docker does.
const statsEvery = time.Second

// handleStats writes the counters of a container each second, or once.
func (s *Server) handleStats(w http.ResponseWriter, r *http.Request, c *container) error {
	once := r.URL.Query().Has("stream") && !flag(r, "stream")
	var before map[string]any
	begun := false
	tick := time.NewTicker(statsEvery)
	defer tick.Stop()
	for {
		now, err := s.reading(r, c, before)
		switch {
		case err != nil && begun:
			return nil // the container has been removed, or the client has left
		case err != nil:
			return err
		case !begun:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			begun = true
		}
		if json.NewEncoder(w).Encode(now) != nil || http.NewResponseController(w).Flush() != nil || once {
			return nil
		}
		before = now
		select {
		case <-r.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}

// reading is one object of the stream. before is the one before it; nil if there is none.
func (s *Server) reading(r *http.Request, c *container, before map[string]any) (map[string]any, error) {
	c, err := s.reread(r.Context(), c)
	if err != nil {
		return nil, err
	}
	stats := new(sandbox.Stats)
	if c.running() { // a container that has ended has counters of zero
		if stats, err = s.cfg.Sandboxes.Stats(r.Context(), c.box.ID); cay.CodeOf(err) == cay.Stopped {
			stats = new(sandbox.Stats)
		} else if err != nil {
			return nil, err
		}
	}
	cpu := map[string]any{
		"cpu_usage":        map[string]any{"total_usage": time.Duration(stats.Usage.ActiveCPU).Nanoseconds(), "usage_in_kernelmode": 0, "usage_in_usermode": 0},
		"system_cpu_usage": time.Duration(stats.Usage.WallTime).Nanoseconds(), "online_cpus": 1, // so that 100 % is one CPU
		"throttling_data": map[string]int{"periods": 0, "throttled_periods": 0, "throttled_time": 0},
	}
	preCPU, preRead := any(map[string]any{"cpu_usage": map[string]int{"total_usage": 0}, "throttling_data": map[string]int{}}), stamp(time.Time{})
	if before != nil {
		preCPU, preRead = before["cpu_stats"], before["read"].(string)
	}
	return map[string]any{
		"id": c.ID, "name": "/" + c.Name, "read": stamp(time.Now()), "preread": preRead, "num_procs": 0, "storage_stats": map[string]any{},
		"cpu_stats": cpu, "precpu_stats": preCPU, "pids_stats": map[string]int{"current": stats.Processes}, "blkio_stats": map[string]any{},
		"memory_stats": map[string]any{"usage": stats.MemoryBytes, "limit": stats.MemoryLimit, "max_usage": stats.Usage.MemoryPeak, "stats": map[string]any{}},
		"networks": map[string]any{"eth0": map[string]int64{
			"rx_bytes": stats.Usage.IngressBytes, "tx_bytes": stats.Usage.EgressBytes, "rx_packets": 0, "tx_packets": 0,
			"rx_errors": 0, "tx_errors": 0, "rx_dropped": 0, "tx_dropped": 0,
		}},
	}, nil
}

func (s *Server) handlePause(w http.ResponseWriter, r *http.Request, c *container) error {
	err := s.changing(r.Context(), c, func(_ *live, c *container) error {
		switch c.status() {
		case "paused":
			return failf(http.StatusConflict, "Container %s is already paused", c.ID)
		case "running":
			_, err := s.cfg.Sandboxes.Pause(r.Context(), c.box.ID)
			return err
		}
		return failf(http.StatusConflict, "Container %s is not running", c.ID)
	})
	if err != nil {
		return err
	}
	s.feed.tell("pause", c)
	return noContent(w)
}

func (s *Server) handleUnpause(w http.ResponseWriter, r *http.Request, c *container) error {
	err := s.changing(r.Context(), c, func(_ *live, c *container) error {
		if c.status() != "paused" {
			return failf(http.StatusConflict, "Container %s is not paused", c.ID)
		}
		_, err := s.cfg.Sandboxes.Resume(r.Context(), c.box.ID, sandbox.ResumeParams{})
		return err
	})
	if err != nil {
		return err
	}
	s.feed.tell("unpause", c)
	return noContent(w)
}
