package sandboxtest

import (
	"context"
	"maps"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/sandbox"
)

func minutes(n int) sandbox.Duration { return sandbox.Duration(time.Duration(n) * time.Minute) }

func seconds(n int) sandbox.Duration { return sandbox.Duration(time.Duration(n) * time.Second) }

func testCreate(t *testing.T, cfg Config) {
	t.Run("Defaults", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		wantStatus(t, s, sandbox.Running, "")
		if !regexp.MustCompile(`^sbx_[0-9a-z]{20}$`).MatchString(s.ID) {
			t.Errorf("id %q is not sbx_ and 20 characters", s.ID)
		}
		if !regexp.MustCompile(`^[a-z]+-[a-z]+-[0-9a-z]{4}$`).MatchString(s.Name) {
			t.Errorf("generated name %q is not adjective-noun-xxxx", s.Name)
		}
		for _, c := range []struct {
			field     string
			got, want any
		}{
			{"team", s.TeamID, account.DefaultTeam}, {"project", s.ProjectID, account.DefaultProject},
			{"image", s.Image, "debian"}, {"runtime", s.Runtime, "node24"}, {"vcpus", s.VCPUs, 2.0},
			{"memory", s.MemoryMB, int64(4096)}, {"disk", s.DiskMB, int64(8192)}, {"timeout", s.Timeout, minutes(5)},
			{"idle timeout", s.IdleTimeout, sandbox.Duration(0)}, {"network", s.Network.Mode, sandbox.AllowAll},
		} {
			if c.got != c.want {
				t.Errorf("%s is %v, want %v", c.field, c.got, c.want)
			}
		}
		if s.User == "" || !strings.HasPrefix(s.WorkDir, "/") || !strings.HasPrefix(s.Digest, "sha256:") {
			t.Errorf("user %q, workdir %q, digest %q: want the image's", s.User, s.WorkDir, s.Digest)
		}
		if s.StartedAt == nil || s.ExpiresAt == nil || s.StoppedAt != nil {
			t.Fatalf("started %v, expires %v, stopped %v", s.StartedAt, s.ExpiresAt, s.StoppedAt)
		}
		if d := s.ExpiresAt.Sub(*s.StartedAt); d < 5*time.Minute-time.Second || d > 5*time.Minute+time.Second {
			t.Errorf("it expires %v after its start, want 5m", d)
		}
		got := u.get(s.ID)
		if got.Name != s.Name || u.get(s.Name).ID != s.ID {
			t.Errorf("get by id and by name do not find the same: %v", got)
		}
	})
	t.Run("AsAsked", func(t *testing.T) {
		u := setup(t, cfg)
		p := sandbox.CreateParams{
			Name: "my_Sandbox-1", Image: "debian", VCPUs: 0.5, MemoryMB: 256, DiskMB: 64, Timeout: minutes(10), IdleTimeout: minutes(3),
			Env: map[string]string{"A": "1", "EMPTY": ""}, Tags: map[string]string{"team": "blue", "ключ": "значение"},
			Network: sandbox.Network{Mode: sandbox.DenyAll}, ProjectID: account.DefaultProject,
		}
		u.create(p)
		s := u.get(p.Name)
		if s.Image != p.Image || s.Runtime != "" || s.VCPUs != p.VCPUs || s.MemoryMB != p.MemoryMB || s.DiskMB != p.DiskMB ||
			s.Timeout != p.Timeout || s.IdleTimeout != p.IdleTimeout || !maps.Equal(s.Env, p.Env) || !maps.Equal(s.Tags, p.Tags) ||
			!reflect.DeepEqual(s.Network, p.Network) {
			t.Fatalf("got %+v, want what was asked for: %+v", s, p)
		}
	})
	t.Run("MemoryFollowsVCPUs", func(t *testing.T) {
		u := setup(t, cfg)
		for _, c := range []struct {
			vcpus float64
			want  int64
		}{{0.1, 512}, {0.25, 512}, {1, 2048}, {1.5, 3072}} {
			if s := u.create(sandbox.CreateParams{VCPUs: c.vcpus}); s.MemoryMB != c.want {
				t.Errorf("%v vCPUs get %d MiB, want %d", c.vcpus, s.MemoryMB, c.want)
			}
		}
	})
	t.Run("NameTaken", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{Name: "one"})
		_, err := u.Create(u.ctx, sandbox.CreateParams{Name: "one"})
		checktest.Code(t, err, cay.AlreadyExists)
		// A stopped sandbox keeps its name, a deleted one does not.
		if _, err := u.Stop(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		_, err = u.Create(u.ctx, sandbox.CreateParams{Name: "one"})
		checktest.Code(t, err, cay.AlreadyExists)
		if err := u.Delete(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		if again := u.create(sandbox.CreateParams{Name: "one"}); again.ID == s.ID {
			t.Error("an id was used again")
		}
	})
	t.Run("MissingImage", func(t *testing.T) {
		u := setup(t, cfg)
		_, err := u.Create(u.ctx, sandbox.CreateParams{Name: "x", Image: "missing"})
		checktest.Code(t, err, cay.NotFound)
		s := u.get("x")
		wantStatus(t, s, sandbox.Failed, sandbox.ReasonStartFailed)
		if s.Message == "" {
			t.Error("a failed sandbox does not say why")
		}
		if err := u.Delete(u.ctx, "x"); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("UnknownProject", func(t *testing.T) {
		u := setup(t, cfg)
		_, err := u.Create(u.ctx, sandbox.CreateParams{ProjectID: "prj_b"})
		checktest.Code(t, err, cay.NotFound)
	})
	t.Run("CallerLeft", func(t *testing.T) {
		u := setup(t, cfg)
		ctx, cancel := context.WithCancel(u.ctx)
		cancel()
		if _, err := u.Create(ctx, sandbox.CreateParams{}); err == nil {
			t.Fatal("a caller who had left got a sandbox")
		}
		page, err := u.List(u.ctx, sandbox.ListParams{Status: []sandbox.Status{sandbox.Pending, sandbox.Running}})
		if err != nil || len(page.Items) != 0 {
			t.Fatalf("%v is left, %v", page.Items, err)
		}
	})
}

func testInvalid(t *testing.T, cfg Config) {
	long := strings.Repeat("x", 129)
	tags := make(map[string]string)
	for i := range 17 {
		tags[strings.Repeat("k", i+1)] = ""
	}
	u := cfg.New(t).user(t, Default)
	for _, c := range []struct {
		name string
		p    sandbox.CreateParams
		says string // part of the message: the value
	}{
		{"NameSpace", sandbox.CreateParams{Name: "a b"}, "a b"},
		{"NameLong", sandbox.CreateParams{Name: long}, long},
		{"NameSlash", sandbox.CreateParams{Name: "../x"}, "../x"},
		{"NameUnicode", sandbox.CreateParams{Name: "é"}, "é"},
		{"NameLikeID", sandbox.CreateParams{Name: "sbx_mine"}, "sbx_mine"},
		{"ImageAndRuntime", sandbox.CreateParams{Image: "debian", Runtime: "node24"}, "node24"},
		{"ImageSpace", sandbox.CreateParams{Image: "a b"}, "a b"},
		{"Runtime", sandbox.CreateParams{Runtime: "cobol"}, "cobol"},
		{"VCPUsLow", sandbox.CreateParams{VCPUs: 0.05}, "0.05"},
		{"VCPUsNegative", sandbox.CreateParams{VCPUs: -1}, "-1"},
		{"VCPUsHigh", sandbox.CreateParams{VCPUs: 65}, "65"},
		{"MemoryLow", sandbox.CreateParams{MemoryMB: 127}, "127"},
		{"MemoryHigh", sandbox.CreateParams{MemoryMB: 1 << 60}, "1152921504606846976"},
		{"DiskLow", sandbox.CreateParams{DiskMB: 15}, "15"},
		{"DiskNegative", sandbox.CreateParams{DiskMB: -1}, "-1"},
		{"TimeoutLow", sandbox.CreateParams{Timeout: sandbox.Duration(time.Millisecond)}, "1ms"},
		{"TimeoutNegative", sandbox.CreateParams{Timeout: seconds(-5)}, "-5s"},
		{"TimeoutHigh", sandbox.CreateParams{Timeout: sandbox.Duration(u.env.MaxTimeout + time.Hour)}, ""},
		{"SaveEveryLow", sandbox.CreateParams{Persistent: yes, SaveEvery: seconds(9)}, "9s"},
		{"SaveEveryOfNone", sandbox.CreateParams{SaveEvery: seconds(60)}, "persistent"},
		{"IdleLow", sandbox.CreateParams{IdleTimeout: sandbox.Duration(time.Millisecond)}, "1ms"},
		{"EnvEmpty", sandbox.CreateParams{Env: map[string]string{"": "x"}}, "env"},
		{"EnvEquals", sandbox.CreateParams{Env: map[string]string{"A=B": "x"}}, "A=B"},
		{"EnvNUL", sandbox.CreateParams{Env: map[string]string{"NULVAR": "x\x00"}}, "NULVAR"},
		{"EnvBig", sandbox.CreateParams{Env: map[string]string{"BIG": strings.Repeat("x", 300<<10)}}, "env"},
		{"TagsMany", sandbox.CreateParams{Tags: tags}, "17"},
		{"TagKey", sandbox.CreateParams{Tags: map[string]string{strings.Repeat("k", 65): ""}}, "kkk"},
		{"TagValue", sandbox.CreateParams{Tags: map[string]string{"k": strings.Repeat("v", 257)}}, "vvv"},
		{"TagControl", sandbox.CreateParams{Tags: map[string]string{"k": "\x1b[31m"}}, `\x1b`},
		{"User", sandbox.CreateParams{User: "a/b"}, "a/b"},
		{"WorkDirRelative", sandbox.CreateParams{WorkDir: "src"}, "src"},
		{"WorkDirNUL", sandbox.CreateParams{WorkDir: "/a\x00b"}, "workdir"},
		{"Network", sandbox.CreateParams{Network: sandbox.Network{Mode: "some"}}, "some"},
		{"Key", sandbox.CreateParams{IdempotencyKey: strings.Repeat("k", 256)}, "kkk"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := u.Create(u.ctx, c.p)
			checktest.Code(t, err, cay.Invalid)
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not name %q", err, c.says)
			}
		})
	}
	for _, c := range []struct {
		name string
		p    sandbox.ListParams
	}{
		{"ListLimit", sandbox.ListParams{Limit: 201}},
		{"ListLimitNegative", sandbox.ListParams{Limit: -1}},
		{"ListStatus", sandbox.ListParams{Status: []sandbox.Status{"dead"}}},
		{"ListCursor", sandbox.ListParams{Cursor: "nonsense!"}},
		{"ListPrefix", sandbox.ListParams{NamePrefix: "a%"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := u.List(u.ctx, c.p)
			checktest.Code(t, err, cay.Invalid)
		})
	}
	t.Run("NothingWasMade", func(t *testing.T) {
		page, err := u.List(u.ctx, sandbox.ListParams{})
		if err != nil || len(page.Items) != 0 {
			t.Fatalf("%d sandboxes, %v", len(page.Items), err)
		}
	})
}

