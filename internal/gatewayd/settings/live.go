package settings

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// Options configures a Live.
type Options struct {
	// File is the path of the settings file; empty for no file. The file may be missing
	// unless Required.
	File     string
	Required bool
	// Env looks up an environment variable; nil for none.
	Env func(name string) string
	// Store holds the settings made by the API; nil for nothing.
	Store *Store
	// Client is used to discover models, to get access tokens and to call the guards'
	// webhook; nil for http.DefaultClient.
	Client *http.Client
	Logger *slog.Logger // nil: no logs
	// Changed is called with each new Snapshot before Current returns it, by one
	// goroutine at a time. Nil means no callback.
	Changed func(*Snapshot)
	// Discover is the interval at which servers are asked for their models; 0 means 1
	// minute.
	Discover time.Duration
}

// Live holds the current settings. Open creates a Live, Start makes it follow changes,
// and Stop ends it. Methods may be called concurrently.
type Live struct {
	o       Options
	log     *slog.Logger
	byok    *provider.BYOK
	current atomic.Pointer[Snapshot]

	change sync.Mutex    // held while settings change; guards the following fields
	src    *source       // the last valid source; nil for none
	list   *catalog.List // the last valid list; nil for none
	seen   [2]version    // versions of the two files last read, valid or not
	models map[string][]string
	failed map[string]bool // providers that did not answer, and were logged

	cancel context.CancelFunc
	done   sync.WaitGroup
}

// Open reads the settings. Errors: invalid, with the file and the line.
func Open(ctx context.Context, o Options) (*Live, error) {
	if o.Client == nil {
		o.Client = http.DefaultClient
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Discover == 0 {
		o.Discover = time.Minute
	}
	l := &Live{
		o: o, log: o.Logger.With("component", "gateway settings"), byok: provider.NewBYOK(o.Client),
		models: make(map[string][]string), failed: make(map[string]bool),
	}
	return l, l.Reload(ctx)
}

// Current returns the current settings.
func (l *Live) Current() *Snapshot { return l.current.Load() }

// Reload reads all settings again: the file, the store, and secrets in files and in the
// environment. On an error the settings stay as they are. Errors: as for Open.
func (l *Live) Reload(ctx context.Context) error {
	l.change.Lock()
	defer l.change.Unlock()
	return l.reloadLocked(ctx)
}

func (l *Live) reloadLocked(ctx context.Context) error {
	l.seen = l.version() // before reading, so that a later change is noticed
	src, err := l.read()
	if err != nil {
		return err
	}
	list, err := l.readList()
	if err != nil {
		return err
	}
	stored, err := l.stored(ctx)
	if err != nil {
		return err
	}
	before := l.list
	l.list = list
	if err := l.swapLocked(src, stored); err != nil {
		l.list = before
		return err
	}
	return nil
}

// readList reads the list of models beside the settings file, if there is such a list.
func (l *Live) readList() (*catalog.List, error) {
	if l.o.File == "" {
		return nil, nil
	}
	return catalog.ReadList(catalog.ListFile(l.o.File))
}

func (l *Live) read() (*source, error) {
	if l.o.File == "" {
		return nil, nil
	}
	src, err := read(l.o.File)
	if errors.Is(err, fs.ErrNotExist) && !l.o.Required {
		return nil, nil
	}
	return src, err
}

func (l *Live) stored(ctx context.Context) (stored, error) {
	if l.o.Store == nil {
		return stored{}, nil
	}
	return l.o.Store.all(ctx)
}

// swapLocked builds a Snapshot and puts it in place.
func (l *Live) swapLocked(src *source, stored stored) error {
	s, err := l.buildLocked(src, stored)
	if err != nil {
		return err
	}
	l.src = src
	l.placeLocked(s)
	return nil
}

// buildLocked builds a Snapshot without putting it in place.
func (l *Live) buildLocked(src *source, stored stored) (*Snapshot, error) {
	in := inputs{src: src, env: l.o.Env, stored: stored, discovered: l.models, list: l.list, byok: l.byok, client: l.o.Client}
	if before := l.Current(); before != nil {
		in.accounts = before.accounts
	}
	return build(in)
}

// placeLocked puts a Snapshot in place.
func (l *Live) placeLocked(s *Snapshot) {
	if l.o.Changed != nil {
		l.o.Changed(s)
	}
	l.current.Store(s)
}

// Start follows changes of the file and of the servers' models, until Stop.
func (l *Live) Start(ctx context.Context) error {
	var watcher *fsnotify.Watcher
	if l.o.File != "" {
		var err error
		if watcher, err = fsnotify.NewWatcher(); err != nil {
			return cay.Errorf(cay.Unavailable, "the gateway's settings cannot be watched: %w", err).
				WithHint("is fs.inotify.max_user_instances used up?")
		}
		// The directory is watched, because editors replace the file.
		if err := watcher.Add(filepath.Dir(l.o.File)); err != nil {
			return errors.Join(cay.Errorf(cay.Unavailable, "the gateway's settings cannot be watched: %w", err), watcher.Close())
		}
	}
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if watcher != nil {
		l.done.Go(func() { l.watch(ctx, watcher) })
	}
	l.done.Go(func() { l.discover(ctx) })
	return nil
}

// Stop ends the goroutines of Start, and waits for them.
func (l *Live) Stop() {
	if l.cancel != nil {
		l.cancel()
		l.done.Wait()
	}
}

// settle is how long the file must be unchanged before it is read, because it may be
// written in several parts.
const settle = 100 * time.Millisecond

func (l *Live) watch(ctx context.Context, w *fsnotify.Watcher) {
	defer w.Close()
	timer := time.NewTimer(0) // the file may have changed since Open
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-w.Errors:
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				timer.Reset(settle)
				continue
			}
			l.log.WarnContext(ctx, "watching the settings failed", "error", err)
		case <-w.Events:
			// Every event in the directory counts: the file may be a symbolic link whose
			// target changes, as in Kubernetes.
			timer.Reset(settle)
		case <-timer.C:
			l.change.Lock()
			same := l.version() == l.seen
			l.change.Unlock()
			if same {
				continue
			}
			if err := l.Reload(ctx); err != nil {
				l.log.ErrorContext(ctx, "the gateway's settings are wrong; those before stay", "error", err)
				continue
			}
			l.log.InfoContext(ctx, "the gateway's settings have changed", "providers", len(l.Current().Configured()))
		}
	}
}

