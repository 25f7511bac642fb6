package vercelworkflow

import (
	"context"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

func (h *handler) handleHooks(w http.ResponseWriter, r *http.Request) error {
	runs, err := h.runs(r)
	if err != nil {
		return err
	}
	q := queryOf(r)
	limit, err := q.limit(100)
	if err != nil {
		return err
	}
	found, err := runs.ListHooks(r.Context(), q.Get("runId"), q.Get("cursor"), limit)
	if err != nil {
		return err
	}
	var data []object
	known := make(map[string]*history.Run)
	for i := range found.Items {
		o, err := readHook(r.Context(), runs, &found.Items[i], known, q.whole())
		if err != nil {
			return err
		}
		if o != nil {
			data = append(data, o)
		}
	}
	return writeCBOR(w, page(data, found.Cursor))
}

// readHook is a hook with what its run says; nil if the run is not the SDK's, or gone.
// known are runs that were read before.
func readHook(ctx context.Context, runs Runs, hook *history.Hook, known map[string]*history.Run, whole bool) (object, error) {
	run := known[hook.Run]
	if run == nil {
		var err error
		run, err = runs.GetRun(ctx, hook.Run)
		if cay.CodeOf(err) == cay.NotFound {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		known[hook.Run] = run
	}
	if run.Kind != history.JavaScript {
		return nil, nil
	}
	return hookObject(viewOf(run), hook, whole), nil
}

func (h *handler) handleHookByToken(w http.ResponseWriter, r *http.Request) error {
	runs, err := h.runs(r)
	if err != nil {
		return err
	}
	q := queryOf(r)
	hook, err := runs.GetHook(r.Context(), q.Get("token"))
	if err != nil {
		return err
	}
	return h.writeHook(w, r, runs, hook, q.Get("token"))
}

// handleHook finds a hook by its id, which is unique among the hooks of its run only: the
// oldest live one counts.
func (h *handler) handleHook(w http.ResponseWriter, r *http.Request) error {
	runs, err := h.runs(r)
	if err != nil {
		return err
	}
	id := r.PathValue("hook")
	for cursor := ""; ; {
		found, err := runs.ListHooks(r.Context(), "", cursor, maxPage)
		if err != nil {
			return err
		}
		for i := range found.Items {
			if found.Items[i].ID == id {
				return h.writeHook(w, r, runs, &found.Items[i], id)
			}
		}
		if cursor = found.Cursor; cursor == "" {
			return cay.Errorf(cay.NotFound, "there is no live hook %.100q", id)
		}
	}
}

func (h *handler) writeHook(w http.ResponseWriter, r *http.Request, runs Runs, hook *history.Hook, asked string) error {
	o, err := readHook(r.Context(), runs, hook, map[string]*history.Run{}, queryOf(r).whole())
	if err != nil {
		return err
	}
	if o == nil {
		return cay.Errorf(cay.NotFound, "there is no live hook %.100q of the Workflow SDK", asked)
	}
	return writeCBOR(w, o)
}
