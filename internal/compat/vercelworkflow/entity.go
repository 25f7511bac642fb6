package vercelworkflow

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/oklog/ulid/v2"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// object is a CBOR map of an answer. Fields that do not apply are left out: the SDK
// refuses null where it wants none.
type object map[string]any

// payloadFields name the payload of an event in its eventData.
var payloadFields = map[history.Type]string{
	history.RunCreated: "input", history.RunCompleted: "output", history.RunFailed: "error",
	history.StepCreated: "input", history.StepCompleted: "result", history.StepFailed: "error", history.StepRetrying: "error",
	history.HookCreated: "metadata", history.HookReceived: "payload",
}

// payloadOf is the payload of an event, nil if it has none.
func payloadOf(ev *history.Event) []byte {
	if ev.Type == history.StepCreated {
		return ev.Input
	}
	if payloadFields[ev.Type] == "" {
		return nil
	}
	return ev.Payload
}

// eventID is the id of an event.
func eventID(r view, ev *history.Event) string {
	if r.spec >= slotted {
		return fmt.Sprintf("evnt_%026d", ev.Slot)
	}
	// The time of a ULID is ten characters, which are the same for all of a run.
	return fmt.Sprintf("evnt_%s%016d", ulidTime(r.CreatedAt), ev.Slot)
}

// slotOf is the slot that an event id, or a cursor, names. Errors: invalid.
func slotOf(id string) (int64, error) {
	digits := strings.TrimPrefix(strings.TrimPrefix(id, "eid:"), "evnt_")
	if len(digits) == 26 {
		if n, err := strconv.ParseInt(digits[10:], 10, 64); err == nil && n >= 0 {
			return n, nil
		}
	}
	return 0, cay.Errorf(cay.Invalid, "%.60q is no id of an event", id)
}

// ulidTime returns the ten characters of a ULID that are its time.
func ulidTime(ms int64) string { return ulid.MustNew(uint64(ms), nil).String()[:10] }

