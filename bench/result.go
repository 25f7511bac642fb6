package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Result has the measurements of one subject in one row.
type Result struct {
	Suite  string  `json:"suite"`
	Row    string  `json:"row"`
	Unit   string  `json:"unit"` // of the four values below and Budget
	N      int     `json:"n"`    // samples; 0 if Skipped
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	P95    float64 `json:"p95"` // nearest rank
	Max    float64 `json:"max"`
	// Opponent is the subject: "cay" itself, or for example "native".
	Opponent string `json:"opponent"`
	// Budget is the target for cay's median: a maximum, or for rates a minimum.
	// 0 means none.
	Budget float64 `json:"budget,omitempty"`
	// Skipped says why an opponent has no values.
	Skipped string  `json:"skipped,omitempty"`
	Machine Machine `json:"machine"`
	Load    float64 `json:"load"` // 1-minute load average before the first sample
	Commit  string  `json:"commit"`
}

// Machine is where results were measured.
type Machine struct {
	CPU      string `json:"cpu"` // model
	Cores    int    `json:"cores"`
	MemoryMB int64  `json:"memory_mb"` // MiB
	Kernel   string `json:"kernel"`    // release
}

func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %d MiB, Linux %s", m.CPU, m.Cores, m.MemoryMB, m.Kernel)
}

// summarize fills in the statistics of samples.
func (r *Result) summarize(samples []float64) {
	r.N = len(samples)
	if r.N == 0 {
		return
	}
	s := slices.Sorted(slices.Values(samples))
	r.Min, r.Max = round(s[0]), round(s[r.N-1])
	r.Median = round((s[(r.N-1)/2] + s[r.N/2]) / 2)
	r.P95 = round(s[int(math.Ceil(0.95*float64(r.N)))-1])
}

// round keeps four significant digits: more would only be noise.
func round(v float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil {
		return v // not a number to begin with
	}
	return r
}

// overBudget reports whether the median misses the budget.
func (r Result) overBudget() bool {
	if r.Budget == 0 || r.N == 0 || r.Opponent != Cay {
		return false
	}
	if (Row{Unit: r.Unit}).Rate() {
		return r.Median < r.Budget
	}
	return r.Median > r.Budget
}

// WriteJSON writes results as an indented array.
func WriteJSON(w io.Writer, results []Result) error {
	if results == nil {
		results = []Result{}
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(results)
}

// WriteTable writes results for people: the machine, a line for each row and
// subject, and why opponents are missing. The column "cay is" compares cay's
// median with an opponent's.
func WriteTable(w io.Writer, results []Result) error {
	if len(results) == 0 {
		return nil
	}
	var b strings.Builder
	first := results[0]
	fmt.Fprintf(&b, "%s; cay %s\n\n", first.Machine, first.Commit)
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "ROW\tSUBJECT\tN\tMIN\tMEDIAN\tP95\tMAX\tUNIT\tBUDGET\tCAY IS\tLOAD")
	own := map[string]Result{}
	var skipped []string
	for _, r := range results {
		if r.Skipped != "" {
			if why := r.Opponent + ": " + r.Skipped; !slices.Contains(skipped, why) {
				skipped = append(skipped, why)
			}
			continue
		}
		row, budget, ratio := "", "-", "-"
		if r.Opponent == Cay {
			own[r.Row] = r
			row, budget = r.Row, budgetText(r)
		} else {
			ratio = ratioText(own[r.Row], r)
		}
		fmt.Fprintf(tw, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.2f\n", row, r.Opponent, r.N,
			number(r.Min), number(r.Median), number(r.P95), number(r.Max), r.Unit, budget, ratio, r.Load)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if len(skipped) > 0 {
		b.WriteString("\nNot measured:\n")
		for _, why := range skipped {
			fmt.Fprintf(&b, "  %s\n", strings.Join(strings.Fields(why), " "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func budgetText(r Result) string {
	if r.Budget == 0 {
		return "-"
	}
	sign, verdict := "<=", "kept"
	if (Row{Unit: r.Unit}).Rate() {
		sign = ">="
	}
	if r.overBudget() {
		verdict = "missed"
	}
	return fmt.Sprintf("%s %s %s", sign, number(r.Budget), verdict)
}

// ratioText says how many times slower, faster, larger or smaller cay is.
func ratioText(own, other Result) string {
	if own.N == 0 || own.Median <= 0 || other.Median <= 0 {
		return "-"
	}
	worse, better := "slower", "faster"
	if own.Unit == "MB" {
		worse, better = "larger", "smaller"
	}
	ratio := own.Median / other.Median
	if (Row{Unit: own.Unit}).Rate() {
		ratio = 1 / ratio
	}
	if ratio < 1 {
		return fmt.Sprintf("%.1fx %s", 1/ratio, better)
	}
	return fmt.Sprintf("%.1fx %s", ratio, worse)
}

// number returns v with three significant digits, and all digits before the
// point.
func number(v float64) string {
	if math.Abs(v) >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func thisMachine() (Machine, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return Machine{}, fmt.Errorf("describe machine: %w", err)
	}
	mem, err := fs.Meminfo()
	if err != nil {
		return Machine{}, fmt.Errorf("describe machine: %w", err)
	}
	m := Machine{CPU: runtime.GOARCH, Cores: runtime.NumCPU()}
	if mem.MemTotalBytes != nil {
		m.MemoryMB = int64(*mem.MemTotalBytes >> 20)
	}
	// Some architectures do not report the CPU's model; the architecture's name
	// replaces it.
	if cpus, err := fs.CPUInfo(); err == nil && len(cpus) > 0 && cpus[0].ModelName != "" {
		m.CPU = cpus[0].ModelName
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return Machine{}, fmt.Errorf("describe machine: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(uts.Release[:])
	return m, nil
}

func loadAverage() (float64, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, fmt.Errorf("read load: %w", err)
	}
	load, err := fs.LoadAvg()
	if err != nil {
		return 0, fmt.Errorf("read load: %w", err)
	}
	return load.Load1, nil
}
