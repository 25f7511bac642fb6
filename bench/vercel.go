package bench

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/cayhq/cay/sandbox"
)

// VercelOptions are the options of the vercel suite.
type VercelOptions struct {
	Daemon *Daemon
	// StartPooled starts another daemon, with a pool of so many machines.
	StartPooled func(ctx context.Context, size int) (*Daemon, error)
	// SDK is the directory of version 3 of the package @vercel/sandbox, with its
	// dependencies where Node finds them.
	SDK string
	// Stderr is the standard error of the SDK's process.
	Stderr io.Writer
	// Opponents adds the same operations without the SDK, and the SDK without
	// cay. WorkDir is an empty directory for their files.
	Opponents bool
	WorkDir   string
	// Files is how many one call writes, and Burst how many sandboxes are made at
	// once. 0 means 1000 and 50.
	Files, Burst int
}

// vercelFile is the size of a small file.
const vercelFile = 1 << 10

// vercelBench has the common state of the suite's probes.
type vercelBench struct{ o VercelOptions }

// NewVercelSuite returns the suite of programs written for Vercel Sandbox: they
// use the vendor's own SDK for JavaScript, in a process that lives as long as its
// samples are taken.
func NewVercelSuite(o VercelOptions) *Suite {
	for n, byDefault := range map[*int]int{&o.Files: 1000, &o.Burst: 50} {
		if *n == 0 {
			*n = byDefault
		}
	}
	v := &vercelBench{o}
	missing := missingSDK(o.SDK)
	tti := []Subject{sdkSubject(Cay, missing, v.pooled(v.start))}
	write := []Subject{sdkSubject(Cay, missing, v.write)}
	if o.Opponents {
		tti = append(tti, sdkSubject("http", "", v.pooled(v.startBare)), sdkSubject("stub", missing, v.startAtStub))
		write = append(write, sdkSubject("extract", "", v.extract), sdkSubject("tar", "", v.tar))
	}
	burst := []Subject{sdkSubject(Cay, missing, v.burst)}
	return &Suite{Name: "vercel", Close: func() error { return nil }, Probes: []Probe{
		{Rows: []Row{{"sdk_tti", "ms", 60}, {"sdk_tti.create", "ms", 0}, {"sdk_tti.command", "ms", 0}}, N: 30, Warmup: 3, Subjects: tti},
		{Rows: []Row{{fmt.Sprintf("sdk_write_%d", o.Files), "ms", 500}}, N: 10, Warmup: 2, Subjects: write},
		{Rows: []Row{{fmt.Sprintf("sdk_burst_%d", o.Burst), "s", 0}}, N: 3, Subjects: burst},
	}}
}

func sdkSubject(name, skip string, open func(context.Context) (*Session, error)) Subject {
	return Subject{Name: name, Skip: skip, Open: func(ctx context.Context, _ int) (*Session, error) { return open(ctx) }}
}

// pooled measures open against a daemon with a pool, which is full before each
// sample.
func (v *vercelBench) pooled(open func(context.Context, *Daemon) (*Session, error)) func(context.Context) (*Session, error) {
	return func(ctx context.Context) (*Session, error) {
		return fromPool(5, func(ctx context.Context, r runner, _ int) (*Session, error) {
			return open(ctx, r.(*daemonRunner).d)
		})(ctx, &pooledRunner{start: v.o.StartPooled}, 0)
	}
}

// start measures the time from the creation to the output of a first program.
func (v *vercelBench) start(ctx context.Context, d *Daemon) (*Session, error) {
	token, err := d.jwt(ctx)
	if err != nil {
		return nil, err
	}
	return v.session(d.at.URL, token, sdkRequest{Do: "start"}, 1)
}

// session returns a session with samples by the SDK, in units of unit
// milliseconds.
func (v *vercelBench) session(url, token string, r sdkRequest, unit float64) (*Session, error) {
	p, err := v.startSDK(url, token)
	if err != nil {
		return nil, err
	}
	return &Session{Close: p.close, Sample: func(ctx context.Context) ([]float64, error) {
		values, err := p.do(ctx, r)
		for i := range values {
			values[i] /= unit
		}
		return values, err
	}}, nil
}

