// Package cay_test holds the rules of the codebase as tests: which way imports
// point, who may do what, and what every package must say about itself. Each
// rule gives its reason. To allow an exception, add it to the rule's list with
// the reason beside it.
package cay_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/cayhq/cay"

// pkg is a package of this module, in the form of "go list".
type pkg struct {
	ImportPath, Dir, Name, Doc                                   string
	GoFiles, CgoFiles, IgnoredGoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports                           []string
	Deps                                                         []string // without those of tests
}

// path is the package's path in the repository, "." for the root.
func (p *pkg) path() string { return relative(p.ImportPath) }

// inTests returns the packages that its tests import.
func (p *pkg) inTests() []string { return slices.Concat(p.TestImports, p.XTestImports) }

// relative returns the path in the repository of a package of this module, and
// any other import path unchanged.
func relative(importPath string) string {
	if importPath == module {
		return "."
	}
	return strings.TrimPrefix(importPath, module+"/")
}

// isTestSupport reports whether a package exists only for tests: tests' rules
// apply to it.
func isTestSupport(path string) bool {
	return strings.HasSuffix(path, "test") || path == "internal/testenv"
}

// notOurs reports whether a directory of that name holds no files of ours.
func notOurs(name string) bool { return strings.HasPrefix(name, ".") || name == "node_modules" }

var list = sync.OnceValues(func() ([]*pkg, error) {
	// "go test" caches this test until a directory that it has read changes; it
	// does not see the files that "go list" reads.
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && path != "." && notOurs(e.Name()) {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Name,Doc,GoFiles,CgoFiles,IgnoredGoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports,Deps", "./...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as released
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, &stderr)
	}
	var all []*pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(pkg)
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		all = append(all, p)
	}
})

func packages(t *testing.T) []*pkg {
	t.Helper()
	all, err := list()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func find(t *testing.T, path string) *pkg {
	t.Helper()
	for _, p := range packages(t) {
		if p.path() == path {
			return p
		}
	}
	t.Fatalf("there is no package %s", path)
	return nil
}

// within reports whether path is dir or below it.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func withinAny(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return within(path, dir) })
}

// isStandard reports whether an import path is of the standard library: its
// first element is no domain name.
func isStandard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}

// The packages that may be linked into programs other than the daemon. "std" is
// the standard library.
func TestArch_Linked(t *testing.T) {
	for _, rule := range []struct {
		path    string
		allowed []string
		reason  string
	}{
		{".", []string{"std"}, "everything imports the root package"},
		{"sandbox", []string{"std", ".", "internal/wire"}, "SDK users must not get a daemon, a database driver or anybody's dependencies into their programs"},
		{"account", []string{"std", ".", "internal/wire"}, "as for sandbox"},
		{"gateway", []string{"std", ".", "internal/wire"}, "as for sandbox"},
		{"workflow", []string{"std", ".", "internal/wire", "internal/history", "internal/workflowd/protocol"}, "as for sandbox; who opens a database in the program imports workflow/sqlite or workflow/postgres"},
		{"agent", []string{"std", ".", "gateway", "workflow", "internal/wire", "internal/history", "internal/workflowd/protocol",
			"internal/sse",                     // reads streams of events, and knows nothing of the gateway
			"github.com/google/jsonschema-go"}, // schemas of Go types and values checked by them, which the standard library has not; it depends on nothing
			"as for workflow, which it is built on"},
		{"agent/chat", []string{"std", ".", "agent", "gateway", "workflow", "internal/wire", "internal/history", "internal/workflowd/protocol",
			"internal/sse", "github.com/google/jsonschema-go"}, // by way of agent
			"as for agent: it is a handler among others of a program"},
		{"agent/sandboxtool", []string{"std", ".", "agent", "gateway", "sandbox", "workflow", "internal/wire", "internal/history", "internal/workflowd/protocol",
			"internal/sse", "github.com/google/jsonschema-go"}, // by way of agent
			"as for agent: it works in sandboxes by their client"},
		{"internal/history", []string{"std", "."}, "the SDK packages link it"},
		{"internal/workflowd/protocol", []string{"std", ".", "internal/wire", "internal/history"}, "package workflow links it"},
		{"internal/wire", []string{"std", "."}, "the SDK packages link it"},
		{"cmd/cay-guest", []string{"std", ".", "sandbox", "internal/wire", "internal/sandboxd/guest", "golang.org/x/sys",
			"github.com/klauspost/compress", "github.com/bmatcuk/doublestar/v4"}, // archives and globs
			"it starts in every sandbox, on the way to the user's first command: each dependency costs time and memory there"},
		{"cmd/cay-sentry", []string{"std", "internal/sandboxd/gvisor/sentry", "gvisor.dev/gvisor", "golang.org/x",
			// by way of gVisor
			"github.com/google/subcommands", "github.com/google/btree", "github.com/cenkalti/backoff", "github.com/moby/sys/capability", "github.com/mohae/deepcopy",
			"github.com/opencontainers/runtime-spec", "google.golang.org/protobuf", "github.com/gofrs/flock", "github.com/coreos/go-systemd/v22", "github.com/godbus/dbus/v5", "github.com/BurntSushi/toml", "github.com/vishvananda"},
			"each sandbox is one: what it links initializes each time"},
	} {
		t.Run(rule.path, func(t *testing.T) {
			for _, dep := range find(t, rule.path).Deps {
				ok := isStandard(dep) || slices.ContainsFunc(rule.allowed, func(a string) bool {
					if a == "." {
						return dep == module
					}
					return within(relative(dep), a)
				})
				if !ok {
					t.Errorf("%s links %s; it may link %s only: %s", rule.path, relative(dep), strings.Join(rule.allowed, ", "), rule.reason)
				}
			}
		})
	}
}

