package vercelworkflow

import (
	"bytes"
	"encoding/json"
	"regexp"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

// Runtime is the SDK's runtime, as the engine needs to know it.
type Runtime struct{}

var _ workflowd.Runtime = Runtime{}

// Readable implements workflowd.Runtime. See the function.
func (Runtime) Readable(payload []byte) []byte { return Readable(payload) }

// Payload implements workflowd.Runtime.
func (Runtime) Payload(envelope []byte) ([]byte, error) {
	value, ok := bytes.CutPrefix(envelope, []byte("json"))
	if !ok {
		return nil, cay.Errorf(cay.Invalid, "the runtime of the Workflow SDK can be given JSON only")
	}
	b, err := fromJSON(value)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the value is no JSON that the runtime of the Workflow SDK can be given: %v", err)
	}
	return b, nil
}

// inTopic is what a topic may have of the name of a queue.
var inTopic = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// queueName returns the SDK's name of the queue of a workflow.
func queueName(workflow string) string { return "__wkf_workflow_" + workflow }

// topicOf returns the topic of a queue.
func topicOf(queue string) string { return inTopic.ReplaceAllString(queue, "-") }

// cborSince is the first spec version whose messages are CBOR.
const cborSince = 3

// Wake implements workflowd.Runtime: the message that has the app replay a run, as the SDK
// sends it itself.
func (Runtime) Wake(r *history.Run) (queue.Message, error) {
	name := queueName(r.Workflow)
	wrapper := object{"payload": object{"runId": r.ID}, "queueName": name, "deploymentId": r.Build}
	m := queue.Message{
		Project: r.Project, Deployment: r.Build, Topic: topicOf(name), Run: r.ID, ContentType: "application/cbor",
	}
	var err error
	if viewOf(r).spec >= cborSince {
		m.Body, err = encoding.Marshal(wrapper)
	} else {
		m.ContentType = "application/json"
		m.Body, err = json.Marshal(wrapper)
	}
	return m, err
}
