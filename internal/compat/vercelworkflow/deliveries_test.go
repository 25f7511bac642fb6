package vercelworkflow

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cayhq/cay/workflow"
)

const processA, processB = "instance-a-0123456789", "instance-b-0123456789"

// puller is a process of an app that has connected.
type puller struct {
	*service
	body  io.ReadCloser
	in    *bufio.Reader
	leave context.CancelFunc
}

// delivered is the fields of a delivery, and the message.
type delivered struct {
	ID      string `cbor:"id"`
	Topic   string `cbor:"topic"`
	Receipt string `cbor:"receipt"`
	Attempt int    `cbor:"attempt"`
	Type    string `cbor:"type"`
	body    string
}

func (s *service) connect(instance string, working ...string) *puller {
	s.Helper()
	ctx, leave := context.WithCancel(s.Context())
	s.Cleanup(leave)
	b, err := json.Marshal(map[string]any{"instance": instance, "working": working})
	if err != nil {
		s.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, "POST", s.server.URL+"/v1/workflows/deployments/dpl_1/deliveries", strings.NewReader(string(b)))
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer prj_a")
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		s.Fatal(resp.Status)
	}
	return &puller{s, resp.Body, bufio.NewReader(resp.Body), leave}
}

// part reads what is behind its length.
func (p *puller) part() []byte {
	p.Helper()
	var size [4]byte
	_, err := io.ReadFull(p.in, size[:])
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if err == nil {
		_, err = io.ReadFull(p.in, b)
	}
	if err != nil {
		p.Fatal(err)
	}
	return b
}

// next returns the next delivery.
func (p *puller) next() delivered {
	p.Helper()
	for {
		var d delivered
		if err := decoding.Unmarshal(p.part(), &d); err != nil {
			p.Fatal(err)
		}
		d.body = string(p.part())
		if d.Receipt != "" {
			return d
		}
	}
}

func (s *service) settle(receipt, outcome string) int {
	s.Helper()
	resp, _ := s.do("POST", "/v1/workflows/deployments/dpl_1/deliveries/"+receipt, []byte(outcome), "Content-Type", "application/json")
	return resp.StatusCode
}

func (s *service) publish(body string) string {
	s.Helper()
	resp, b := s.do("POST", queueBase+"/topic/__wkf_workflow_f", []byte(body), "Content-Type", "application/json", "Vqs-Deployment-Id", "dpl_1")
	var o struct{ MessageID string }
	if err := json.Unmarshal(b, &o); err != nil || resp.StatusCode != http.StatusCreated {
		s.Fatal(resp.Status, string(b), err)
	}
	return o.MessageID
}

// deployment is the deployment as the API tells it.
func (s *service) deployment() workflow.Deployment {
	s.Helper()
	_, b := s.do("GET", "/v1/workflows/deployments", nil)
	var o struct{ Items []workflow.Deployment }
	if err := json.Unmarshal(b, &o); err != nil || len(o.Items) != 1 {
		s.Fatal(string(b), err)
	}
	return o.Items[0]
}

// Messages wait for a process that connects, and go again when it says that they failed.
func TestDeliveries(t *testing.T) {
	s := newService(t)
	id := s.publish("one")
	p := s.connect(processA)
	d := p.next()
	if d.ID != id || d.Topic != "__wkf_workflow_f" || d.Attempt != 1 || d.Type != "application/json" || d.body != "one" {
		t.Fatalf("%+v", d)
	}
	if at := s.deployment(); at.URL != "pull:" || at.Error != "" {
		t.Errorf("%+v", at)
	}
	if status := s.settle(d.Receipt, `{"error":"not today"}`); status != 204 {
		t.Fatal(status)
	}
	if d = p.next(); d.ID != id || d.Attempt != 2 || d.body != "one" {
		t.Fatalf("%+v", d)
	}
	if status := s.settle(d.Receipt, `{"error":"in a while","retry_after":0.01}`); status != 204 {
		t.Fatal(status)
	}
	if d = p.next(); d.ID != id || d.Attempt != 3 {
		t.Fatalf("%+v", d)
	}
	if status := s.settle(d.Receipt, `{}`); status != 204 {
		t.Fatal(status)
	}
	for _, outcome := range []string{`{}`, `{"error":"x"}`, `{"error":"x","retry_after":1}`} {
		if status := s.settle(d.ID+"-0123", outcome); status != 404 {
			t.Errorf("%s of a receipt that nobody has: %d", outcome, status)
		}
	}
	other := s.publish("two")
	if d = p.next(); d.ID != other {
		t.Errorf("%+v", d)
	}
	for _, bad := range []string{`{"instance":"short"}`, `{"instance":"` + strings.Repeat("x", 300) + `"}`, `{`} {
		if resp, _ := s.do("POST", "/v1/workflows/deployments/dpl_1/deliveries", []byte(bad), "Content-Type", "application/json"); resp.StatusCode != 400 {
			t.Errorf("%.40s: %s", bad, resp.Status)
		}
	}
	for _, bad := range []string{`{"retry_after":-1}`, `{"retry_after":1e12}`} {
		if status := s.settle(d.Receipt, bad); status != 400 {
			t.Errorf("%s: %d", bad, status)
		}
	}
}

