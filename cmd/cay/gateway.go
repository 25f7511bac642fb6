package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
)

const gatewayHelp = `Work with the AI gateway: one address and one key for every model. Programs reach
it at http://127.0.0.1:7071, or where "cay serve --gateway-listen" says, with a key
made by "cay gateway keys create" in place of a provider's:

  OPENAI_BASE_URL=http://127.0.0.1:7071/v1   OPENAI_API_KEY=cgk_...
  ANTHROPIC_BASE_URL=http://127.0.0.1:7071   ANTHROPIC_AUTH_TOKEN=cgk_...

Times are given as 2026-11-20, 2026-11-20T12:00:00Z, or as 7d or 2h for that long
ago. Amounts are US dollars.`

func newGatewayCommand(a *app) *cobra.Command {
	c := newNoun("gateway", "Work with the AI gateway", gatewayHelp,
		newGatewayKeys(a), newGatewayBudgets(a), newGatewayRequests(a), newGatewaySpend(a), newGatewayModels(a),
		newGatewayProviders(a), newGatewayCredentials(a), newGatewayCheck(a),
	)
	c.Aliases = []string{"gw"}
	return c
}

// moneyFlag is an amount of dollars.
type moneyFlag struct{ money gateway.Money }

func (f *moneyFlag) String() string {
	if f.money == 0 {
		return ""
	}
	return f.money.String()
}

func (f *moneyFlag) Set(text string) (err error) {
	f.money, err = gateway.ParseMoney(strings.TrimPrefix(text, "$"))
	return err
}

func (f *moneyFlag) Type() string { return "dollars" }

// whenFlag is a time, or a time ago, which may be in days.
type whenFlag struct{ timeFlag }

var daysAgo = regexp.MustCompile(`^([0-9]{1,5})d$`)

func (f *whenFlag) Set(text string) error {
	if m := daysAgo.FindStringSubmatch(text); m != nil {
		days, err := strconv.Atoi(m[1])
		if err != nil {
			return err
		}
		f.text, f.time = text, time.Now().AddDate(0, 0, -days)
		return nil
	}
	return f.timeFlag.Set(text)
}

// csvFlag makes a command print comma-separated values.
type csvFlag struct{ on bool }

func (f *csvFlag) register(c *cobra.Command) {
	c.Flags().BoolVar(&f.on, "csv", false, "print comma-separated values, with a line of names first")
}

// check refuses --csv with --json.
func (f *csvFlag) check(a *app) error {
	if f.on && a.json {
		return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--csv and --json exclude each other")}
	}
	return nil
}

// writeCSV writes rows; the first row has the column names. Cells are cleaned
// first, so that a reader gets exactly the cells that were written.
func writeCSV(w io.Writer, rows [][]string) error {
	cw := csv.NewWriter(w)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = clean(cell)
		}
		if err := cw.Write(row); err != nil {
			return err
		}
	}
	cw.Flush()
	return cw.Error()
}

// dollars returns an amount for people, rounded to a precision that suits its
// size.
func dollars(m gateway.Money) string {
	abs := m
	if m < 0 {
		abs = -m
	}
	digits := 2
	for unit := gateway.Dollar; abs != 0 && abs < unit && digits < 12; unit /= 10 {
		digits++ // two digits that are not zero
	}
	if abs%(gateway.Dollar/100) != 0 && digits == 2 {
		digits = 4
	}
	s := strconv.FormatFloat(m.Dollars(), 'f', digits, 64)
	if neg := strings.HasPrefix(s, "-"); neg {
		return "-$" + s[1:]
	}
	return "$" + s
}

// dollarsOr is dollars for an amount that may be unknown.
func dollarsOr(m *gateway.Money, unknown string) string {
	if m == nil {
		return unknown
	}
	return dollars(*m)
}

// exactOr is an exact amount for programs, empty if it is unknown.
func exactOr(m *gateway.Money) string {
	if m == nil {
		return ""
	}
	return m.String()
}

func millisText(m gateway.Millis) string {
	switch {
	case m == 0:
		return ""
	case m < 1:
		return "<1ms"
	}
	return roundText(time.Duration(float64(m) * float64(time.Millisecond)))
}

// numberText is a number for people, empty for 0.
func numberText(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
