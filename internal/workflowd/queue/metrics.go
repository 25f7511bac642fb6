package queue

import "time"

// Metrics receives a queue's measurements. Its methods must not block, and are called
// concurrently.
type Metrics interface {
	MessagePublished(project string)
	// MessageDelivered reports an acknowledged message, how long its last push took and
	// how often it was delivered.
	MessageDelivered(project string, took time.Duration, attempt int)
	// MessageFailed reports a delivery that reached the app without an acknowledgement.
	MessageFailed(project string)
	// DeploymentHeld reports that no app answers for a deployment, or that an app answers
	// again.
	DeploymentHeld(project, deployment string, held bool)
}

type noMetrics struct{}

func (noMetrics) MessagePublished(string)                     {}
func (noMetrics) MessageDelivered(string, time.Duration, int) {}
func (noMetrics) MessageFailed(string)                        {}
func (noMetrics) DeploymentHeld(string, string, bool)         {}
