package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/checktest"
)

// The owner of an id is known at once, stays known, and is the first one recorded.
func TestKept(t *testing.T) {
	t.Parallel()
	f := setup(t)
	mine, theirs := caller(), caller()
	theirs.ProjectID = "other"
	want := func(provider, id, project string, tokens int64) {
		t.Helper()
		k, err := f.Whose(t.Context(), provider, id)
		checktest.OK(t, err)
		if project == "" {
			if k != nil {
				t.Errorf("%s of %s is %+v", id, provider, k)
			}
			return
		}
		if k == nil || k.ProjectID != project || k.TeamID != mine.TeamID || k.Tokens != tokens {
			t.Errorf("%s of %s is %+v, want of %s, %d tokens", id, provider, k, project, tokens)
		}
	}
	want("openai", "resp_1", "", 0)
	f.Keep(mine, "openai", 120, []string{"resp_1", "msg_1"})
	want("openai", "resp_1", mine.ProjectID, 120)
	want("openai", "msg_1", mine.ProjectID, 120)
	want("azure", "resp_1", "", 0)
	f.close() // waits for the pending ids, as a restart does
	f.open()
	want("openai", "resp_1", mine.ProjectID, 120)
	f.Keep(theirs, "openai", 5, []string{"resp_1", "resp_2"})
	f.close()
	f.open()
	want("openai", "resp_1", mine.ProjectID, 120)
	want("openai", "resp_2", "other", 5)
}

// Ids that are too old or too many are deleted.
func TestKept_Bounded(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var all []string
	for i := range 2 * keptGroup {
		all = append(all, fmt.Sprint("id_", i))
	}
	f.Keep(caller(), "p", 1, all)
	f.keptIDs.done.Wait()
	f.clock.add(time.Hour)
	f.Keep(caller(), "p", 1, []string{"late"})
	f.keptIDs.done.Wait()
	count := func() (n int) {
		checktest.OK(t, f.db.QueryRow(t.Context(), `SELECT count(*) FROM gateway_kept`).Scan(&n))
		return n
	}
	if n := count(); n != 2*keptGroup+1 {
		t.Fatalf("%d are kept", n)
	}
	if _, err := f.store.pruneKept(t.Context(), time.Time{}, 0); err != nil || count() != 1 {
		t.Errorf("%v: %d are left, want the newest", err, count())
	}
	f.clock.add(keptFor + time.Second)
	checktest.OK(t, f.keeper.prune(t.Context()))
	if n := count(); n != 0 {
		t.Errorf("%d are left", n)
	}
	f.keptIDs.mu.Lock() // as if the disk were slow
	f.keptIDs.closed = true
	f.keptIDs.mu.Unlock()
	many := strings.Split(strings.Repeat("x,", maxPending)+"x", ",")
	for i := range many {
		many[i] = fmt.Sprint("y", i)
	}
	f.Keep(caller(), "p", 1, many)
	if n := len(f.keptIDs.pending); n != maxPending {
		t.Errorf("%d wait for the disk", n)
	}
}
