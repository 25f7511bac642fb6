package main

import (
	"fmt"
	"io"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/cayhq/cay/sandbox"
)

// progress shows long work on standard error: bars on a terminal, else a line
// for each step. Methods are called one at a time.
type progress struct {
	out  io.Writer
	ui   *mpb.Progress // nil: plain lines
	bars map[string]*mpb.Bar
	last string
}

// newProgress returns nil, which shows nothing, if quiet.
func (a *app) newProgress(quiet bool) *progress {
	if quiet {
		return nil
	}
	p := &progress{out: a.stderr, bars: make(map[string]*mpb.Bar)}
	if isTerminal(a.stderr) {
		p.ui = mpb.New(mpb.WithOutput(a.stderr), mpb.WithWidth(40))
	}
	return p
}

// image shows a step of getting an image.
func (p *progress) image(s sandbox.ImageProgress) {
	if p == nil || s.Phase == "done" {
		return
	}
	name := s.Phase
	if s.Item != "" {
		name += " " + short(s.Item)
	}
	p.step(clean(name), s.Current, s.Total)
}

// step shows the progress of the work called name; total 0 means unknown.
func (p *progress) step(name string, current, total int64) {
	if p == nil {
		return
	}
	if p.ui == nil {
		if name != p.last {
			p.last = name
			fmt.Fprintln(p.out, name)
		}
		return
	}
	bar := p.bars[name]
	if bar == nil {
		bar = p.ui.AddBar(total, mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR)),
			mpb.AppendDecorators(decor.Any(amountText)))
		p.bars[name] = bar
	}
	if total > 0 {
		bar.SetTotal(total, false)
	}
	bar.SetCurrent(current)
}

// amountText returns the done part of a bar's bytes.
func amountText(s decor.Statistics) string {
	switch {
	case s.Current == 0 && s.Total <= 0:
		return ""
	case s.Total <= 0:
		return bytesText(s.Current)
	}
	return bytesText(s.Current) + " / " + bytesText(s.Total)
}

// done removes the bars. Call it before printing anything else.
func (p *progress) done() {
	if p == nil || p.ui == nil {
		return
	}
	for _, b := range p.bars {
		b.Abort(true)
	}
	p.ui.Wait()
	p.ui = nil
}

// short abbreviates digests and long names.
func short(s string) string {
	const digest = "sha256:"
	if len(s) > len(digest)+12 && s[:len(digest)] == digest {
		return s[len(digest) : len(digest)+12]
	}
	if r := []rune(s); len(r) > 40 {
		return string(r[:39]) + "…"
	}
	return s
}