// slices of the daemon, present and planned.
var engines = []string{"internal/sandboxd", "internal/accountd", "internal/imaged", "internal/workflowd", "internal/gatewayd", "internal/agentd"}

func TestArch_SlicesDoNotImportEachOther(t *testing.T) {
	const reason = "each slice has one owner and can be read alone; it takes small interfaces, and internal/daemon hands it the other slices"
	for _, p := range packages(t) {
		own := slices.IndexFunc(engines, func(e string) bool { return within(p.path(), e) })
		if own < 0 {
			continue
		}
		for _, imp := range slices.Concat(p.Imports, p.inTests()) {
			other := slices.IndexFunc(engines, func(e string) bool { return within(relative(imp), e) })
			if other >= 0 && other != own {
				t.Errorf("%s imports %s: %s", p.path(), relative(imp), reason)
			}
		}
	}
}

// rooms are packages of the sandbox slice that can be read without its engine.
// The values are the packages of the slice that they depend on.
var rooms = map[string][]string{
	"ident": nil, "clock": nil, "feed": nil, "flowlog": nil, "machine": nil,
	"store": {"ident"}, "usage": {"machine"}, "idle": {"clock"},
	"label": {"store", "ident"},
}

func TestArch_Rooms(t *testing.T) {
	const reason = "a room is read without the engine; it says by an interface what it needs of it"
	const slice = "internal/sandboxd"
	for room, with := range rooms {
		for _, dep := range find(t, slice+"/"+room).Deps {
			name, _ := strings.CutPrefix(relative(dep), slice+"/")
			if within(relative(dep), slice) && name != room && !slices.Contains(with, name) {
				t.Errorf("%s/%s links %s: %s", slice, room, relative(dep), reason)
			}
		}
	}
}

// Runtimes make machines and know nothing of the sandboxes that the machines are
// for.
func TestArch_RuntimesKnowNoEngine(t *testing.T) {
	const engine = "internal/sandboxd"
	for _, name := range []string{"gvisor", "fake", "runtimetest"} {
		if slices.Contains(find(t, engine+"/"+name).Deps, module+"/"+engine) {
			t.Errorf("%s/%s links the engine: what they have in common is package machine", engine, name)
		}
	}
}

// manyFiles are the packages with more files than a reader can keep in mind.
var manyFiles = map[string]string{
	"cmd/cay":  "a file for each noun of the command line",
	"workflow": "the SDK is one package to its users",
}

func TestArch_Size(t *testing.T) {
	const most = 40
	for _, p := range packages(t) {
		n := len(p.GoFiles) + len(p.CgoFiles) + len(p.IgnoredGoFiles)
		if _, ok := manyFiles[p.path()]; ok != (n > most) {
			t.Errorf("%s has %d files without its tests, of at most %d: give a part of it a package of its own, or take it off the list", p.path(), n, most)
		}
	}
}

