package ledger

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	jsonexp "github.com/go-json-experiment/json"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
)

// fill sets every field in v to a value that is not zero.
func fill(v reflect.Value, n *int64) {
	*n++
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.UnixMilli(1_763_000_000_000 + *n).UTC()))
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case v.Kind() == reflect.String:
		v.SetString(fmt.Sprintf("text %d <&> \"\\ \x00\x7f \u2028 é 😀", *n))
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(*n)
	case v.CanFloat():
		v.SetFloat(float64(*n) + 0.125)
	default:
		panic("a record has a field of the type " + v.Type().String())
	}
}

// Records are encoded by hand; every field must decode to the same value.
func TestAppendRequest(t *testing.T) {
	t.Parallel()
	var full gateway.Request
	var n int64
	fill(reflect.ValueOf(&full).Elem(), &n)
	for name, r := range map[string]gateway.Request{"full": full, "zero": {}, "no attempts": {Attempts: []gateway.Attempt{}}} {
		b := appendRequest(nil, &r)
		if r.Attempts == nil { // clients expect [] instead of null
			r.Attempts = []gateway.Attempt{}
		}
		var got gateway.Request
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, b)
		}
		if !reflect.DeepEqual(got, r) {
			t.Errorf("%s: got  %+v\nwant %+v", name, got, r)
		}
		// The members and their order are those of encoding/json.
		want, err := json.Marshal(r)
		checktest.OK(t, err)
		if got, want := names(t, b), names(t, want); got != want {
			t.Errorf("%s: members\n%s\nwant\n%s", name, got, want)
		}
		if strings.ContainsAny(string(b), "\n") {
			t.Errorf("%s has a line break", name)
		}
	}
	// The members that become columns decode to the same values.
	var moved columns
	checktest.OK(t, jsonexp.Unmarshal(appendRequest(nil, &full), &moved))
	for i := range reflect.TypeFor[columns]().NumField() {
		name := reflect.TypeFor[columns]().Field(i).Name
		if got, want := reflect.ValueOf(moved).Field(i).Interface(), reflect.ValueOf(full).FieldByName(name).Interface(); !reflect.DeepEqual(got, want) {
			t.Errorf("the column %s has %v, want %v", name, got, want)
		}
	}
	bad := gateway.Request{ID: "\xff", Latency: gateway.Millis(math.NaN()), FirstToken: gateway.Millis(math.Inf(1))}
	var got gateway.Request
	checktest.OK(t, json.Unmarshal(appendRequest(nil, &bad), &got))
	if got.ID != "\ufffd" || got.Latency != 0 {
		t.Errorf("got %+v", got)
	}
}

// names lists the names of members in b, in order.
func names(t *testing.T, b []byte) string {
	var out []string
	d := json.NewDecoder(strings.NewReader(string(b)))
	var stack []byte
	name := false
	for {
		tok, err := d.Token()
		if err != nil {
			return strings.Join(out, " ")
		}
		switch tok := tok.(type) {
		case json.Delim:
			if tok == '{' || tok == '[' {
				stack = append(stack, byte(tok))
				name = tok == '{'
				continue
			}
			stack = stack[:len(stack)-1]
		case string:
			if name {
				out = append(out, tok)
				name = false
				continue
			}
		}
		name = len(stack) > 0 && stack[len(stack)-1] == '{'
	}
}

func FuzzAppendRequest(f *testing.F) {
	f.Add("gen_x", "a\xffb", int64(1), 0.5)
	f.Fuzz(func(t *testing.T, id, text string, n int64, x float64) {
		m := gateway.Money(n)
		b := appendRequest(nil, &gateway.Request{ID: id, Error: text, Tags: []string{text}, Cost: &m, Latency: gateway.Millis(x), Attempts: []gateway.Attempt{{Error: text}}})
		if !json.Valid(b) || strings.ContainsRune(string(b), '\n') {
			t.Errorf("%q is no line of JSON", b)
		}
	})
}

func TestNewID(t *testing.T) {
	t.Parallel()
	last := ""
	for range 10_000 {
		id := NewID()
		if len(id) != 30 || !strings.HasPrefix(id, "gen_") || id <= last {
			t.Fatalf("%q after %q", id, last)
		}
		last = id
	}
}

