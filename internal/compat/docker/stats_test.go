package docker

import "testing"

func TestPause(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	id := b.create("box", "sleep 600", nil)
	b.do("POST", "/containers/box/pause", nil).want(409)
	b.do("POST", "/containers/box/unpause", nil).want(409)
	b.start(id)
	b.do("POST", "/containers/box/pause", nil).want(204)
	b.do("POST", "/containers/box/pause", nil).want(409)
	if got := b.do("GET", "/containers/box/json", nil).at("State.Status"); got != "paused" {
		t.Errorf("it is %s", got)
	}
	b.do("POST", "/containers/box/unpause", nil).want(204)
	b.do("POST", "/containers/box/unpause", nil).want(409)
	if got := b.do("GET", "/containers/box/json", nil).at("State.Status"); got != "running" {
		t.Errorf("it is %s", got)
	}
	b.do("DELETE", "/containers/box?force=1", nil).want(204)
}

func TestStats(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	id := b.create("box", "sleep 600", nil)
	if got := b.do("GET", "/containers/box/stats?stream=false", nil).want(200).at("memory_stats.usage"); got != "0" {
		t.Errorf("a container that has not started uses %s bytes", got)
	}
	b.start(id)
	if got := b.do("GET", "/containers/box/stats?stream=false", nil).want(200); got.at("name") != "/box" || got.at("memory_stats.limit") == "0" {
		t.Errorf("the counters are %s", got.body)
	}
	// The stream ends with the container.
	ended := make(chan error, 1)
	go func() {
		_, _, err := b.request("GET", "/containers/box/stats", "")
		ended <- err
	}()
	b.do("DELETE", "/containers/box?force=1", nil).want(204)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
