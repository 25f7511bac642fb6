package sandbox

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cayhq/cay"
)

// Runtimes are the language runtimes of the default image.
var Runtimes = []string{"node22", "node24", "node26", "python3.13"}

// The limits that are not limited elsewhere.
const (
	maxEnvVars   = 1024
	maxEnvBytes  = 256 << 10
	maxPath      = 4096
	maxArg       = 128<<10 - 1 // bytes of one argument, or of NAME=VALUE: the guest's kernel takes no more
	maxArgsBytes = 2 << 20     // of all arguments, each with argOverhead: as Linux has it
	argOverhead  = 9           // bytes of a NUL and a pointer
	maxTags      = 16

	maxAnnotations = 32
	maxAnnotation  = 1024 // bytes of a value
)

const putElsewhere = "put the data into a file, or on standard input"

// validName is compiled on first use: cay-guest links this package, and every
// sandbox waits for cay-guest to start.
var validName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)
})

// Validate returns an invalid error that names the first field with a bad value.
// The limits of the operator and of quotas are checked by the daemon alone.
func (p CreateParams) Validate() error {
	if p.Name != "" {
		if err := checkSandboxName("name", p.Name); err != nil {
			return err
		}
	}
	switch {
	case p.Snapshot != "" && p.Image != "":
		return invalid("snapshot %q and image %q are given together", p.Snapshot, p.Image).WithHint("a snapshot has its image; leave one of the two out")
	case p.Snapshot != "" && p.Runtime != "":
		return invalid("snapshot %q and runtime %q are given together", p.Snapshot, p.Runtime).WithHint("a snapshot has its runtime; leave one of the two out")
	case p.FilesOnly && p.Snapshot == "":
		return invalid("files_only is given without a snapshot").WithHint("it says how to start from one")
	case p.Image != "" && p.Runtime != "":
		return invalid("image %q and runtime %q are given together", p.Image, p.Runtime).
			WithHint("runtimes are for the default image; leave one of the two out")
	case len(p.Image) > 512 || strings.ContainsFunc(p.Image, notGraphic):
		return invalid("image %.100q is not a reference of at most 512 characters without white space", p.Image)
	case p.Runtime != "" && !slices.Contains(Runtimes, p.Runtime):
		return invalid("runtime %q is not one of %s", p.Runtime, strings.Join(Runtimes, ", "))
	case p.VCPUs != 0 && !(p.VCPUs >= 0.1 && p.VCPUs <= 64): // this form refuses NaN
		return invalid("vcpus %v is not 0.1 to 64", p.VCPUs)
	case p.MemoryMB != 0 && p.MemoryMB < 128:
		return invalid("memory_mb %d is less than 128", p.MemoryMB)
	case p.DiskMB != 0 && p.DiskMB < 16:
		return invalid("disk_mb %d is less than 16", p.DiskMB)
	case p.Timeout != 0 && p.Timeout < Duration(time.Second):
		return invalid("timeout %v is less than 1s", p.Timeout)
	case p.Privileges != "" && p.Privileges != FullPrivileges && p.Privileges != RestrictedPrivileges:
		return invalid("privileges %.70q are not %s or %s", p.Privileges, FullPrivileges, RestrictedPrivileges)
	case len(p.ProjectID) > 64:
		return invalid("project_id %.70q is not an id", p.ProjectID)
	case len(p.IdempotencyKey) > 255 || strings.ContainsFunc(p.IdempotencyKey, notVisibleASCII):
		return invalid("idempotency key %.300q is not at most 255 visible ASCII characters", p.IdempotencyKey)
	}
	if err := cmp.Or(checkIdle(p.IdleTimeout), checkSaveEvery(p.SaveEvery)); err != nil {
		return err
	}
	if err := checkEnv(p.Env); err != nil {
		return err
	}
	if err := cmp.Or(checkTags(p.Tags), checkAnnotations(p.Annotations)); err != nil {
		return err
	}
	if err := checkUser(p.User); err != nil {
		return err
	}
	if p.WorkDir != "" {
		if err := CheckPath("workdir", p.WorkDir); err != nil {
			return err
		}
		if p.WorkDir[0] != '/' {
			return invalid("workdir %q is not absolute", p.WorkDir)
		}
	}
	if p.Snapshot != "" {
		if err := checkRef("snapshot", p.Snapshot); err != nil {
			return err
		}
	}
	if err := cmp.Or(checkPorts(p.Ports), checkMounts(p.Mounts), checkExpiration("snapshot_expiration", p.SnapshotExpiration)); err != nil {
		return err
	}
	if p.Retention != nil {
		if err := p.Retention.Validate(); err != nil {
			return err
		}
	}
	if p.Source != nil {
		if err := p.Source.Validate(); err != nil {
			return err
		}
	}
	return p.Network.Validate()
}