// spendAll settles 24 requests with varied fields, one per hour.
func spendAll(f *fixture) (all []gateway.Request) {
	for i := range 24 {
		c := &Caller{TeamID: "team", ProjectID: []string{"p1", "p2"}[i%2], KeyID: []string{"k1", "k2", "k3"}[i%3], User: []string{"", "u1"}[i/12]}
		if i%4 == 0 {
			c.Tags = []string{"x", "y"}
		}
		r := request(c, gateway.Money(i+1))
		r.CreatedAt = time.Date(2026, 11, 17, 12+i, 30, 0, 0, time.UTC)
		r.Model, r.Served, r.Provider, r.Session = "fast", []string{"a/b", "a/c"}[i%2], []string{"openai", "groq"}[i/2%2], fmt.Sprint("s", i/6)
		r.Tokens = gateway.Tokens{Input: 100, CacheRead: 10, CacheWrite: 5, CacheWrite1h: 2, Output: 7, Reasoning: 3}
		if i == 5 {
			r.Status, r.Served, r.Cost, r.MarketCost, r.Tokens.Estimated = gateway.Failed, "", nil, nil, true
		}
		if i == 6 {
			r.BYOK, r.Cost = true, new(gateway.Money)
		}
		switch i {
		case 7:
			r.Status = gateway.Refused
		case 9:
			r.Status = gateway.Cancelled
		}
		r.Latency = gateway.Millis((i*7%24)*100) + 0.125
		if i%3 == 0 {
			r.FirstToken = r.Latency / 2
		}
		f.admit(c, Need{}).Settle(r)
		r.Attempts = []gateway.Attempt{} // read back as []
		all = append(all, *r)
	}
	other := &Caller{TeamID: "other", ProjectID: "p9", KeyID: "k9"}
	f.admit(other, Need{}).Settle(request(other, gateway.Dollar))
	return all
}

func TestRequests(t *testing.T) {
	t.Parallel()
	f := setup(t)
	all := spendAll(f)
	list := func(project string, filter gateway.RequestFilter) (got []string) {
		t.Helper()
		for {
			page, err := f.Requests(t.Context(), "team", project, filter)
			checktest.OK(t, err)
			if filter.Limit > 0 && len(page.Items) > filter.Limit {
				t.Errorf("a page of %d has %d", filter.Limit, len(page.Items))
			}
			for _, r := range page.Items {
				got = append(got, r.ID)
			}
			if filter.Cursor = page.Next; page.Next == "" {
				return got
			}
		}
	}
	for name, tt := range map[string]struct {
		project string
		filter  gateway.RequestFilter
		is      func(i int, r *gateway.Request) bool
	}{
		"all":         {"", gateway.RequestFilter{}, func(int, *gateway.Request) bool { return true }},
		"pages of 1":  {"", gateway.RequestFilter{Limit: 1}, func(int, *gateway.Request) bool { return true }},
		"pages of 7":  {"", gateway.RequestFilter{Limit: 7}, func(int, *gateway.Request) bool { return true }},
		"of project":  {"p1", gateway.RequestFilter{Limit: 5}, func(i int, _ *gateway.Request) bool { return i%2 == 0 }},
		"project":     {"", gateway.RequestFilter{ProjectID: "p2"}, func(i int, _ *gateway.Request) bool { return i%2 == 1 }},
		"two":         {"p1", gateway.RequestFilter{ProjectID: "p2"}, func(int, *gateway.Request) bool { return false }},
		"key":         {"", gateway.RequestFilter{KeyID: "k2"}, func(_ int, r *gateway.Request) bool { return r.KeyID == "k2" }},
		"user":        {"", gateway.RequestFilter{User: "u1"}, func(i int, _ *gateway.Request) bool { return i >= 12 }},
		"tag":         {"", gateway.RequestFilter{Tag: "y"}, func(i int, _ *gateway.Request) bool { return i%4 == 0 }},
		"model":       {"", gateway.RequestFilter{Model: "a/b"}, func(_ int, r *gateway.Request) bool { return r.Served == "a/b" }},
		"model asked": {"", gateway.RequestFilter{Model: "fast"}, func(int, *gateway.Request) bool { return true }},
		"session":     {"", gateway.RequestFilter{Session: "s2"}, func(_ int, r *gateway.Request) bool { return r.Session == "s2" }},
		"provider":    {"", gateway.RequestFilter{Provider: "groq"}, func(_ int, r *gateway.Request) bool { return r.Provider == "groq" }},
		"status":      {"", gateway.RequestFilter{Status: gateway.Failed}, func(i int, _ *gateway.Request) bool { return i == 5 }},
		"times":       {"", gateway.RequestFilter{Since: all[3].CreatedAt, Until: all[6].CreatedAt}, func(i int, _ *gateway.Request) bool { return i >= 3 && i < 6 }},
	} {
		var want []string
		for i := len(all) - 1; i >= 0; i-- {
			if tt.is(i, &all[i]) {
				want = append(want, all[i].ID)
			}
		}
		if got := list(tt.project, tt.filter); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %d of %v\nwant %d of %v", name, len(got), got, len(want), want)
		}
	}
	got, err := f.Request(t.Context(), "team", "p2", all[5].ID)
	checktest.OK(t, err)
	if !reflect.DeepEqual(*got, all[5]) {
		t.Errorf("got %+v\nwant %+v", *got, all[5])
	}
	for _, reach := range [][2]string{{"team", "p1"}, {"other", ""}} {
		_, err := f.Request(t.Context(), reach[0], reach[1], all[5].ID)
		checktest.Code(t, err, cay.NotFound)
	}
	for _, cursor := range []string{"x", "e30", "!"} {
		_, err := f.Requests(t.Context(), "team", "", gateway.RequestFilter{Cursor: cursor})
		checktest.Code(t, err, cay.Invalid)
	}
}

