package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"

	"github.com/cayhq/cay/sandbox"
)

// printJSON writes v as one indented value.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printLine writes v as one line.
func (a *app) printLine(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// show prints v as JSON with --json, otherwise the output of text.
func (a *app) show(v any, text func(w io.Writer)) error {
	if a.json {
		return a.printJSON(v)
	}
	w := &errWriter{w: a.stdout}
	text(w)
	return w.err
}

// errWriter remembers the first error, so that callers may print without
// checking each time.
type errWriter struct {
	w   io.Writer
	err error
}

func (e *errWriter) Write(p []byte) (int, error) {
	if e.err != nil {
		return 0, e.err
	}
	n, err := e.w.Write(p)
	e.err = err
	return n, err
}

// table aligns columns. Cells are cleaned.
type table struct{ rows [][]string }

func newTable(header ...string) *table { return &table{rows: [][]string{header}} }

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range t.rows {
		for i, cell := range row {
			if row[i] = clean(cell); cell == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	tw.Flush()
}

// fields prints "name   value" lines, leaving out empty values.
func fields(w io.Writer, pairs ...string) {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(tw, "%s\t%s\n", pairs[i], clean(pairs[i+1]))
		}
	}
	tw.Flush()
}

// clean makes untrusted text harmless to a terminal: control characters, and
// characters that change the direction of text, are written as escapes.
func clean(s string) string {
	bad := func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }
	if !strings.ContainsFunc(s, bad) {
		return s
	}
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

func bytesText(n int64) string {
	if n <= 0 {
		return "0"
	}
	return humanize.IBytes(uint64(n))
}

func mibText(mib int64) string { return bytesText(mib << 20) }

func vcpuText(n float64) string { return strconv.FormatFloat(n, 'g', -1, 64) }

// agoText returns the time since t, or until t.
func agoText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return humanize.RelTime(t, time.Now(), "ago", "from now")
}

func agoPtr(t *time.Time) string {
	if t == nil {
		return ""
	}
	return agoText(*t)
}

func tagsText(tags map[string]string) string {
	pairs := make([]string, 0, len(tags))
	for k, v := range tags {
		pairs = append(pairs, k+"="+v)
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

func durationText(d sandbox.Duration) string {
	if d == 0 {
		return ""
	}
	return time.Duration(d).Round(time.Millisecond).String()
}