// Validate returns an invalid error that names the first field with a bad value.
func (p UpdateParams) Validate() error {
	if err := cmp.Or(checkTags(p.Tags), checkAnnotations(p.Annotations)); err != nil {
		return err
	}
	if p.Network != nil {
		if err := p.Network.Validate(); err != nil {
			return err
		}
	}
	if p.Runtime != nil && !slices.Contains(Runtimes, *p.Runtime) {
		return invalid("runtime %q is not one of %s", *p.Runtime, strings.Join(Runtimes, ", "))
	}
	if p.SaveEvery != nil {
		if err := checkSaveEvery(*p.SaveEvery); err != nil {
			return err
		}
	}
	if err := cmp.Or(
		checkPorts(p.Ports), checkIdlePtr(p.IdleTimeout), checkEnv(p.Env), checkMachine(p.VCPUs, p.MemoryMB, p.Timeout),
		checkMounts(p.Mounts), checkExpiration("snapshot_expiration", p.SnapshotExpiration),
	); err != nil {
		return err
	}
	if p.SnapshotID != nil && *p.SnapshotID != "" {
		if err := checkRef("snapshot_id", *p.SnapshotID); err != nil {
			return err
		}
	}
	if p.Retention != nil && *p.Retention != (Retention{}) { // which is the default
		return p.Retention.Validate()
	}
	return nil
}

// Validate returns an invalid error that names the first field with a bad value.
func (p ListParams) Validate() error {
	all := []Status{Pending, Running, Paused, Stopping, Stopped, Failed, Hibernated, Resuming}
	for _, s := range p.Status {
		if !slices.Contains(all, s) {
			return invalid("status %q is not one of %v", s, all)
		}
	}
	switch {
	case len(p.Status) > len(all):
		return invalid("%d statuses are given, some repeatedly", len(p.Status))
	case p.Limit < 0 || p.Limit > 200:
		return invalid("limit %d is not 1 to 200", p.Limit)
	case p.NamePrefix != "" && !validName().MatchString(p.NamePrefix):
		return invalid("name prefix %q is not at most 128 of A-Z a-z 0-9 _ -", p.NamePrefix)
	case len(p.ProjectID) > 64:
		return invalid("project_id %.70q is not an id", p.ProjectID)
	}
	return cmp.Or(checkOrder(p.Order, ByCreation, ByName, ByStatusAt, BySnapshot), checkTags(p.Tags))
}

// checkOrder checks the order of a list; empty is valid.
func checkOrder(o Order, all ...Order) error {
	if o == "" || slices.Contains(all, o) {
		return nil
	}
	return invalid("order %.100q is not one of %v", o, all)
}