func testIdempotency(t *testing.T, cfg Config) {
	t.Run("Repeated", func(t *testing.T) {
		u := setup(t, cfg)
		p := sandbox.CreateParams{Name: "one", Tags: map[string]string{"a": "1", "b": "2"}, IdempotencyKey: "k1"}
		first := u.create(p)
		if again := u.create(p); again.ID != first.ID {
			t.Fatalf("the same key made %s and %s", first.ID, again.ID)
		}
		if other := u.create(sandbox.CreateParams{IdempotencyKey: "k2"}); other.ID == first.ID {
			t.Fatal("another key returned the same sandbox")
		}
		p.Tags["a"] = "2"
		_, err := u.Create(u.ctx, p)
		checktest.Code(t, err, cay.Conflict)
		delete(p.Tags, "a")
	})
	t.Run("AfterStop", func(t *testing.T) {
		u := setup(t, cfg)
		p := sandbox.CreateParams{IdempotencyKey: "k"}
		s := u.create(p)
		if _, err := u.Stop(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		again := u.create(p)
		if again.ID != s.ID {
			t.Fatal("the key of a stopped sandbox made another")
		}
		wantStatus(t, again, sandbox.Stopped, sandbox.ReasonRequested)
	})
	t.Run("AfterDelete", func(t *testing.T) {
		u := setup(t, cfg)
		p := sandbox.CreateParams{IdempotencyKey: "k"}
		if err := u.Delete(u.ctx, u.create(p).ID); err != nil {
			t.Fatal(err)
		}
		_, err := u.Create(u.ctx, p)
		checktest.Code(t, err, cay.Conflict)
	})
	t.Run("AfterFailure", func(t *testing.T) {
		// A failed creation does not hold its key or its name: the next request can use
		// both.
		u := setup(t, cfg)
		p := sandbox.CreateParams{Name: "one", Image: "missing", IdempotencyKey: "k"}
		for range 2 {
			_, err := u.Create(u.ctx, p)
			checktest.Code(t, err, cay.NotFound)
		}
		page, err := u.List(u.ctx, sandbox.ListParams{})
		if err != nil || len(page.Items) != 1 {
			t.Fatalf("%d sandboxes, %v; want 1", len(page.Items), err)
		}
	})
	t.Run("Expires", func(t *testing.T) {
		u := setup(t, cfg)
		if u.env.Clock == nil {
			t.Skip("a key lives 24 hours, and time is real")
		}
		p := sandbox.CreateParams{IdempotencyKey: "k"}
		s := u.create(p)
		end := u.ending(s.ID)
		u.env.Clock.Advance(25 * time.Hour)
		end()
		if again := u.create(p); again.ID == s.ID {
			t.Fatal("the key was remembered for 25 hours")
		}
	})
	t.Run("OtherProject", func(t *testing.T) {
		t.Parallel()
		env := cfg.New(t)
		p := sandbox.CreateParams{IdempotencyKey: "k"}
		if env.user(t, ProjectA).create(p).ID == env.user(t, ProjectA2).create(p).ID {
			t.Fatal("projects share keys")
		}
	})
	t.Run("Concurrent", func(t *testing.T) {
		u := setup(t, cfg)
		ids := make([]string, 8)
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() {
				s, err := u.Create(u.ctx, sandbox.CreateParams{Name: "one", IdempotencyKey: "k"})
				if err != nil {
					t.Errorf("create: %v", err)
					return
				}
				ids[i] = s.ID
				if s.Status != sandbox.Running {
					t.Errorf("sandbox is %s, want running", s.Status)
				}
			})
		}
		wg.Wait()
		for _, id := range ids {
			if id != ids[0] {
				t.Fatalf("one key made several sandboxes: %v", ids)
			}
		}
	})
}

