package config_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
)

func load(t *testing.T, file string, env, flags map[string]string) (config.Config, error) {
	t.Helper()
	s := config.Sources{Flags: flags, Env: func(name string) string { return env[name] }}
	if file != "" {
		s.File = filepath.Join(t.TempDir(), "cay.yaml")
		if err := os.WriteFile(s.File, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return config.Load(s)
}

func TestLoad_Precedence(t *testing.T) {
	t.Parallel()
	file := "# ours\nlisten: 127.0.0.1:1\nlog_level: warn\nallowed_hosts: [a.example, '*.b.example']\nquota:\n  memory: 2GiB\n  sandboxes: 3\nlimits:\n  timeout: 1h30m\n"
	file += "pool: 5\npools:\n- {runtime: python3.13, vcpus: 1, size: 10}\n- image: alpine\n  memory: 1GiB\n  disk: 2GiB\n  size: 1\n"
	env := map[string]string{"CAY_LISTEN": "127.0.0.1:2", "CAY_QUOTA_SANDBOXES": "4", "CAY_LOG_FORMAT": "json", "CAY_TLS_CERT": "", "CAY_DATA": "/env"}
	c, err := load(t, file, env, map[string]string{"listen": "localhost:3", "insecure_no_limits": "true"})
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	want.Data = "/env"
	want.Listen = "localhost:3"
	want.LogLevel, want.LogFormat = slog.LevelWarn, "json"
	want.AllowedHosts = []string{"a.example", "*.b.example"}
	want.InsecureNoLimits = true
	want.Quota.Memory, want.Quota.Sandboxes = 2*config.GiB, 4
	want.Limits.Timeout = 90 * time.Minute
	want.Pool = 5
	want.Pools = []config.Pool{{Runtime: "python3.13", VCPUs: 1, Size: 10}, {Image: "alpine", Memory: config.GiB, Disk: 2 * config.GiB, Size: 1}}
	if !reflect.DeepEqual(c, want) {
		t.Fatalf("got  %+v\nwant %+v", c, want)
	}
}

func TestLoad_RelativePaths(t *testing.T) {
	t.Parallel()
	c, err := load(t, "data: d\ntls_cert: c\ntls_key: k\n", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{c.Data, c.TLSCert, c.TLSKey, c.AdminTokenFile(), c.DatabaseFile(), c.ImageDir()} {
		if !filepath.IsAbs(p) {
			t.Errorf("%q is not absolute", p)
		}
	}
}

func TestLoad_Wrong(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		file  string
		env   map[string]string
		flags map[string]string
		says  string
	}{
		{"UnknownKey", "listne: x\n", nil, nil, `unknown field "listne"`},
		{"UnknownNestedKey", "quota:\n  sandbox: 3\n", nil, nil, `unknown field "sandbox"`},
		{"RepeatedKey", "listen: a:1\nlisten: b:1\n", nil, nil, `"listen" already defined`},
		{"WrongType", "quota:\n  sandboxes: many\n", nil, nil, "[2:14]"},
		{"NotYAML", "listen: [\n", nil, nil, "[1:"},
		{"TwoDocuments", "listen: 127.0.0.1:1\n---\nlisten: 127.0.0.1:2\n", nil, nil, "more than one"},
		{"SizeInFile", "quota:\n  memory: 12\n", nil, nil, "no unit"},
		{"LevelInFile", "log_level: loud\n", nil, nil, "loud"},
		{"Env", "", map[string]string{"CAY_QUOTA_VCPUS": "x"}, nil, `CAY_QUOTA_VCPUS: "x" is not a number`},
		{"Flag", "", nil, map[string]string{"limits.timeout": "5"}, `--limits-timeout: "5" is not a duration`},
		{"FlagSize", "", nil, map[string]string{"limits.memory": "-1GiB"}, `--limits-memory: "-1GiB" is not a size`},
		{"FlagLevel", "", nil, map[string]string{"log_level": "loud"}, `--log-level: "loud" is no log level`},
		{"ListenNoPort", "listen: localhost\n", nil, nil, `listen is "localhost"`},
		{"ListenPort", "listen: localhost:99999\n", nil, nil, `listen is "localhost:99999"`},
		{"ListenAll", "listen: 0.0.0.0:7070\n", nil, nil, "tokens would cross"},
		{"ListenEmptyHost", "listen: ':7070'\n", nil, nil, "tokens would cross"},
		{"ListenName", "listen: cay.example:7070\n", nil, nil, "tokens would cross"},
		{"ListenMapped", "listen: '[::ffff:10.0.0.1]:7070'\n", nil, nil, "tokens would cross"},
		{"CertAlone", "tls_cert: /c\n", nil, nil, "both or neither"},
		{"AllowedHostURL", "allowed_hosts: ['https://x']\n", nil, nil, `allowed_hosts is "https://x"`},
		{"AllowedHostPort", "allowed_hosts: ['x:1']\n", nil, nil, `allowed_hosts is "x:1"`},
		{"AllowedHostStar", "allowed_hosts: ['a.*.x']\n", nil, nil, `allowed_hosts is "a.*.x"`},
		{"AllowedHostPreview", "allowed_hosts: [cay.Example.com]\npreview_domain: example.com\n", nil, nil, `allowed_hosts is "cay.Example.com"; previews are served there`},
		{"AllowedHostsPreviews", "allowed_hosts: ['*.example.com']\npreview_domain: example.com\n", nil, nil, `allowed_hosts is "*.example.com"`},
		{"ListenPreview", "listen: x.localhost:1\ninsecure: true\n", nil, nil, `listen is "x.localhost:1"; previews are served there`},
		{"PreviewDomainEmpty", "", nil, map[string]string{"preview_domain": ""}, `preview_domain is ""`},
		{"PreviewDomainURL", "preview_domain: 'https://x'\n", nil, nil, `preview_domain is "https://x"`},
		{"PreviewDomainStar", "preview_domain: '*.x'\n", nil, nil, `preview_domain is "*.x"`},
		{"PreviewDomainAddress", "preview_domain: 127.0.0.1\n", nil, nil, `preview_domain is "127.0.0.1"`},
		{"PreviewDomainHyphen", "preview_domain: x-.test\n", nil, nil, `preview_domain is "x-.test"`},
		{"PublicURLPath", "public_url: https://cay.example.com/\n", nil, nil, `public_url is "https://cay.example.com/"`},
		{"PublicURLScheme", "public_url: cay.example.com:443\n", nil, nil, `public_url is "cay.example.com:443"`},
		{"PublicURLUser", "public_url: https://a:b@cay.example.com\n", nil, nil, `public_url is`},
		{"PublicURLPreview", "public_url: https://cay.localhost\n", nil, nil, `public_url is "https://cay.localhost"; previews are served there`},
		{"PreviewURLNoLabel", "preview_url: https://x.localhost\n", nil, nil, `preview_url is "https://x.localhost"`},
		{"PreviewURLOtherDomain", "preview_url: 'https://{label}.example.com'\n", nil, nil, `preview_url is "https://{label}.example.com"`},
		{"PreviewURLScheme", "preview_url: 'ftp://{label}.localhost'\n", nil, nil, `preview_url is`},
		{"PreviewURLPath", "preview_url: 'http://{label}.localhost/x'\n", nil, nil, `preview_url is`},
		{"PreviewURLTwice", "preview_url: 'http://{label}.{label}.localhost'\n", nil, nil, `preview_url is`},
		{"PreviewCertAlone", "preview_tls_cert: /c\n", nil, nil, "both or neither"},
		{"PreviewCertWithoutOther", "preview_tls_cert: /c\npreview_tls_key: /k\n", nil, nil, "it takes tls_cert and tls_key as well"},
		{"Range", "allow_ranges: ['10.1.0.0']\n", nil, nil, `allow_ranges is "10.1.0.0"`},
		{"NameserverName", "nameservers: [dns.example.com]\n", nil, nil, `nameservers is "dns.example.com"`},
		{"NameserverPort", "", nil, map[string]string{"nameservers": "10.0.0.53,10.0.0.54:0"}, `nameservers is "10.0.0.54:0"`},
		{"RangeNotMasked", "allow_ranges: ['10.1.0.1/16']\n", nil, nil, `allow_ranges is "10.1.0.1/16"`},
		{"LogFormat", "log_format: xml\n", nil, nil, `log_format is "xml"`},
		{"Mirror", "debian_mirror: mirror\n", nil, nil, `debian_mirror is "mirror"`},
		{"Registry", "npm_registry: ftp://mirror\n", nil, nil, `npm_registry is "ftp://mirror"`},
		{"QuotaNegative", "quota:\n  vcpus: -1\n", nil, nil, `quota.vcpus is "-1"`},
		{"QuotaNaN", "quota:\n  vcpus: .nan\n", nil, nil, `quota.vcpus is "NaN"`},
		{"Snapshots", "quota:\n  snapshots: -1GiB\n", nil, nil, `"-1GiB" is not a size`},
		{"SnapshotExpiration", "snapshot_expiration: 1s\n", nil, nil, `snapshot_expiration is "1s"; it must be at least 1m`},
		{"WorkflowRetention", "workflow_retention: -1h\n", nil, nil, `workflow_retention is "-1h0m0s"; it must be at least 0`},
		{"SnapshotSize", "limits:\n  snapshot: 0\n", nil, nil, `limits.snapshot is "0"; it must be at least 1MiB`},
		{"LimitLow", "limits:\n  memory: 1MiB\n", nil, nil, `limits.memory is "1.0MiB"; it must be at least 128MiB`},
		{"ConnectionsZero", "limits:\n  connections: 0\n", nil, nil, `limits.connections is "0"; it must be at least 1`},
		{"ConnectionRateZero", "", map[string]string{"CAY_LIMITS_CONNECTION_RATE": "0"}, nil, `limits.connection_rate is "0"`},
		{"PoolNegative", "", nil, map[string]string{"pool": "-1"}, `pool is "-1"; it must be 0 to 1000`},
		{"PoolLarge", "pool: 1001\n", nil, nil, `pool is "1001"`},
		{"PoolNotANumber", "", map[string]string{"CAY_POOL": "many"}, nil, `CAY_POOL: "many" is not a whole number`},
		{"PoolsNoSize", "pools: [{runtime: python3.13}]\n", nil, nil, `pools[0].size is "0"; it must be 1 to 1000`},
		{"PoolsUnknownKey", "pools: [{size: 1, cpus: 1}]\n", nil, nil, `unknown field "cpus"`},
		{"PoolsImageAndRuntime", "pools: [{size: 1, image: debian, runtime: node24}]\n", nil, nil, "pools[0]: "},
		{"PoolsVCPUs", "pools: [{size: 1, vcpus: 0.01}]\n", nil, nil, "pools[0]: "},
		{"PoolsOverLimit", "pools: [{size: 1, memory: 2GiB}]\nlimits: {memory: 1GiB}\n", nil, nil, `pools[0].memory is "2.0GiB"; limits.memory is 1.0GiB`},
		{"PoolsTwice", "pools: [{size: 1, runtime: node22}, {size: 2, runtime: node22, vcpus: 2}]\n", nil, nil, "pools[1] is of the same kind"},
		{"PoolsDefaultTwice", "pool: 1\npools: [{size: 1, vcpus: 2}]\n", nil, nil, "pools[0] is of the same kind"},
		{"StartsZero", "limits:\n  starts: 0\n", nil, nil, `limits.starts is "0"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := load(t, tc.file, tc.env, tc.flags)
			if cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("got %v (%s), want invalid that says %s", err, cay.CodeOf(err), tc.says)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("the error has more than one line: %q", err)
			}
		})
	}
}

func TestLoad_MissingFile(t *testing.T) {
	t.Parallel()
	_, err := config.Load(config.Sources{File: "/does/not/exist"})
	if cay.CodeOf(err) != cay.Invalid || !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
}

func TestValidate_Listen(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		listen string
		change func(c *config.Config)
	}{
		{"127.0.0.1:0", nil},
		{"127.8.8.8:1", nil},
		{"[::1]:7070", nil},
		{"LOCALHOST:7070", nil},
		{"[::ffff:127.0.0.1]:7070", nil},
		{"0.0.0.0:7070", func(c *config.Config) { c.Insecure = true }},
		{":7070", func(c *config.Config) { c.TLSCert, c.TLSKey = "/c", "/k" }},
	} {
		t.Run(tc.listen, func(t *testing.T) {
			t.Parallel()
			c := config.Default()
			c.Listen = tc.listen
			if tc.change != nil {
				tc.change(&c)
			}
			if err := c.Validate(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Every field has a setting and vice versa, and every default can be written as
// text.
func TestSettings_Complete(t *testing.T) {
	t.Parallel()
	var keys []string
	var walk func(prefix string, typ reflect.Type)
	walk = func(prefix string, typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			key := prefix + f.Tag.Get("yaml")
			if f.Type == reflect.TypeFor[[]config.Pool]() {
				continue // in files only
			}
			if f.Type.Kind() == reflect.Struct {
				walk(key+".", f.Type)
			} else {
				keys = append(keys, key)
			}
		}
	}
	walk("", reflect.TypeFor[config.Config]())

	c, again := config.Default(), config.Config{}
	var got []string
	to := again.Settings()
	for i, s := range c.Settings() {
		got = append(got, s.Key)
		if s.Usage == "" || s.Type() == "" {
			t.Errorf("%s has no usage or type", s.Key)
		}
		if err := to[i].Set(s.String()); err != nil {
			t.Errorf("%s: %v", s.Key, err)
		}
	}
	if !reflect.DeepEqual(got, keys) {
		t.Errorf("settings %v\nfields   %v", got, keys)
	}
	if !reflect.DeepEqual(again, c) {
		t.Errorf("defaults through text: %+v\nwant %+v", again, c)
	}
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]config.Size{
		"0": 0, "0MiB": 0, "1KiB": 1 << 10, "512MiB": 512 << 20, "2GiB": 2 << 30, "2gib": 2 << 30, "1.5 GiB": 3 << 29,
		"2g": 2 << 30, "2G": 2 << 30, "512m": 512 << 20, "1GB": 1e9, "10B": 10, " 1TiB ": 1 << 40,
	} {
		if got, err := config.ParseSize(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "12", "GiB", "-1GiB", "1XiB", "1e30GiB", "9999999TiB", "1GiB2", "0x10MiB", "NaNMiB"} {
		if got, err := config.ParseSize(text); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("%q: got %d, %v; want invalid", text, got, err)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("listen: 127.0.0.1:1\nquota: {memory: 2GiB}\n")
	f.Add("a: &a [*a]\n")
	f.Add("---\n...\n---\n")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(dir, "f.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(config.Sources{File: path})
		if err == nil {
			err = c.Validate()
		}
		if err != nil && cay.CodeOf(err) != cay.Invalid {
			t.Fatalf("%v has code %s", err, cay.CodeOf(err))
		}
	})
}

func TestPreviewURL(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(c *config.Config)
		port   int
		want   string
		secure bool
	}{
		{"Default", func(*config.Config) {}, 7070, "http://abc.localhost:7070", false},
		{"Port80", func(*config.Config) {}, 80, "http://abc.localhost", false},
		{"TLS", func(c *config.Config) { c.TLSCert, c.PreviewDomain = "/c", "P.example.com" }, 443, "https://abc.p.example.com", true},
		{"TLSPort80", func(c *config.Config) { c.TLSCert = "/c" }, 80, "https://abc.localhost:80", true},
		{"Proxy", func(c *config.Config) { c.PreviewTemplate = "https://{label}.p.example.com/" }, 7070, "https://abc.p.example.com", true},
		{"ProxyPort", func(c *config.Config) { c.PreviewTemplate = "http://{label}.p.example.com:8080" }, 7070, "http://abc.p.example.com:8080", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := config.Default()
			tc.change(&c)
			if got := c.PreviewURL("abc", tc.port); got != tc.want || c.PreviewSecure() != tc.secure {
				t.Errorf("%s, secure %v", got, c.PreviewSecure())
			}
		})
	}
}

// A file whose settings are all commented out, as the packages install it, changes nothing.
func TestLoad_Comments(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"\n", "# all\n\n#listen: 127.0.0.1:1\n"} {
		c, err := load(t, file, nil, nil)
		if err != nil {
			t.Fatalf("%q: %v", file, err)
		}
		if want := config.Default(); !reflect.DeepEqual(c, want) {
			t.Errorf("%q: got %+v, want %+v", file, c, want)
		}
	}
}
