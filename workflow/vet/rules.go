package vet

import (
	"go/types"
	"slices"
)

// kind is the reason why code is forbidden in workflows.
type kind uint8

const (
	clock kind = iota + 1
	random
	order
	outside
	env
	printing
	concurrency
	lock
	background
)

// spreads reports whether a workflow must not call a function with this kind of code
// either. The other kinds only harm in workflow code itself: a helper may well compute on
// several processors.
func (k kind) spreads() bool { return k == clock || k == random || k == outside || k == env }

func (k kind) String() string {
	switch k {
	case clock:
		return "a replay sees another time"
	case random:
		return "a replay draws something else"
	case order:
		return "the order differs between replays"
	case outside:
		return "a replay does it again, with another result"
	case env:
		return "a replay, perhaps in another process, finds something else"
	case printing:
		return "each replay does it again"
	case concurrency:
		return "a replay does not repeat who comes first"
	case lock:
		return "branches of a workflow run one at a time and need none, and waiting for one stops them all"
	case background:
		return "it belongs to steps, and knows nothing of the run's end"
	}
	panic("vet: kind without a text")
}

// rule forbids names of a package.
type rule struct {
	pkg string
	// names are functions, variables, types with all their methods ("Client."), or single
	// methods ("Client.Do"). An empty list means the whole package, except the names in
	// but.
	names []string
	but   []string
	kind  kind
	use   string // the advised replacement
}

const (
	useStep   = "do it in a step"
	useNow    = "use ctx.Now()"
	useSleep  = "use workflow.Sleep, workflow.After or workflow.WithTimeout"
	useRand   = "use ctx.Rand()"
	useID     = "use ctx.NewID()"
	useLogger = "use ctx.Logger(), which is silent then"
	useInput  = "put it into the input, or read it in a step"
	useGo     = "use workflow.Go, and workflow.All or a Future to wait"
	useSorted = "use slices.Sorted(maps.Keys(m))"
	useParent = "pass the workflow.Context on"
)