// Validate returns an invalid error that names the first field with a bad value.
func (p CommandParams) Validate() error {
	switch {
	case len(p.Argv) == 0 || p.Argv[0] == "":
		return invalid("argv names no program")
	case p.Timeout != 0 && p.Timeout < Duration(100*time.Millisecond):
		return invalid("timeout %v is less than 100ms", p.Timeout)
	case p.TimeoutSignal < 0 || p.TimeoutSignal > 64:
		return invalid("timeout_signal %d is not 1 to 64", p.TimeoutSignal)
	case p.TimeoutSignal != 0 && p.Timeout == 0:
		return invalid("timeout_signal %d is given without a timeout", p.TimeoutSignal).WithHint("say after what time it is to be sent")
	}
	total := 0
	for i, a := range p.Argv {
		if strings.ContainsRune(a, 0) {
			return invalid("argv[%d] %.100q contains a NUL byte", i, a)
		}
		if !utf8.ValidString(a) {
			return invalid("argv[%d] %.100q is not UTF-8", i, a)
		}
		if len(a) > maxArg {
			return invalid("argv[%d] is %d bytes long, more than %d", i, len(a), maxArg).WithHint(putElsewhere)
		}
		total += len(a) + argOverhead
	}
	if total > maxArgsBytes {
		return invalid("argv is %d bytes long, with %d for each of its %d strings, more than %d", total, argOverhead, len(p.Argv), maxArgsBytes).
			WithHint(putElsewhere)
	}
	if err := checkEnv(p.Env); err != nil {
		return err
	}
	if p.WorkDir != "" {
		if err := CheckPath("workdir", p.WorkDir); err != nil {
			return err
		}
	}
	if p.PTY != nil {
		if err := p.PTY.Validate(); err != nil {
			return err
		}
	}
	return checkUser(p.User)
}

// Validate returns an invalid error for a size no terminal has.
func (w WindowSize) Validate() error {
	if w.Cols < 1 || w.Cols > 10000 || w.Rows < 1 || w.Rows > 10000 {
		return invalid("terminal size %d by %d is not 1 to 10000 each", w.Cols, w.Rows)
	}
	return nil
}

// Validate returns an invalid error for a number that is no signal.
func (s Signal) Validate() error {
	if s < 1 || s > 64 {
		return invalid("signal %d is not 1 to 64", s)
	}
	return nil
}

// Validate returns an invalid error that names the first field with a bad value.
func (p OutputParams) Validate() error {
	if p.Cursor < 0 {
		return invalid("cursor %d is negative", p.Cursor)
	}
	return nil
}

// Validate returns an invalid error that names the first field with a bad value.
func (p ReadParams) Validate() error {
	switch {
	case p.Offset < 0:
		return invalid("offset %d is negative", p.Offset)
	case p.Length < 0:
		return invalid("length %d is negative", p.Length)
	}
	return nil
}

// Validate returns an invalid error that names the first field with a bad value.
func (p WriteParams) Validate() error {
	if p.Size < -1 {
		return invalid("size %d is less than -1", p.Size)
	}
	if err := CheckMode(uint32(p.Mode)); err != nil {
		return err
	}
	return checkUser(p.User)
}

// Validate returns an invalid error that names the first field with a bad value.
func (p MkdirParams) Validate() error {
	if err := CheckMode(uint32(p.Mode)); err != nil {
		return err
	}
	return checkUser(p.User)
}

// Validate returns an invalid error that names the first field with a bad value.
func (p ReadDirParams) Validate() error {
	if p.Limit < 0 || p.Limit > 10000 {
		return invalid("limit %d is not 1 to 10000", p.Limit)
	}
	return nil
}

// Validate returns an invalid error that names the first field with a bad value.
func (p ExtractParams) Validate() error {
	switch {
	case p.KeepOwner && p.ContentOnly:
		return invalid("keep owner and content only exclude each other")
	case p.MaxBytes < 0:
		return invalid("max bytes %d is negative", p.MaxBytes)
	case p.MaxEntries < 0:
		return invalid("max entries %d is negative", p.MaxEntries)
	}
	if p.Format != "" {
		if err := p.Format.Validate(); err != nil {
			return err
		}
	}
	return checkUser(p.User)
}