func testQuota(t *testing.T, cfg Config) {
	for _, c := range []struct {
		name  string
		quota account.Quota
	}{
		{"Sandboxes", account.Quota{Sandboxes: 2}},
		{"VCPUs", account.Quota{VCPUs: 1.2}},
		{"Memory", account.Quota{MemoryMB: 600}},
		{"Disk", account.Quota{DiskMB: 250}},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := setup(t, cfg)
			if u.env.SetQuota == nil {
				t.Skip("quotas of this service cannot be set")
			}
			u.env.SetQuota(account.DefaultTeam, c.quota)
			p := sandbox.CreateParams{VCPUs: 0.6, MemoryMB: 300, DiskMB: 125}
			u.create(p)
			s := u.create(p)
			_, err := u.Create(u.ctx, p)
			wantQuota(t, err)
			// Sandboxes that have ended do not count.
			if _, err := u.Stop(u.ctx, s.ID); err != nil {
				t.Fatal(err)
			}
			u.create(p)
			// Another team's sandboxes do not count either.
			u.env.user(t, ProjectB).create(p)
		})
	}
	t.Run("CreatesPerMinute", func(t *testing.T) {
		u := setup(t, cfg)
		if u.env.SetQuota == nil {
			t.Skip("quotas of this service cannot be set")
		}
		u.env.SetQuota(account.DefaultTeam, account.Quota{CreatesPerMinute: 2})
		for range 2 {
			if err := u.Delete(u.ctx, u.create(sandbox.CreateParams{}).ID); err != nil {
				t.Fatal(err)
			}
		}
		_, err := u.Create(u.ctx, sandbox.CreateParams{})
		after := wantQuota(t, err)
		if u.env.Clock != nil {
			u.env.Clock.Advance(after)
			u.create(sandbox.CreateParams{})
		}
	})
	t.Run("Race", func(t *testing.T) {
		u := setup(t, cfg)
		if u.env.SetQuota == nil {
			t.Skip("quotas of this service cannot be set")
		}
		u.env.SetQuota(account.DefaultTeam, account.Quota{Sandboxes: 3})
		var wg sync.WaitGroup
		made := make(chan string, 10)
		for range 10 {
			wg.Go(func() {
				if s, err := u.Create(u.ctx, sandbox.CreateParams{}); err == nil {
					made <- s.ID
				} else if cay.CodeOf(err) != cay.QuotaExceeded {
					t.Errorf("create: %v", err)
				}
			})
		}
		wg.Wait()
		if len(made) != 3 {
			t.Fatalf("%d sandboxes were made, the quota is 3", len(made))
		}
	})
}

func wantQuota(t *testing.T, err error) time.Duration {
	t.Helper()
	checktest.Code(t, err, cay.QuotaExceeded)
	if after := retryAfter(err); after > 0 {
		return after
	}
	t.Fatalf("%v does not say when to try again", err)
	return 0
}