var rules = []rule{
	{pkg: "time", names: []string{"Now", "Since", "Until"}, kind: clock, use: useNow},
	{pkg: "time", names: []string{"Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Timer.", "Ticker."}, kind: clock, use: useSleep},
	{pkg: "time", names: []string{"Local"}, kind: env, use: useInput},

	// Generators that the program seeds itself are deterministic.
	{pkg: "math/rand", but: []string{"New", "NewSource", "NewZipf", "Rand.", "Zipf.", "Source", "Source64"}, kind: random, use: useRand},
	{pkg: "math/rand/v2", but: []string{"New", "NewPCG", "NewChaCha8", "NewZipf", "Rand.", "Zipf.", "PCG.", "ChaCha8."}, kind: random, use: useRand},
	{pkg: "crypto/rand", kind: random, use: useRand},
	{pkg: "hash/maphash", kind: random, use: useRand},
	{pkg: "github.com/google/uuid", names: []string{"New", "NewString", "NewRandom", "NewRandomFromReader", "NewUUID", "NewV6", "NewV7", "NewDCEGroup", "NewDCEPerson", "NewDCESecurity"}, kind: random, use: useID},
	{pkg: "github.com/gofrs/uuid", names: []string{"NewV1", "NewV4", "NewV6", "NewV7"}, kind: random, use: useID},
	{pkg: "github.com/gofrs/uuid/v5", names: []string{"NewV1", "NewV4", "NewV6", "NewV7"}, kind: random, use: useID},
	{pkg: "github.com/oklog/ulid/v2", names: []string{"Make", "Now", "DefaultEntropy"}, kind: random, use: useID},
	{pkg: "github.com/rs/xid", names: []string{"New"}, kind: random, use: useID},
	{pkg: "github.com/segmentio/ksuid", names: []string{"New", "NewRandom"}, kind: random, use: useID},

	{pkg: "os", names: []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv", "Hostname", "Args", "Executable", "Getwd",
		"Getpid", "Getppid", "Getuid", "Geteuid", "Getgid", "Getegid", "Getgroups", "UserHomeDir", "UserCacheDir", "UserConfigDir", "TempDir"}, kind: env, use: useInput},
	{pkg: "runtime", names: []string{"NumCPU", "NumGoroutine", "GOMAXPROCS", "ReadMemStats", "GC", "Gosched"}, kind: env, use: useStep},

	{pkg: "os", but: []string{"IsNotExist", "IsExist", "IsPermission", "IsTimeout", "IsPathSeparator", "Expand", "NewSyscallError", "Getpagesize",
		"PathError.", "SyscallError.", "LinkError.", "FileMode.", "Signal.", "Exit"}, kind: outside, use: useStep},
	{pkg: "os", names: []string{"Exit"}, kind: outside, use: "return an error"},
	{pkg: "os/exec", but: []string{"Error.", "ExitError."}, kind: outside, use: useStep},
	{pkg: "os/signal", kind: env, use: "use hooks"},
	{pkg: "io/ioutil", but: []string{"ReadAll", "NopCloser", "Discard"}, kind: outside, use: useStep},
	{pkg: "path/filepath", names: []string{"Abs", "EvalSymlinks", "Glob", "Walk", "WalkDir"}, kind: outside, use: useStep},
	{pkg: "syscall", but: []string{"Errno.", "Signal."}, kind: outside, use: useStep},
	{pkg: "net", but: []string{"ParseIP", "ParseCIDR", "ParseMAC", "JoinHostPort", "SplitHostPort", "IPv4", "IPv4Mask", "CIDRMask", "TCPAddrFromAddrPort", "UDPAddrFromAddrPort",
		"IP.", "IPMask.", "IPNet.", "HardwareAddr.", "TCPAddr.", "UDPAddr.", "IPAddr.", "UnixAddr.", "Addr.", "Error.", "OpError.", "DNSError.", "AddrError.", "ParseError."}, kind: outside, use: useStep},
	{pkg: "net/http", names: []string{"Get", "Head", "Post", "PostForm", "ListenAndServe", "ListenAndServeTLS", "Serve", "ServeTLS", "ServeFile", "DefaultClient", "DefaultTransport",
		"Client.Do", "Client.Get", "Client.Head", "Client.Post", "Client.PostForm", "Transport.", "RoundTripper.", "Server."}, kind: outside, use: useStep},
	{pkg: "net/smtp", kind: outside, use: useStep},
	{pkg: "net/rpc", kind: outside, use: useStep},
	{pkg: "crypto/tls", names: []string{"Dial", "DialWithDialer", "Listen", "Dialer.", "Conn.", "LoadX509KeyPair"}, kind: outside, use: useStep},
	{pkg: "database/sql", names: []string{"Open", "OpenDB", "DB.", "Tx.", "Conn.", "Stmt.", "Rows.", "Row."}, kind: outside, use: "do it in a step, or a workflow.TxStep"},

	{pkg: "fmt", names: []string{"Print", "Printf", "Println"}, kind: printing, use: useLogger},
	{pkg: "fmt", names: []string{"Scan", "Scanf", "Scanln"}, kind: outside, use: "use a hook"},
	{pkg: "log", names: []string{"Print", "Printf", "Println", "Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln", "Output", "Default", "Logger."}, kind: printing, use: useLogger},
	{pkg: "log/slog", names: []string{"Debug", "Info", "Warn", "Error", "DebugContext", "InfoContext", "WarnContext", "ErrorContext", "Log", "LogAttrs", "Default"}, kind: printing, use: useLogger},

	{pkg: "sync", names: []string{"Mutex.", "RWMutex.", "Locker."}, kind: lock, use: "leave it out"},
	{pkg: "sync", names: []string{"WaitGroup.", "Cond.", "Map.", "Pool."}, kind: concurrency, use: useGo},
	{pkg: "golang.org/x/sync/errgroup", kind: concurrency, use: useGo},
	{pkg: "golang.org/x/sync/semaphore", kind: concurrency, use: useGo},
	{pkg: "golang.org/x/sync/singleflight", kind: concurrency, use: useGo},

	{pkg: "reflect", names: []string{"Value.MapKeys", "Value.MapRange"}, kind: order, use: "sort the keys"},
	{pkg: "context", names: []string{"Background", "TODO"}, kind: background, use: useParent},
}

// builtins that are reported like functions.
var builtins = map[string]rule{
	"print":   {kind: printing, use: useLogger},
	"println": {kind: printing, use: useLogger},
}

var rulesByPkg = func() map[string][]*rule {
	m := map[string][]*rule{}
	for i := range rules {
		m[rules[i].pkg] = append(m[rules[i].pkg], &rules[i])
	}
	return m
}()

// ruleOf returns the rule for a function or variable of a package, or nil.
func ruleOf(obj types.Object) *rule {
	if obj.Pkg() == nil {
		return nil
	}
	recv, name := "", obj.Name()
	switch obj := obj.(type) {
	case *types.Func:
		recv = receiver(obj)
		if obj.Signature().Recv() != nil && recv == "" {
			return nil // a method of an unnamed interface
		}
	case *types.Var:
		if obj.Parent() != obj.Pkg().Scope() {
			return nil // a local variable, or a field
		}
	default:
		return nil
	}
	is := func(s string) bool {
		if recv == "" {
			return s == name
		}
		return s == recv+"." || s == recv+"."+name
	}
	for _, r := range rulesByPkg[obj.Pkg().Path()] {
		if r.names == nil && !slices.ContainsFunc(r.but, is) || slices.ContainsFunc(r.names, is) {
			if _, isVar := obj.(*types.Var); isVar && r.names == nil && types.Implements(obj.Type(), errorType) {
				continue // for example os.ErrNotExist
			}
			return r
		}
	}
	return nil
}

var errorType = types.Universe.Lookup("error").Type().Underlying().(*types.Interface)