// A process that comes back keeps what it works on, and gets what it has not got.
func TestDeliveries_ComesBack(t *testing.T) {
	s := newService(t)
	p := s.connect(processA)
	first, second := s.publish("one"), s.publish("two")
	got := map[string]delivered{}
	for range 2 {
		d := p.next()
		got[d.ID] = d
	}
	p.leave()
	p = s.connect(processA, got[first].Receipt)
	if d := p.next(); d.ID != second || d.Receipt != got[second].Receipt || d.Attempt != 1 {
		t.Errorf("%+v", d)
	}
	for _, id := range []string{first, second} {
		if status := s.settle(got[id].Receipt, `{}`); status != 204 {
			t.Errorf("%s: %d", id, status)
		}
	}
	third := s.publish("three")
	if d := p.next(); d.ID != third {
		t.Errorf("%+v", d)
	}
}

// If a process does not come back, its deliveries go to another, also to one that connected
// before the first was given up.
func TestDeliveries_Gone(t *testing.T) {
	s := newService(t)
	p := s.connect(processA)
	id := s.publish("one")
	first := p.next()
	p.leave()
	p = s.connect(processB)
	d := p.next()
	if d.ID != id || d.Receipt == first.Receipt || d.Attempt != 2 {
		t.Errorf("%+v", d)
	}
	if status := s.settle(first.Receipt, `{}`); status != 404 {
		t.Errorf("the first receipt: %d", status)
	}
	if status := s.settle(d.Receipt, `{}`); status != 204 {
		t.Error(status)
	}
}

// Processes of a deployment share its messages.
func TestDeliveries_Shared(t *testing.T) {
	s := newService(t)
	p, q := s.connect(processA), s.connect(processB)
	for range 4 {
		s.publish("one")
	}
	seen := map[string]bool{}
	for _, d := range []delivered{p.next(), p.next(), q.next(), q.next()} {
		seen[d.ID] = true
	}
	if len(seen) != 4 {
		t.Errorf("%d messages in four deliveries", len(seen))
	}
}

// Another connection of the same process ends the one before.
func TestDeliveries_Replaced(t *testing.T) {
	s := newService(t)
	p := s.connect(processA)
	s.connect(processA)
	if _, err := io.Copy(io.Discard, p.in); err == nil {
		t.Error("the connection before ends as if all was said")
	}
}

// After a restart of the daemon a process goes on with what it works on, and gets what
// processes had that do not come back.
func TestDeliveries_DaemonRestarted(t *testing.T) {
	dir := t.TempDir()
	s, stop := openService(t, dir)
	p, q := s.connect(processA), s.connect(processB)
	s.publish("one")
	s.publish("two")
	mine, other := p.next(), q.next()
	stop()
	s, stop = openService(t, dir)
	t.Cleanup(stop)
	p = s.connect(processA, mine.Receipt)
	if d := p.next(); d.ID != other.ID || d.Attempt != 2 {
		t.Errorf("%+v", d)
	}
	if status := s.settle(mine.Receipt, `{}`); status != 204 {
		t.Errorf("what it worked on: %d", status)
	}
}