// Validate returns an invalid error that names the first field with a bad value.
func (p ImagePushParams) Validate() error {
	if p.Ref == "" || len(p.Ref) > 512 || strings.ContainsFunc(p.Ref, notGraphic) {
		return invalid("ref %.100q is not a reference of 1 to 512 characters without white space", p.Ref)
	}
	ways := 0
	for _, given := range []bool{p.Auth.Username != "" || p.Auth.Password != "", p.Auth.IdentityToken != "", p.Auth.RegistryToken != ""} {
		if given {
			ways++
		}
	}
	if ways > 1 {
		return invalid("auth has more than one of a user with a password, identity_token and registry_token")
	}
	return nil
}

// Validate returns an invalid error that names the first field with a bad value.
func (p ImageSnapshotParams) Validate() error {
	if err := checkRef("snapshot", p.Snapshot); err != nil {
		return err
	}
	if p.Ref == "" || len(p.Ref) > 512 || strings.ContainsFunc(p.Ref, notGraphic) {
		return invalid("ref %.100q is not a reference of 1 to 512 characters without white space", p.Ref)
	}
	env := make(map[string]string, len(p.Env))
	for _, kv := range p.Env {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			return invalid("env %.100q is not K=V", k)
		}
		env[k] = v
	}
	if err := checkEnv(env); err != nil {
		return err
	}
	if err := checkUser(p.User); err != nil {
		return err
	}
	if p.WorkDir != "" {
		if err := CheckPath("workdir", p.WorkDir); err != nil {
			return err
		}
		if p.WorkDir[0] != '/' {
			return invalid("workdir %q is not absolute", p.WorkDir)
		}
	}
	for _, argv := range [][]string{p.Entrypoint, p.Cmd} {
		if len(argv) > 0 {
			if err := (CommandParams{Argv: argv}).Validate(); err != nil {
				return err
			}
		}
	}
	return p.checkLabels()
}

const (
	maxImageLabels = 64 << 10 // bytes of the labels of an image
	maxImagePorts  = 200      // exposed by an image
)