// Handlers know the operations on sandboxes, and not their implementation.
func TestArch_RouteKnowsTheContract(t *testing.T) {
	const reason = "a handler decodes, calls the service, and encodes; what it needs beside that belongs into the contract"
	for _, s := range sources(t) {
		if s.pkg.path() != "internal/sandboxd/route" || s.test {
			continue
		}
		s.uses(func(n ast.Node, name string) {
			if name, ok := strings.CutPrefix(name, module+"/internal/sandboxd."); ok && name != "Service" {
				t.Errorf("%s uses sandboxd.%s: %s", s.at(n), name, reason)
			}
		})
	}
}

// The packages that may import a package. A package may always import the
// packages below it.
func TestArch_Imports(t *testing.T) {
	for _, rule := range []struct {
		imported string   // a package of ours or of others, and all below it
		by       []string // and below
		tests    bool     // tests may import it, too
		reason   string
	}{
		{imported: "cmd", reason: "a command is the end of the line; what others need belongs into a package"},
		{
			imported: "internal/daemon", by: []string{"cmd/cay", "bench", "internal/testenv"}, tests: true,
			reason: "the wiring knows all parts, so a part that knew the wiring would be a circle",
		},
		{
			imported: "gvisor.dev/gvisor", by: []string{"internal/sandboxd/gvisor", "internal/sandboxd/network", "internal/image/rootfs/rootfstest"},
			reason: "gVisor has no stable API: the runtime and the link keep it behind interfaces, and image tests read what we write with its reader",
		},
		{
			imported: "internal/ui", by: []string{"internal/daemon"},
			reason: "the pages are a client of the API: nothing depends on them",
		},
		{
			imported: "internal/sandboxd/gvisor", by: []string{"internal/daemon", "cmd/cay", "cmd/cay-bench", "cmd/cay-sentry", "bench"}, tests: true,
			reason: "engines know machine.Runtime only; commands must call HandleReexec",
		},
		{
			imported: "internal/sandboxd/fake", by: nil, tests: true,
			reason: "it isolates nothing: tenant code would run on the host",
		},
		{
			imported: "internal/sandboxd/guest/agent", by: []string{"internal/sandboxd/guest/initd", "internal/sandboxd/fake"}, tests: true,
			reason: "it runs programs where it is, and that must be in a sandbox",
		},
		{
			imported: "database/sql", by: []string{"internal/db", "internal/sandboxd/store", "internal/accountd", "internal/gatewayd", "internal/workflowd/sqlstore",
				"workflow"}, // the transactions that steps are given
			tests: true, reason: "rows are read in the slices' store files, everything else about databases is internal/db's",
		},
		{
			imported: "modernc.org/sqlite", by: []string{"internal/db", "internal/workflowd/sqlstore"},
			reason: "one package opens the daemon's database, and one those of workflows, which writes in another way",
		},
		{
			imported: "github.com/jackc/pgx/v5", by: []string{"internal/db/pgtest", "internal/workflowd/sqlstore"}, tests: true,
			reason: "only users of PostgreSQL link its driver, behind the store",
		},
		{
			imported: "go.opentelemetry.io/otel", by: []string{"workflow/trace", "agent/trace", "internal/otlp", "internal/gatewayd", "internal/daemon"}, tests: true,
			reason: "of programs with workflows only users of OpenTelemetry link it, behind workflow.Observer; the daemon makes spans of the gateway's calls",
		},
		{
			imported: "github.com/spf13/cobra", by: []string{"cmd/cay"},
			reason: "flags and help are the command line's",
		},
		{
			imported: "testing", by: []string{"bench"}, tests: true,
			reason: "it puts its flags into the program; test helpers live in packages named ...test",
		},
	} {
		for _, p := range packages(t) {
			if within(p.path(), rule.imported) || withinAny(p.path(), rule.by) {
				continue
			}
			imports := p.Imports
			switch {
			case rule.tests && isTestSupport(p.path()):
				continue
			case !rule.tests:
				imports = slices.Concat(imports, p.inTests())
			}
			for _, imp := range imports {
				if within(relative(imp), rule.imported) {
					t.Errorf("%s imports %s, which is for %s: %s", p.path(), relative(imp), orNobody(rule.by, rule.tests), rule.reason)
				}
			}
		}
	}
}