// startBare measures the same two requests without the SDK.
func (v *vercelBench) startBare(ctx context.Context, d *Daemon) (*Session, error) {
	c, err := newBareClient(ctx, d)
	if err != nil {
		return nil, err
	}
	return &Session{
		Close: func(context.Context) error { c.http.CloseIdleConnections(); return nil },
		Sample: func(ctx context.Context) ([]float64, error) {
			r, err := c.startAndRun(ctx)
			return []float64{ms(r.create + r.command), ms(r.create), ms(r.command)}, err
		},
	}, nil
}

// startAtStub measures the SDK alone: a server beside it gives the daemon's answers
// again, at once.
func (v *vercelBench) startAtStub(ctx context.Context) (*Session, error) {
	c, err := newBareClient(ctx, v.o.Daemon)
	if err != nil {
		return nil, err
	}
	defer c.http.CloseIdleConnections()
	r, err := c.startAndRun(ctx)
	if err != nil {
		return nil, err
	}
	stub, err := r.serve()
	if err != nil {
		return nil, err
	}
	s, err := v.session(stub.url, c.token, sdkRequest{Do: "start"}, 1)
	if err != nil {
		return nil, errors.Join(err, stub.close())
	}
	end := s.Close
	s.Close = func(ctx context.Context) error { return errors.Join(end(ctx), stub.close()) }
	return s, nil
}

// write measures many small files in one call.
func (v *vercelBench) write(ctx context.Context) (*Session, error) {
	token, err := v.o.Daemon.jwt(ctx)
	if err != nil {
		return nil, err
	}
	return v.session(v.o.Daemon.at.URL, token, sdkRequest{Do: "write", Files: v.o.Files, Bytes: vercelFile}, 1)
}

// burst measures until the last of many concurrent sandboxes has stopped.
func (v *vercelBench) burst(ctx context.Context) (*Session, error) {
	token, err := v.o.Daemon.jwt(ctx)
	if err != nil {
		return nil, err
	}
	return v.session(v.o.Daemon.at.URL, token, sdkRequest{Do: "burst", Sandboxes: v.o.Burst}, 1e3)
}

// extract measures the same files by our own client: packed, sent, unpacked.
func (v *vercelBench) extract(ctx context.Context) (*Session, error) {
	const dir = "/vercel/sandbox/bench"
	data := randomBytes(v.o.Files * vercelFile)
	sum := sha256.Sum256(data)
	return inBox(ctx, &daemonRunner{v.o.Daemon}, func(ctx context.Context, b box) ([]float64, error) {
		box := b.(*sandboxBox)
		begun := time.Now()
		var archive bytes.Buffer
		if err := pack(&archive, data); err != nil {
			return nil, err
		}
		if err := box.c.Extract(ctx, box.id, dir, &archive, sandbox.ExtractParams{}); err != nil {
			return nil, err
		}
		took := time.Since(begun)
		out, err := b.run(ctx, "sh", "-c", "cat "+dir+"/* | sha256sum && rm -r "+dir)
		if err == nil && !strings.HasPrefix(out, hex.EncodeToString(sum[:])) {
			err = fmt.Errorf("other files are there than were sent: checksum %q", out)
		}
		return []float64{ms(took)}, err
	})
}

// tar measures unpacking the same files on the host.
func (v *vercelBench) tar(context.Context) (*Session, error) {
	var archive bytes.Buffer
	gz := gzip.NewWriter(&archive)
	if err := errors.Join(pack(gz, randomBytes(v.o.Files*vercelFile)), gz.Close()); err != nil {
		return nil, err
	}
	return &Session{Sample: func(ctx context.Context) (_ []float64, err error) {
		dir, err := os.MkdirTemp(v.o.WorkDir, "files-")
		if err != nil {
			return nil, fmt.Errorf("make work directory: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		cmd := exec.CommandContext(ctx, "tar", "-xzf", "-", "-C", dir)
		cmd.Stdin = bytes.NewReader(archive.Bytes())
		begun := time.Now()
		_, err = output(cmd, (*exec.Cmd).Start)
		return []float64{ms(time.Since(begun))}, err
	}}, nil
}

// pack writes data as an archive of small files.
func pack(w io.Writer, data []byte) error {
	archive := tar.NewWriter(w)
	for i := 0; len(data) > 0; i++ {
		h := &tar.Header{Name: fmt.Sprintf("%06d", i), Mode: 0o644, Size: vercelFile}
		if err := archive.WriteHeader(h); err != nil {
			return err
		}
		if _, err := archive.Write(data[:vercelFile]); err != nil {
			return err
		}
		data = data[vercelFile:]
	}
	return archive.Close()
}
