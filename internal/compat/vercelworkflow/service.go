package vercelworkflow

import (
	"context"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/workflow"
)

// Runs is what the facade needs of the engine of workflows, for the runs of one project.
// *workflowd.External has it, and says what the methods do.
type Runs interface {
	Create(ctx context.Context, p workflowd.ExternalRun) (*workflowd.Recorded, error)
	Record(ctx context.Context, run string, entries ...workflowd.Entry) (*workflowd.Recorded, error)
	ReadLog(ctx context.Context, run string, from int64, limit int) (*workflowd.Part, error)

	GetRun(ctx context.Context, id string) (*workflow.RunInfo, error)
	ListRuns(ctx context.Context, q workflow.Query) (*history.Page[workflow.RunInfo], error)
	WaitRun(ctx context.Context, id string) (*workflow.RunInfo, error)
	CancelRun(ctx context.Context, id string, p workflow.CancelParams) (*workflow.RunInfo, error)
	GetHook(ctx context.Context, token string) (*workflow.Hook, error)
	ListHooks(ctx context.Context, run, cursor string, limit int) (*history.Page[workflow.Hook], error)

	Append(ctx context.Context, run, stream string, chunks [][]byte, closeIt bool, after int64) (length int64, err error)
	ReadStream(ctx context.Context, run, stream string, from int64) (workflow.ChunkReader, error)
	Chunks(ctx context.Context, run, stream string, from int64, limit int) ([]history.Chunk, history.StreamInfo, error)
	ListStreams(ctx context.Context, run string) ([]workflow.StreamInfo, error)
	StreamRun(ctx context.Context, stream string) (string, error)
	AwaitRun(ctx context.Context, run string) error
}

// Queue is what the facade needs of the queue of messages. *queue.Queue has it.
type Queue interface {
	Publish(ctx context.Context, m queue.Message) (id string, err error)
	Acknowledge(ctx context.Context, project, receipt string) error
	Extend(ctx context.Context, project, receipt string, d time.Duration) error
	Register(ctx context.Context, d queue.Deployment) (queue.Deployment, error)
	Working(ctx context.Context, project, id, secret string, receipts []string) error
	Deregister(ctx context.Context, project, id, secret string) error
	Deployment(ctx context.Context, project, id string) (queue.Deployment, error)
	Deployments(ctx context.Context, project string) ([]queue.Deployment, error)
	Latest(ctx context.Context, project string) (queue.Deployment, error)
	Messages(ctx context.Context, project, run string, limit int) ([]queue.Message, error)
}

// Config is what the facade needs.
type Config struct {
	// Runs returns the runs of a project.
	Runs  func(project string) Runs
	Queue Queue
	// Project returns the project that a request is about: the one asked for, or if it is ""
	// that of its token, or the default. Errors: not_found.
	Project func(ctx context.Context, asked string) (string, error)
	// Check asks whether an app answers at the address of a deployment. *Pusher does.
	Check func(ctx context.Context, d queue.Deployment) error
	// Priorities returns the priorities of messages by the workflow of their run; nil: none.
	Priorities func(ctx context.Context, project string) (map[string]int, error)
	// Pulls are the connections of apps; the Pusher of the queue has them, too.
	Pulls *Pulls
}
