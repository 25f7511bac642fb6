package sandbox_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// The parameters of snapshots, forks and drives: every limit, at the limit and
// beyond.
func TestValidate_State(t *testing.T) {
	t.Parallel()
	at := func(d time.Duration) *sandbox.Duration { v := sandbox.Duration(d); return &v }
	vcpus := func(n float64) *float64 { return &n }
	mib := func(n int64) *int64 { return &n }
	text := func(s string) *string { return &s }
	names := func(n int) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = "n" + strconv.Itoa(i)
		}
		return out
	}
	long := strings.Repeat("n", 128)
	drive := func(mode sandbox.MountMode) []sandbox.Mount {
		return []sandbox.Mount{{Path: "/data", Drive: "d", Mode: mode}}
	}
	type create = sandbox.CreateParams
	type change = sandbox.UpdateParams
	type fork = sandbox.ForkParams
	type snapshot = sandbox.SnapshotParams

	for _, c := range []struct {
		name string
		err  error
		says string // part of the message; empty: valid
	}{
		{"CreateName", create{Name: long}.Validate(), ""},
		{"CreateNameLong", create{Name: long + "n"}.Validate(), "nn"},
		{"CreateNameSandboxID", create{Name: "sbx_a"}.Validate(), `"sbx_a" begins like an id`},
		{"CreateNameSessionID", create{Name: "ses_a"}.Validate(), `"ses_a" begins like an id`},
		{"CreateNameSnapshotID", create{Name: "snap_a"}.Validate(), `"snap_a" begins like an id`},
		{"CreateNameAlmostID", create{Name: "snap-a"}.Validate(), ""},
		{"CreateNameSessions", create{Name: "sessions"}.Validate(), `"sessions" is taken`},
		{"CreateNameSnapshots", create{Name: "snapshots"}.Validate(), `"snapshots" is taken`},
		{"CreateNameDrives", create{Name: "drives"}.Validate(), `"drives" is taken`},
		{"CreateNameDrive", create{Name: "drive"}.Validate(), ""},
		{"CreateSnapshot", create{Snapshot: long, FilesOnly: true}.Validate(), ""},
		{"CreateSnapshotLong", create{Snapshot: long + "n"}.Validate(), "snapshot"},
		{"CreateSnapshotPath", create{Snapshot: "../a"}.Validate(), `"../a"`},
		{"CreateSnapshotImage", create{Snapshot: "s", Image: "debian"}.Validate(), `image "debian" are given together`},
		{"CreateSnapshotRuntime", create{Snapshot: "s", Runtime: "node24"}.Validate(), `runtime "node24" are given together`},
		{"CreateFilesOnly", create{FilesOnly: true}.Validate(), "files_only"},
		{"CreateMounts", create{Mounts: append(drive(""), drive("")...)}.Validate(), "same path"},
		{"CreateExpirationNever", create{SnapshotExpiration: at(0)}.Validate(), ""},
		{"CreateExpiration", create{SnapshotExpiration: at(time.Minute)}.Validate(), ""},
		{"CreateExpirationShort", create{SnapshotExpiration: at(time.Minute - 1)}.Validate(), "59.999999999s"},
		{"CreateExpirationNegative", create{SnapshotExpiration: at(-time.Hour)}.Validate(), "-1h"},
		{"CreateRetention", create{Retention: &sandbox.Retention{Keep: 100, MaxAge: sandbox.Duration(time.Minute)}}.Validate(), ""},
		{"CreateRetentionNone", create{Retention: &sandbox.Retention{}}.Validate(), "retention.keep 0"},
		{"CreateRetentionMany", create{Retention: &sandbox.Retention{Keep: 101}}.Validate(), "retention.keep 101"},
		{"CreateRetentionShort", create{Retention: &sandbox.Retention{Keep: 1, Expiration: new(sandbox.Duration(time.Second))}}.Validate(), "retention.expiration 1s"},
		{"CreateRetentionForever", create{Retention: &sandbox.Retention{Keep: 1, Expiration: new(sandbox.Duration(0))}}.Validate(), ""},
		{"CreateRetentionYoung", create{Retention: &sandbox.Retention{Keep: 1, MaxAge: sandbox.Duration(time.Second)}}.Validate(), "retention.max_age 1s"},

		{"Update", change{}.Validate(), ""},
		{"UpdateEnv", change{Env: map[string]string{"A=": ""}}.Validate(), `"A="`},
		{"UpdateTimeout", change{Timeout: at(time.Second)}.Validate(), ""},
		{"UpdateTimeoutShort", change{Timeout: at(0)}.Validate(), "timeout 0s"},
		{"UpdateVCPUs", change{VCPUs: vcpus(0.1)}.Validate(), ""},
		{"UpdateVCPUsNone", change{VCPUs: vcpus(0)}.Validate(), "vcpus 0"},
		{"UpdateVCPUsNaN", change{VCPUs: vcpus(math.NaN())}.Validate(), "vcpus NaN"},
		{"UpdateMemory", change{MemoryMB: mib(128)}.Validate(), ""},
		{"UpdateMemorySmall", change{MemoryMB: mib(127)}.Validate(), "memory_mb 127"},
		{"UpdateMounts", change{Mounts: drive("some")}.Validate(), `"some"`},
		{"UpdateSnapshot", change{SnapshotID: text("snap_a")}.Validate(), ""},
		{"UpdateSnapshotNone", change{SnapshotID: text("")}.Validate(), ""},
		{"UpdateSnapshotPath", change{SnapshotID: text("a/b")}.Validate(), "snapshot_id"},
		{"UpdateExpirationShort", change{SnapshotExpiration: at(1)}.Validate(), "1ns"},
		{"UpdateRetentionNone", change{Retention: &sandbox.Retention{}}.Validate(), ""},
		{"UpdateRetentionHalf", change{Retention: &sandbox.Retention{KeepEvicted: true}}.Validate(), "retention.keep 0"},
		{"UpdateIdle", change{IdleTimeout: at(1)}.Validate(), "idle_timeout"},

		{"Fork", fork{}.Validate(), ""},
		{"ForkCount", fork{Count: 100}.Validate(), ""},
		{"ForkCountMany", fork{Count: 101}.Validate(), "101"},
		{"ForkCountNegative", fork{Count: -1}.Validate(), "-1"},
		{"ForkNames", fork{Names: names(100), Count: 100}.Validate(), ""},
		{"ForkNamesMany", fork{Names: names(101)}.Validate(), "101"},
		{"ForkNamesDiffer", fork{Names: names(2), Count: 3}.Validate(), "count is 3, but there are 2 names"},
		{"ForkNamesTwice", fork{Names: []string{"a", "b", "a"}}.Validate(), `names[0] and names[2] are both "a"`},
		{"ForkNamesEmpty", fork{Names: []string{"a", ""}}.Validate(), "names[1]"},
		{"ForkNamesReserved", fork{Names: []string{"drives"}}.Validate(), "names[0]"},
		{"ForkKind", fork{Kind: sandbox.FilesystemSnapshot}.Validate(), ""},
		{"ForkKindOther", fork{Kind: "disk"}.Validate(), `"disk"`},
		{"ForkEnv", fork{Env: map[string]string{"": ""}}.Validate(), "env"},
		{"ForkTags", fork{Tags: map[string]string{"": ""}}.Validate(), "tag"},
		{"ForkNetwork", fork{Network: &sandbox.Network{Mode: "some"}}.Validate(), `"some"`},
		{"ForkPorts", fork{Ports: []sandbox.PortParams{{}}}.Validate(), "ports[0]"},
		{"ForkOneMount", fork{Mounts: drive("")}.Validate(), ""},
		{"ForkMounts", fork{Count: 2, Mounts: drive(sandbox.MountReadOnly)}.Validate(), ""},
		{"ForkMountsWritten", fork{Count: 2, Mounts: drive("")}.Validate(), "mounts[0] is read-write"},
		{"ForkMountsWrittenByName", fork{Names: names(3), Mounts: drive(sandbox.MountReadWrite)}.Validate(), "3 copies"},
		{"ForkVCPUs", fork{VCPUs: vcpus(65)}.Validate(), "vcpus 65"},
		{"ForkMemory", fork{MemoryMB: mib(1)}.Validate(), "memory_mb 1"},
		{"ForkTimeout", fork{Timeout: at(1)}.Validate(), "timeout 1ns"},
		{"ForkIdle", fork{IdleTimeout: at(-1)}.Validate(), "idle_timeout"},
		{"ForkExpiration", fork{SnapshotExpiration: at(1)}.Validate(), "snapshot_expiration"},
		{"ForkRetention", fork{Retention: &sandbox.Retention{}}.Validate(), "retention.keep"},

		{"Snapshot", snapshot{}.Validate(), ""},
		{"SnapshotAll", snapshot{Kind: sandbox.MemorySnapshot, Name: long, Replace: true, Expiration: at(0), Env: map[string]string{"A": "b"}, Stop: true}.Validate(), ""},
		{"SnapshotKind", snapshot{Kind: "disk"}.Validate(), `"disk"`},
		{"SnapshotName", snapshot{Name: "a b"}.Validate(), `"a b"`},
		{"SnapshotNameID", snapshot{Name: "snap_a"}.Validate(), "begins like an id"},
		{"SnapshotReplace", snapshot{Replace: true}.Validate(), "replace"},
		{"SnapshotEnv", snapshot{Env: map[string]string{"A": "hunter2\x00"}}.Validate(), `"A"`},
		{"SnapshotExpiration", snapshot{Expiration: at(time.Second)}.Validate(), "expiration 1s"},

		{"Snapshots", sandbox.SnapshotListParams{Sandbox: "s", Name: "snap", Limit: 200}.Validate(), ""},
		{"SnapshotsLimit", sandbox.SnapshotListParams{Limit: 201}.Validate(), "201"},
		{"SnapshotsSandbox", sandbox.SnapshotListParams{Sandbox: "a/b"}.Validate(), "sandbox"},
		{"SnapshotsName", sandbox.SnapshotListParams{Name: "a%"}.Validate(), "name"},
		{"SnapshotsProject", sandbox.SnapshotListParams{ProjectID: long}.Validate(), "project_id"},
		{"Tree", sandbox.SnapshotTreeParams{Limit: 100}.Validate(), ""},
		{"TreeLimit", sandbox.SnapshotTreeParams{Limit: 101}.Validate(), "101"},
		{"TreeNegative", sandbox.SnapshotTreeParams{Limit: -1}.Validate(), "-1"},
		{"Import", sandbox.ImportParams{Name: "n", Expiration: at(time.Hour)}.Validate(), ""},
		{"ImportName", sandbox.ImportParams{Name: "snap_a"}.Validate(), "begins like an id"},
		{"ImportExpiration", sandbox.ImportParams{Expiration: at(-1)}.Validate(), "expiration"},
		{"ImportProject", sandbox.ImportParams{ProjectID: long}.Validate(), "project_id"},
		{"Sessions", sandbox.SessionParams{Limit: 200}.Validate(), ""},
		{"SessionsLimit", sandbox.SessionParams{Limit: -1}.Validate(), "-1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.says == "" {
				if c.err != nil {
					t.Fatalf("got %v, want no error", c.err)
				}
				return
			}
			if cay.CodeOf(c.err) != cay.Invalid || !strings.Contains(c.err.Error(), c.says) {
				t.Fatalf("got %v (%s), want invalid with %q", c.err, cay.CodeOf(c.err), c.says)
			}
			if strings.Contains(c.err.Error(), "hunter2") {
				t.Fatalf("%v shows the value of a variable", c.err)
			}
		})
	}
}
