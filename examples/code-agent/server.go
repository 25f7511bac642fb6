package main

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
)

// server starts runs and reports their results.
type server struct {
	client        *workflow.Client
	coder, tester string // the models, where a request does not say
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /programs", s.handleCreate)
	mux.HandleFunc("GET /programs/{run}", s.handleGet)
	mux.HandleFunc("GET /programs/{run}/stream", s.handleStream)
	return mux
}

// handleCreate starts a run and answers at once, with its id. A client that
// repeats a request, because its answer was lost, sends the same Idempotency-Key.
func (s *server) handleCreate(w http.ResponseWriter, r *http.Request) {
	var in Request
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		fail(w, cay.Errorf(cay.Invalid, "the request cannot be read: %w", err))
		return
	}
	if err := in.check(s.coder, s.tester); err != nil {
		fail(w, err)
		return
	}
	run, err := codeAgent.Start(r.Context(), s.client, in, workflow.Key(r.Header.Get("Idempotency-Key")))
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Location", "/programs/"+run.ID)
	answer(w, http.StatusAccepted, map[string]string{"run_id": run.ID})
}

// handleGet reports a run's progress, and its program when it is written.
func (s *server) handleGet(w http.ResponseWriter, r *http.Request) {
	run, err := s.run(r)
	if err != nil {
		fail(w, err)
		return
	}
	state := struct {
		RunID  string  `json:"run_id"`
		Status string  `json:"status"`
		Report *Report `json:"report,omitempty"`
		Error  string  `json:"error,omitempty"`
	}{RunID: run.ID, Status: string(run.Status)}
	if run.Status.Terminal() {
		if state.Report, err = workflow.GetRun[*Report](s.client, run.ID).Result(r.Context()); err != nil {
			state.Error = err.Error()
		}
	}
	answer(w, http.StatusOK, state)
}

// handleStream sends the models' answers, word by word, to any number of readers.
// Readers can reconnect and resume (Last-Event-ID).
func (s *server) handleStream(w http.ResponseWriter, r *http.Request) {
	run, err := s.run(r)
	if err == nil {
		err = s.client.ServeStream(w, r, run.ID, agent.StreamName)
	}
	if err != nil {
		fail(w, err)
	}
}

// run returns the run of a request. Runs of other workflows in the same daemon
// are not found.
func (s *server) run(r *http.Request) (*workflow.RunInfo, error) {
	run, err := s.client.Get(r.Context(), r.PathValue("run"))
	if err == nil && run.Workflow != codeAgent.Name() {
		return nil, cay.Errorf(cay.NotFound, "run %q writes no program", run.ID)
	}
	return run, err
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) // an error means that the client has left
}

func fail(w http.ResponseWriter, err error) {
	status, e := http.StatusInternalServerError, new(cay.Error)
	if !errors.As(err, &e) {
		e = &cay.Error{Code: cay.Internal, Message: "internal error"}
	}
	switch e.Code {
	case cay.Invalid:
		status = http.StatusBadRequest
	case cay.NotFound:
		status = http.StatusNotFound
	case cay.Unavailable:
		status = http.StatusServiceUnavailable
	}
	answer(w, status, map[string]any{"error": map[string]any{"code": e.Code, "message": e.Message}})
}