func orNobody(by []string, tests bool) string {
	if tests {
		by = append(slices.Clone(by), "tests")
	}
	if len(by) == 0 {
		return "nobody"
	}
	return strings.Join(by, ", ")
}

// The packages that slices are built on know no slice.
func TestArch_KitsKnowNoSlice(t *testing.T) {
	for _, kit := range []string{"internal/api", "internal/blob", "internal/db", "internal/flock", "internal/handover", "internal/host", "internal/strictyaml", "internal/wire", "internal/sse", "internal/config", "internal/ui", "internal/ulids"} {
		for _, dep := range find(t, kit).Deps {
			if withinAny(relative(dep), engines) || within(relative(dep), "internal/daemon") {
				t.Errorf("%s depends on %s: all slices are built on it", kit, relative(dep))
			}
		}
	}
}

// The released program has no code that is for tests or for measurements only.
func TestArch_NoTestCodeInRelease(t *testing.T) {
	for _, dep := range find(t, "cmd/cay").Deps {
		if strings.HasPrefix(dep, module+"/") && (isTestSupport(relative(dep)) || within(relative(dep), "internal/sandboxd/fake")) {
			t.Errorf("cmd/cay links %s, which is for tests", relative(dep))
		}
		if within(relative(dep), "bench") {
			t.Errorf("cmd/cay links %s, which is for cmd/cay-bench", relative(dep))
		}
	}
}

// The helpers of all slices' tests are written once, in checktest.
func TestArch_OneKit(t *testing.T) {
	const kit = "internal/checktest"
	functions := []string{"must", "noError", "wantCode"}
	for _, s := range sources(t) {
		if s.pkg.path() == kit || !s.test && !isTestSupport(s.pkg.path()) {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && slices.Contains(functions, d.Name.Name) {
					t.Errorf("%s: func %s: %s has OK, Must and Code", s.at(d), d.Name.Name, kit)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok && isLockedBuffer(s, spec.Type) {
						t.Errorf("%s: type %s: %s has Log", s.at(d), spec.Name.Name, kit)
					}
				}
			}
		}
	}
}

// isLockedBuffer reports whether a type is a lock and a buffer, and nothing else.
func isLockedBuffer(s *source, typ ast.Expr) bool {
	fields, ok := typ.(*ast.StructType)
	if !ok || len(fields.Fields.List) != 2 {
		return false
	}
	lock, buffer := false, false
	s.usesBelow(typ, func(_ ast.Node, name string) {
		lock = lock || name == "sync.Mutex" || name == "sync.RWMutex"
		buffer = buffer || name == "bytes.Buffer" || name == "strings.Builder"
	})
	return lock && buffer
}

func TestArch_PackageNames(t *testing.T) {
	meaningless := []string{"util", "utils", "common", "types", "models", "helpers", "misc", "base", "shared", "lib"}
	for _, p := range packages(t) {
		for elem := range strings.SplitSeq(p.path(), "/") {
			if slices.Contains(meaningless, elem) {
				t.Errorf("package %s: %q says nothing about what is in it; a helper lives beside its user", p.path(), elem)
			}
		}
		if strings.ContainsAny(p.Name, "_ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
			t.Errorf("package %s is called %s: names are one short lower-case word", p.path(), p.Name)
		}
	}
}

func TestArch_PackageComments(t *testing.T) {
	for _, p := range packages(t) {
		if p.Doc == "" && len(p.GoFiles) > 0 {
			t.Errorf("package %s has no package comment: it says what the package is for and what it must not know", p.path())
		}
	}
}

// source is one parsed file.
type source struct {
	pkg     *pkg
	name    string // path in the repository
	test    bool
	file    *ast.File
	imports map[string]string // import path by the name it has in the file
}

var fset = token.NewFileSet()