// imagePort is compiled on first use, as few programs need it.
var imagePort = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9]{1,5}/(tcp|udp|sctp)$`) })

func (p ImageSnapshotParams) checkLabels() error {
	size := 0
	for k, v := range p.Labels {
		if k == "" {
			return invalid("a label has no name")
		}
		size += len(k) + len(v)
	}
	switch {
	case size > maxImageLabels:
		return invalid("the labels have %d bytes, more than %d", size, maxImageLabels)
	case len(p.ExposedPorts) > maxImagePorts:
		return invalid("%d ports are exposed, more than %d", len(p.ExposedPorts), maxImagePorts)
	}
	for _, port := range p.ExposedPorts {
		if !imagePort().MatchString(port) {
			return invalid("exposed port %.100q is not a number, a slash and tcp, udp or sctp", port)
		}
	}
	return nil
}

// Validate returns an invalid error for an unknown format.
func (f ArchiveFormat) Validate() error {
	if f != Tar && f != TarGz {
		return invalid("archive format %q is not one of %s, %s", f, Tar, TarGz)
	}
	return nil
}

// CheckPath returns an invalid error for a path that no file can have. The error
// calls the path what.
func CheckPath(what, path string) error {
	switch {
	case path == "":
		return invalid("%s is empty", what)
	case len(path) > maxPath:
		return invalid("%s %.60q... is %d bytes long, more than %d", what, path, len(path), maxPath)
	case strings.ContainsRune(path, 0):
		return invalid("%s %q contains a NUL byte", what, path)
	}
	return nil
}

// CheckMode returns an invalid error for bits chmod(2) does not know.
func CheckMode(mode uint32) error {
	if mode > 0o7777 {
		return invalid("mode %#o is more than 07777", mode)
	}
	return nil
}

func checkIdle(d Duration) error {
	if d != 0 && d < Duration(time.Second) {
		return invalid("idle_timeout %v is less than 1s", d)
	}
	return nil
}

func checkSaveEvery(d Duration) error {
	if d != 0 && d < Duration(10*time.Second) {
		return invalid("save_every %v is less than 10s", d)
	}
	return nil
}

func checkEnv(env map[string]string) error {
	if len(env) > maxEnvVars {
		return invalid("env has %d variables, more than %d", len(env), maxEnvVars)
	}
	total := 0
	for k, v := range env {
		switch {
		case k == "":
			return invalid("env has a variable without a name")
		case strings.ContainsAny(k, "=\x00"):
			return invalid("env variable %.100q has = or NUL in its name", k)
		case strings.ContainsRune(v, 0):
			return invalid("env variable %.100q has a NUL byte in its value", k) // the value may be a secret
		case !utf8.ValidString(k) || !utf8.ValidString(v):
			return invalid("env variable %.100q is not UTF-8", k)
		case len(k)+len("=")+len(v) > maxArg:
			return invalid("env variable %.100q is %d bytes long with its name, more than %d", k, len(k)+len("=")+len(v), maxArg)
		}
		total += len(k) + len(v)
	}
	if total > maxEnvBytes {
		return invalid("env is %d bytes long, more than %d", total, maxEnvBytes)
	}
	return nil
}

func checkTags(tags map[string]string) error {
	if len(tags) > maxTags {
		return invalid("there are %d tags, more than %d", len(tags), maxTags)
	}
	for k, v := range tags {
		switch {
		case !validKey(k):
			return invalid("tag %.100q is not 1 to 64 characters without control characters", k)
		case !utf8.ValidString(v) || utf8.RuneCountInString(v) > 256 || strings.ContainsFunc(v, unicode.IsControl):
			return invalid("tag %q has a value that is not at most 256 characters without control characters: %.300q", k, v)
		}
	}
	return nil
}

func checkAnnotations(annotations map[string]string) error {
	if len(annotations) > maxAnnotations {
		return invalid("there are %d annotations, more than %d", len(annotations), maxAnnotations)
	}
	for k, v := range annotations {
		switch {
		case !validKey(k):
			return invalid("annotation %.100q is not 1 to 64 characters without control characters", k)
		case !utf8.ValidString(v) || len(v) > maxAnnotation:
			return invalid("annotation %q has a value that is not at most %d bytes of UTF-8", k, maxAnnotation)
		}
	}
	return nil
}

// validKey reports whether k can be the key of a tag or an annotation.
func validKey(k string) bool {
	return k != "" && utf8.ValidString(k) && utf8.RuneCountInString(k) <= 64 && !strings.ContainsFunc(k, unicode.IsControl)
}

func checkUser(user string) error {
	if len(user) > 64 || strings.ContainsFunc(user, notGraphic) || strings.Contains(user, "/") {
		return invalid("user %.100q is not a name or number of at most 64 characters", user)
	}
	return nil
}

func notGraphic(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }

func notVisibleASCII(r rune) bool { return r < '!' || r > '~' }

func invalid(format string, args ...any) *cay.Error {
	return cay.Errorf(cay.Invalid, "%s", fmt.Sprintf(format, args...))
}

// WithDefaults returns p with its empty sizes replaced by the defaults that the
// comments of its fields name.
func (p CreateParams) WithDefaults() CreateParams {
	if p.VCPUs == 0 {
		p.VCPUs = 2
	}
	if p.MemoryMB == 0 {
		p.MemoryMB = max(512, int64(math.Round(2048*p.VCPUs)))
	}
	if p.DiskMB == 0 {
		p.DiskMB = 8192
	}
	if p.Timeout == 0 {
		p.Timeout = Duration(5 * time.Minute)
	}
	p.Network = p.Network.WithDefaults()
	return p
}