// version identifies the content of a file, to notice changes.
type version struct {
	at   time.Time
	size int64
	file uint64
}

// version returns the versions of the settings file and of the list of models.
func (l *Live) version() (all [2]version) {
	if l.o.File == "" {
		return all
	}
	for i, path := range [...]string{l.o.File, catalog.ListFile(l.o.File)} {
		if info, err := os.Stat(path); err == nil {
			all[i] = version{info.ModTime(), info.Size(), inode(info)}
		}
	}
	return all
}

// discover asks servers for their models periodically.
func (l *Live) discover(ctx context.Context) {
	tick := time.NewTicker(l.o.Discover)
	defer tick.Stop()
	for {
		l.Discover(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Discover asks the providers that can list their models for them. A provider that does
// not answer keeps its previous models.
func (l *Live) Discover(ctx context.Context) {
	s := l.Current()
	found := make(map[string][]string)
	errs := make(map[string]error)
	var mu sync.Mutex // guards both
	var all sync.WaitGroup
	for _, name := range s.discover {
		p := s.Providers.Get(name)
		all.Go(func() {
			models, err := provider.ListModels(ctx, p, l.o.Client)
			slices.Sort(models)
			mu.Lock()
			defer mu.Unlock()
			found[name], errs[name] = models, err
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return
	}
	l.change.Lock()
	defer l.change.Unlock()
	changed := false
	for name, models := range found {
		if err := errs[name]; err != nil {
			if !l.failed[name] {
				l.log.WarnContext(ctx, "a provider does not say which models it has", "provider", name, "error", err)
			}
			l.failed[name] = true
			continue
		}
		if l.failed[name] {
			l.log.InfoContext(ctx, "a provider says again which models it has", "provider", name, "models", len(models))
		}
		delete(l.failed, name)
		if !slices.Equal(l.models[name], models) {
			l.models[name], changed = models, true
		}
	}
	if !changed {
		return
	}
	stored, err := l.stored(ctx)
	if err == nil {
		err = l.swapLocked(l.src, stored)
	}
	if err != nil {
		l.log.ErrorContext(ctx, "models of servers are not taken over", "error", err)
	}
}

// Check tests the provider name, or all configured providers concurrently if name is
// empty. Errors: not_found.
func (l *Live) Check(ctx context.Context, name string) ([]gateway.Check, error) {
	s := l.Current()
	all := s.Configured()
	if name != "" {
		p := s.Providers.Get(name)
		if p == nil {
			return nil, cay.Errorf(cay.NotFound, "there is no provider %q", name).WithHint("\"cay gateway check\" without a name tests all that are configured")
		}
		all = []*provider.Provider{p}
	}
	checks := make([]gateway.Check, len(all))
	var wait sync.WaitGroup
	for i, p := range all {
		wait.Go(func() { checks[i] = provider.Check(ctx, p, l.o.Client) })
	}
	wait.Wait()
	return checks, nil
}
