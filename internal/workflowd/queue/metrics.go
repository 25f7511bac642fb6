package queue

import "time"

// Metrics is told what a queue does. Its methods must not block, and are called
// concurrently.
type Metrics interface {
	MessagePublished(project string)
	// MessageDelivered reports a message that was acknowledged, how long its last push
	// took and how often it was delivered.
	MessageDelivered(project string, took time.Duration, attempt int)
	// MessageFailed reports a delivery that reached the app and was not acknowledged.
	MessageFailed(project string)
	// DeploymentHeld reports that no app answers for a deployment, or that one does again.
	DeploymentHeld(project, deployment string, held bool)
}

type noMetrics struct{}

func (noMetrics) MessagePublished(string)                     {}
func (noMetrics) MessageDelivered(string, time.Duration, int) {}
func (noMetrics) MessageFailed(string)                        {}
func (noMetrics) DeploymentHeld(string, string, bool)         {}