// A record can be read as soon as it is settled, and survives a restart in the
// journal as well as in the table.
func TestRequest_AtOnce(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for range 3 {
		r := request(caller(), cent)
		f.admit(caller(), Need{}).Settle(r)
		got, err := f.Request(t.Context(), "team", "", r.ID)
		checktest.OK(t, err)
		if got.ID != r.ID {
			t.Errorf("got %+v", got)
		}
	}
	r := request(caller(), cent)
	f.admit(caller(), Need{}).Settle(r)
	checktest.OK(t, f.writer.flush(t.Context(), false))
	if s := f.Stats(); s.Journal != 1 || s.Recorded != 4 {
		t.Errorf("%+v", s)
	}
	f.reopen()
	if s := f.Stats(); s.Journal != 1 {
		t.Errorf("%+v", s)
	}
	_, err := f.Request(t.Context(), "team", "", r.ID)
	checktest.OK(t, err)
	if s := f.Stats(); s.Journal != 0 {
		t.Errorf("%+v", s)
	}
}

func TestSpend(t *testing.T) {
	t.Parallel()
	f := setup(t)
	all := spendAll(f)
	since := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	day := func(r *gateway.Request) []string { return []string{r.CreatedAt.Format("2006-01-02")} }
	for _, tt := range []struct {
		name   string
		params gateway.SpendParams
		of     func(r *gateway.Request) []string // groups of a request; nil: not in the report
	}{
		{"Default", gateway.SpendParams{}, day},
		{"Day", gateway.SpendParams{By: []string{"day"}, Since: since}, day},
		{"Hour", gateway.SpendParams{By: []string{"hour"}, Since: since}, func(r *gateway.Request) []string { return []string{r.CreatedAt.Format("2006-01-02T15:00Z")} }},
		{"Model", gateway.SpendParams{By: []string{"model"}, Since: since}, func(r *gateway.Request) []string {
			if r.Served == "" {
				return []string{r.Model}
			}
			return []string{r.Served}
		}},
		{"ProviderAndProject", gateway.SpendParams{By: []string{"provider", "project"}, Since: since}, func(r *gateway.Request) []string { return []string{r.Provider + "," + r.ProjectID} }},
		{"KeyOfUser", gateway.SpendParams{By: []string{"key"}, User: "u1", Since: since}, func(r *gateway.Request) []string {
			if r.User != "u1" {
				return nil
			}
			return []string{r.KeyID}
		}},
		{"User", gateway.SpendParams{By: []string{"user"}, Since: since}, func(r *gateway.Request) []string { return []string{r.User} }},
		{"Session", gateway.SpendParams{By: []string{"session"}, Since: since}, func(r *gateway.Request) []string { return []string{r.Session} }},
		{"ModelOfSession", gateway.SpendParams{By: []string{"provider"}, Session: "s1", Since: since}, func(r *gateway.Request) []string {
			if r.Session != "s1" {
				return nil
			}
			return []string{r.Provider}
		}},
		{"Tag", gateway.SpendParams{By: []string{"tag"}, Since: since}, func(r *gateway.Request) []string {
			if len(r.Tags) == 0 {
				return []string{""}
			}
			return r.Tags
		}},
		{"OfTag", gateway.SpendParams{By: []string{"day"}, Tag: "x", Since: since}, func(r *gateway.Request) []string {
			if len(r.Tags) == 0 {
				return nil
			}
			return day(r)
		}},
		{"OfTags", gateway.SpendParams{By: []string{"day"}, Tags: []string{"none", "y", "x"}, Since: since}, func(r *gateway.Request) []string {
			if len(r.Tags) == 0 {
				return nil
			}
			return day(r)
		}},
		{"Status", gateway.SpendParams{By: []string{"status"}, Since: since}, func(r *gateway.Request) []string { return []string{string(r.Status)} }},
		{"Latency", gateway.SpendParams{By: []string{"day", "model"}, Latency: true, Since: since}, func(r *gateway.Request) []string {
			if r.Served == "" {
				return []string{day(r)[0] + "," + r.Model}
			}
			return []string{day(r)[0] + "," + r.Served}
		}},
		{"LatencyOfTag", gateway.SpendParams{By: []string{"tag"}, Latency: true, User: "u1", Since: since}, func(r *gateway.Request) []string {
			switch {
			case r.User != "u1":
				return nil
			case len(r.Tags) == 0:
				return []string{""}
			}
			return r.Tags
		}},
		{"SurfaceAndCredential", gateway.SpendParams{By: []string{"surface", "credential"}, Since: since}, func(r *gateway.Request) []string {
			return []string{r.Surface + "," + map[bool]string{true: "byok", false: "system"}[r.BYOK]}
		}},
		{"Narrow", gateway.SpendParams{By: []string{"project"}, Since: all[4].CreatedAt, Until: all[8].CreatedAt, ProjectID: "p2", KeyID: "k3", Model: "a/c", Provider: "openai"}, func(r *gateway.Request) []string {
			if r.CreatedAt.Before(all[4].CreatedAt) || !r.CreatedAt.Before(all[8].CreatedAt) || r.ProjectID != "p2" || r.KeyID != "k3" || r.Served != "a/c" || r.Provider != "openai" {
				return nil
			}
			return []string{"p2"}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := f.Spend(t.Context(), "team", "", tt.params)
			checktest.OK(t, err)
			want := map[string]*gateway.Spend{}
			took, first := map[string][]gateway.Millis{}, map[string][]gateway.Millis{}
			for i := range all {
				r := &all[i]
				for _, g := range tt.of(r) {
					s := want[g]
					if s == nil {
						s = new(gateway.Spend)
						want[g] = s
					}
					s.Requests++
					switch r.Status {
					case gateway.Failed:
						s.Failed++
					case gateway.Cancelled:
						s.Cancelled++
					case gateway.Refused:
						s.Refused++
					default:
						took[g] = append(took[g], r.Latency)
						if r.FirstToken != 0 {
							first[g] = append(first[g], r.FirstToken)
						}
					}
					if r.Cost == nil {
						s.Unpriced++
					} else {
						s.Cost += *r.Cost
						s.MarketCost += *r.MarketCost
					}
					s.Tokens.Input += r.Tokens.Input
					s.Tokens.CacheRead += r.Tokens.CacheRead
					s.Tokens.CacheWrite += r.Tokens.CacheWrite
					s.Tokens.CacheWrite1h += r.Tokens.CacheWrite1h
					s.Tokens.Output += r.Tokens.Output
					s.Tokens.Reasoning += r.Tokens.Reasoning
					s.Tokens.Estimated = s.Tokens.Estimated || r.Tokens.Estimated
				}
			}
			by := tt.params.By
			if by == nil {
				by = []string{"day"}
			}
			for _, s := range got {
				var group []string
				for _, b := range by {
					group = append(group, s.Group[b])
				}
				g := strings.Join(group, ",")
				if len(s.Group) != len(by) || want[g] == nil {
					t.Errorf("a row is for %v", s.Group)
					continue
				}
				want[g].Group = s.Group
				if tt.params.Latency && len(took[g]) > 0 {
					want[g].Latency = &gateway.Latency{P50: rank(took[g], 50), P95: rank(took[g], 95), FirstTokenP50: rank(first[g], 50), FirstTokenP95: rank(first[g], 95)}
				}
				if !reflect.DeepEqual(s, *want[g]) {
					t.Errorf("%s: got  %+v\nwant %+v", g, s, *want[g])
				}
				delete(want, g)
			}
			if len(want) > 0 {
				t.Errorf("rows are missing: %v", want)
			}
		})
	}
}

// rank returns the nearest-rank percentile in microseconds.
func rank(all []gateway.Millis, percent int) gateway.Millis {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	n := int(math.Ceil(float64(len(all)) * float64(percent) / 100))
	return gateway.Millis(math.Trunc(float64(all[n-1])*1000) / 1000)
}

func TestRetention(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *Options) { o.Retention = 12 * time.Hour })
	all := spendAll(f) // from 17 November 12:30 to 18 November 11:30; the clock says noon
	checktest.OK(t, f.keeper.prune(t.Context()))
	page, err := f.Requests(t.Context(), "team", "", gateway.RequestFilter{})
	checktest.OK(t, err)
	if n := len(page.Items); n != 12 || page.Items[11].ID != all[12].ID {
		t.Errorf("%d records are left", n)
	}
	var tags int
	checktest.OK(t, f.db.QueryRow(t.Context(), `SELECT count(*) FROM gateway_request_tags`).Scan(&tags))
	if tags != 6 {
		t.Errorf("%d tags are left, want those of three records", tags)
	}
}