var parsed = sync.OnceValues(func() ([]*source, error) {
	all, err := list()
	if err != nil {
		return nil, err
	}
	var files []*source
	for _, p := range all {
		for i, names := range [][]string{p.GoFiles, p.CgoFiles, p.IgnoredGoFiles, p.TestGoFiles, p.XTestGoFiles} {
			for _, name := range names {
				f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
				if err != nil {
					return nil, err
				}
				s := &source{pkg: p, name: path.Join(p.path(), name), test: i >= 3, file: f, imports: map[string]string{}}
				for _, spec := range f.Imports {
					imp, err := strconv.Unquote(spec.Path.Value)
					if err != nil {
						return nil, err
					}
					as := path.Base(imp)
					if spec.Name != nil {
						as = spec.Name.Name
					}
					s.imports[as] = imp
				}
				files = append(files, s)
			}
		}
	}
	return files, nil
})

func sources(t *testing.T) []*source {
	t.Helper()
	files, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func (s *source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.name, fset.Position(n.Pos()).Line)
}

// uses calls f for each use of an exported name of another package, such as
// "os/exec.Command".
func (s *source) uses(f func(n ast.Node, name string)) { s.usesBelow(s.file, f) }

// usesBelow is uses of a part of the file.
func (s *source) usesBelow(part ast.Node, f func(n ast.Node, name string)) {
	ast.Inspect(part, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && s.imports[x.Name] != "" {
				f(n, s.imports[x.Name]+"."+sel.Sel.Name)
			}
		}
		return true
	})
}

func TestArch_NoCgo(t *testing.T) {
	for _, s := range sources(t) {
		for _, imp := range s.imports {
			if imp == "C" {
				t.Errorf(`%s imports "C": gVisor's helper processes fail in a program built with cgo`, s.name)
			}
		}
	}
}

// startsProcesses matches the functions with which Go programs start programs.
var startsProcesses = regexp.MustCompile(`^(os/exec\.Command(Context)?|os\.StartProcess|(syscall|golang\.org/x/sys/unix)\.(ForkExec|StartProcess|Exec|SYS_(CLONE3?|V?FORK))|.*/agent/process\.Start)$`)

// mayStartProcesses are the packages that start programs.
var mayStartProcesses = map[string]string{
	"internal/sandboxd/guest/agent":         "it is inside the sandbox: this is where tenant code starts",
	"internal/sandboxd/guest/agent/process": "this is how",
	"internal/handover":                     "it starts the program of cay that takes over from this process",
	"internal/sandboxd/gvisor":              "it executes this very program again, as a pager",
	"internal/image":                        "mmdebstrap and npm make images; neither runs code of a tenant",
	"cmd/cay":                               "it becomes a program of its user's, in their own name: cay vercel exec",
	"bench":                                 "it runs what cay is compared with",
	"internal/sandboxd/gvisor/edits":        "it asks the go command which packages cay-sentry needs, before cay-sentry is built",
}

// Tenant code runs in a machine.Runtime and nowhere else. gVisor's own code for
// starting sentries is behind sandbox.New, which only internal/sandboxd/gvisor
// may call.
func TestArch_WhoStartsProcesses(t *testing.T) {
	used := map[string]bool{}
	for _, s := range sources(t) {
		if s.test || isTestSupport(s.pkg.path()) {
			continue
		}
		s.uses(func(n ast.Node, name string) {
			if !startsProcesses.MatchString(name) {
				return
			}
			used[s.pkg.path()] = true
			if mayStartProcesses[s.pkg.path()] == "" {
				t.Errorf("%s uses %s: programs are started by few packages, so that no tenant's code can come to run outside of a sandbox", s.at(n), name)
			}
		})
	}
	for p := range mayStartProcesses {
		if _, err := os.Stat(p); err == nil && !used[p] && p != "bench" {
			t.Errorf("%s starts no process any more: take it off the list", p)
		}
	}
}

var (
	statement = regexp.MustCompile(`^\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE (TABLE|(UNIQUE )?INDEX)|ALTER TABLE|DROP|WITH|PRAGMA|BEGIN|COMMIT|ROLLBACK)\b`)
	storeFile = regexp.MustCompile(`^store(_[a-z]+)*\.go$`)
	// sqlPackages are packages that consist of a store.
	sqlPackages = map[string]bool{"store": true, "sqlstore": true}
)

