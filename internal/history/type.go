package history

import "fmt"

// names are the event types in the notation of people and of the JavaScript SDK.
var names = map[Type]string{
	RunCreated: "run_created", RunStarted: "run_started", RunCompleted: "run_completed", RunFailed: "run_failed",
	RunCancelled: "run_cancelled", AttrSet: "attr_set",
	StepCreated: "step_created", StepStarted: "step_started", StepCompleted: "step_completed",
	StepFailed: "step_failed", StepRetrying: "step_retrying",
	HookCreated: "hook_created", HookReceived: "hook_received", HookDisposed: "hook_disposed", HookConflict: "hook_conflict",
	WaitCreated: "wait_created", WaitCompleted: "wait_completed",
	Noop:            "noop",
	CancelRequested: "cancel_requested", VersionMarked: "version_marked",
	ChildStarted: "child_started", ChildEnded: "child_ended", LimitReached: "limit_reached",
}

var byName = func() map[string]Type {
	m := make(map[string]Type, len(names))
	for t, name := range names {
		m[name] = t
	}
	return m
}()

// String returns the type's name, such as step_completed.
func (t Type) String() string {
	if name, ok := names[t]; ok {
		return name
	}
	return fmt.Sprintf("type_%d", uint8(t))
}

// MarshalText encodes a type as its name in JSON.
func (t Type) MarshalText() ([]byte, error) {
	name, ok := names[t]
	if !ok {
		return nil, fmt.Errorf("event type %d has no name", uint8(t))
	}
	return []byte(name), nil
}

// UnmarshalText reads a type's name.
func (t *Type) UnmarshalText(b []byte) error {
	v, ok := byName[string(b)]
	if !ok {
		return fmt.Errorf("%q is no type of event", b)
	}
	*t = v
	return nil
}