func at(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// view is a run with what is kept of it for the SDK.
type view struct {
	*history.Run
	extra extra
	spec  int // version of the protocol the run was started with
}

func viewOf(r *history.Run) view {
	v := view{Run: r, extra: readExtra(r.Extra), spec: 2}
	if v.extra.SpecVersion != 0 {
		v.spec = v.extra.SpecVersion
	}
	return v
}

// eventObject is an event, with its payload among its data if whole.
func eventObject(r view, ev *history.Event, whole bool) object {
	x := readExtra(ev.Extra)
	data := object{}
	text := func(name, v string) {
		if v != "" {
			data[name] = v
		}
	}
	switch ev.Type {
	case history.RunCreated:
		data["workflowName"], data["deploymentId"] = r.Workflow, r.Build
		if len(ev.Attributes) > 0 {
			data["attributes"] = ev.Attributes
		}
		runContext(data, &x)
		if x.Reserved {
			data["allowReservedAttributes"] = true
		}
	case history.AttrSet:
		changes := x.Changes
		if changes == nil {
			for k, v := range ev.Attributes {
				changes = append(changes, attributeChange{k, &v})
			}
		}
		data["changes"] = changes
		data["writer"] = any(object{"type": "workflow"})
		if x.Writer != nil {
			data["writer"] = x.Writer
		}
	case history.StepStarted:
		data["attempt"] = ev.Attempt
		text("ownerMessageId", x.Owner)
	case history.WaitCreated:
		data["resumeAt"] = at(ev.Until)
	case history.StepRetrying:
		if ev.Until != 0 {
			data["retryAfter"] = at(ev.Until)
		}
	case history.HookCreated:
		data["isWebhook"] = ev.Webhook
		if x.System {
			data["isSystem"] = true
		}
		if x.Retention != 0 {
			data["tokenRetentionUntil"] = at(x.Retention)
		}
	case history.HookConflict:
		text("conflictingRunId", ev.Reason)
	}
	text("stepName", ev.Name)
	if ev.Type == history.RunCreated {
		delete(data, "stepName")
	}
	text("token", ev.Token)
	text("errorCode", ev.Code)
	if ev.Type == history.RunCancelled {
		text("cancelReason", ev.Reason)
	}
	if p := payloadOf(ev); whole && p != nil {
		data[payloadFields[ev.Type]] = valueOf(ev.Type, p)
	}
	spec := x.SpecVersion
	if spec == 0 {
		spec = r.spec
	}
	o := object{
		"runId": r.ID, "eventId": eventID(r, ev), "eventType": ev.Type.String(),
		"createdAt": at(ev.At), "specVersion": spec, "eventData": data,
	}
	if ev.ID != "" && ev.Type != history.RunCreated {
		o["correlationId"] = ev.ID
	}
	if x.Occurred {
		o["occurredAt"] = at(ev.At)
	}
	if ev.Key != "" {
		o["resumeId"] = ev.Key
	}
	return o
}

func runContext(o object, x *extra) {
	if len(x.Context) > 0 {
		o["executionContext"] = x.Context
	}
	if x.PublicKey != "" {
		o["encryptionPublicKey"] = x.PublicKey
	}
}

// valueOf is a payload as it stands in an answer: an error that is no serialized value
// is a structure.
func valueOf(typ history.Type, payload []byte) any {
	switch typ {
	case history.RunFailed, history.StepFailed, history.StepRetrying:
		if !serialized(payload) {
			return cbor.RawMessage(payload)
		}
	}
	return payload
}

// serialized reports whether a payload begins with the four characters that say how the
// SDK reads it.
func serialized(p []byte) bool {
	if len(p) < 4 {
		return false
	}
	for _, c := range p[:4] {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// runObject is a run. The log may be whole, or only the events with the run's input and output.
func runObject(r view, log []history.Event, whole bool) object {
	attributes := r.Attributes
	if attributes == nil {
		attributes = map[string]string{}
	}
	o := object{
		"runId": r.ID, "status": string(r.Status), "deploymentId": r.Build, "workflowName": r.Workflow,
		"specVersion": r.spec, "attributes": attributes, "createdAt": at(r.CreatedAt), "updatedAt": at(r.UpdatedAt),
	}
	runContext(o, &r.extra)
	if r.StartedAt != 0 {
		o["startedAt"] = at(r.StartedAt)
	}
	if r.CompletedAt != 0 {
		o["completedAt"] = at(r.CompletedAt)
	}
	if r.ErrorCode != "" {
		o["errorCode"] = r.ErrorCode
	}
	if r.CancelReason != "" {
		o["cancelReason"] = r.CancelReason
	}
	for i := range log {
		switch ev := &log[i]; {
		case ev.Type == history.RunCreated && whole:
			o["input"] = ev.Payload
		case ev.Type == history.RunCompleted && whole:
			o["output"] = ev.Payload
		case ev.Type == history.RunFailed:
			o["error"] = valueOf(ev.Type, ev.Payload)
		}
	}
	return o
}

// stepObjects are the steps of a log, in the order of their creation. With an id, only
// that step is returned.
func stepObjects(r view, log []history.Event, id string, whole bool) []object {
	var steps []object
	byID := make(map[string]object)
	for i := range log {
		ev := &log[i]
		if id != "" && ev.ID != id {
			continue
		}
		s := byID[ev.ID]
		switch ev.Type {
		case history.StepCreated:
			s = object{
				"runId": r.ID, "stepId": ev.ID, "stepName": ev.Name, "status": "pending", "attempt": 0,
				"createdAt": at(ev.At), "specVersion": r.spec,
			}
			if whole {
				s["input"] = ev.Input
			}
			byID[ev.ID] = s
			steps = append(steps, s)
		case history.StepStarted:
			s["status"], s["attempt"] = "running", ev.Attempt
			if _, began := s["startedAt"]; !began {
				s["startedAt"] = at(ev.At)
			}
			delete(s, "retryAfter")
		case history.StepRetrying:
			s["status"], s["error"] = "pending", valueOf(ev.Type, ev.Payload)
			if ev.Until != 0 {
				s["retryAfter"] = at(ev.Until)
			}
		case history.StepCompleted:
			s["status"], s["completedAt"] = "completed", at(ev.At)
			delete(s, "error")
			if whole {
				s["output"] = ev.Payload
			}
		case history.StepFailed:
			s["status"], s["completedAt"], s["error"] = "failed", at(ev.At), valueOf(ev.Type, ev.Payload)
		default:
			continue
		}
		s["updatedAt"] = at(ev.At)
	}
	return steps
}

// sinceCreated is the part of a log from the creation of a step or wait on, which is near
// its end; all of it if there is none.
func sinceCreated(log []history.Event, id string) []history.Event {
	for i := len(log) - 1; i >= 0; i-- {
		if ev := &log[i]; ev.ID == id && (ev.Type == history.StepCreated || ev.Type == history.WaitCreated) {
			return log[i:]
		}
	}
	return log
}

// waitObjects are the waits of a log, in the order of their creation. With an id, only
// that wait is returned.
func waitObjects(r view, log []history.Event, id string) []object {
	var waits []object
	byID := make(map[string]object)
	for i := range log {
		switch ev := &log[i]; {
		case id != "" && ev.ID != id:
		case ev.Type == history.WaitCreated:
			w := object{
				"runId": r.ID, "waitId": ev.ID, "status": "waiting", "resumeAt": at(ev.Until),
				"createdAt": at(ev.At), "updatedAt": at(ev.At), "specVersion": r.spec,
			}
			byID[ev.ID] = w
			waits = append(waits, w)
		case ev.Type == history.WaitCompleted:
			if w := byID[ev.ID]; w != nil {
				w["status"], w["completedAt"], w["updatedAt"] = "completed", at(ev.At), at(ev.At)
			}
		}
	}
	return waits
}

// hookObject is a live hook of a run.
func hookObject(r view, h *history.Hook, whole bool) object {
	resume := object{"deploymentId": r.Build, "workflowName": r.Workflow, "runSpecVersion": r.spec}
	if r.extra.PublicKey != "" {
		resume["encryptionPublicKey"] = r.extra.PublicKey
	}
	o := object{
		"runId": h.Run, "hookId": h.ID, "token": h.Token, "ownerId": h.Project, "projectId": h.Project, "environment": "production",
		"isWebhook": h.Webhook, "createdAt": at(h.CreatedAt), "specVersion": r.spec, "resumeContext": resume,
	}
	if whole && h.Metadata != nil {
		o["metadata"] = h.Metadata
	}
	return o
}