func TestArch_SQLInStoreFiles(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || isTestSupport(s.pkg.path()) || s.pkg.path() == "internal/db" || storeFile.MatchString(path.Base(s.name)) || sqlPackages[path.Base(s.pkg.path())] {
			continue
		}
		const reason = "SQL is in store files, packages named store and internal/db, so that all that is done with a table can be read in one place"
		// An interface of the transactions that steps get; it has no SQL.
		if slices.Contains(s.pkg.Imports, "database/sql") && s.name != "workflow/backend.go" {
			for _, imp := range s.imports {
				if imp == "database/sql" {
					t.Errorf("%s imports database/sql: %s", s.name, reason)
				}
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && statement.MatchString(text) {
					t.Errorf("%s: %.60q is SQL: %s", s.at(n), text, reason)
				}
			}
			return true
		})
	}
}

// maySleep are the files that wait for a fixed time because there is no event to
// wait for.
var maySleep = map[string]string{
	"internal/sandboxd/guest/agent/command.go": "the kernel gives no event when a forked child has closed what it inherited; bounded by busyPatience",
	"internal/sandboxd/gvisor/cgroup.go":       "the kernel gives no event when a cgroup (v1) has let go of its last process; bounded by removeTimeout",
}

func TestArch_NoSleep(t *testing.T) {
	for _, s := range sources(t) {
		if maySleep[s.name] != "" {
			continue
		}
		virtual := slices.Contains(slices.Collect(values(s.imports)), "testing/synctest")
		s.uses(func(n ast.Node, name string) {
			if name == "time.Sleep" && !(s.test && virtual) {
				t.Errorf("%s sleeps: wait for the event, with a bound; tests use channels, or testing/synctest where a sleep takes no time", s.at(n))
			}
		})
	}
}

func values(m map[string]string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

// globalLog matches functions that write to the process's own logger.
var globalLog = regexp.MustCompile(`^(log/slog\.((Debug|Info|Warn|Error)(Context)?|Log|LogAttrs|Default|SetDefault)|log\.(Print|Fatal|Panic)(f|ln)?)$`)

func TestArch_NoGlobalLogger(t *testing.T) {
	for _, s := range sources(t) {
		if s.test && strings.HasPrefix(path.Base(s.name), "example_") {
			continue // shows what users would type
		}
		s.uses(func(n ast.Node, name string) {
			if globalLog.MatchString(name) {
				t.Errorf("%s uses %s: loggers are passed in, so that a test, or a second daemon in one process, has its own", s.at(n), name)
			}
		})
	}
}

// initAllowed are the packages that need an init function.
var initAllowed = []string{
	"internal/sandboxd/gvisor/sentry/early", // is done before other packages begin, for which each sandbox would wait
}

func TestArch_NoInit(t *testing.T) {
	for _, s := range sources(t) {
		if slices.Contains(initAllowed, path.Dir(s.name)) {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s: init runs in every program that links the package, in no order one can see; make it a function that is called", s.at(f))
			}
		}
	}
}

// Everything that users of the SDK can name has a doc comment.
func TestArch_PublicDocs(t *testing.T) {
	for _, s := range sources(t) {
		if p := s.pkg.path(); s.test || p != "." && p != "sandbox" && p != "account" && p != "gateway" && p != "agent" && p != "agent/chat" {
			continue
		}
		report := func(n ast.Node, what, name string) {
			t.Errorf("%s: %s %s has no comment; public names say what they mean, in which unit, what zero means and which errors there are", s.at(n), what, name)
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Doc == nil && d.Name.IsExported() && exportedReceiver(d) && !standardMethods[d.Name.Name] {
					report(d, "func", d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						if spec.Name.IsExported() && d.Doc == nil && spec.Doc == nil {
							report(spec, "type", spec.Name.Name)
						}
					case *ast.ValueSpec:
						for _, name := range spec.Names {
							if name.IsExported() && d.Doc == nil && spec.Doc == nil && spec.Comment == nil {
								report(spec, strings.ToLower(d.Tok.String()), name.Name)
							}
						}
					}
				}
			}
		}
	}
}

// standardMethods mean the same on every type.
var standardMethods = map[string]bool{"String": true, "Error": true, "Unwrap": true, "Is": true}

func exportedReceiver(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	typ := f.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}
