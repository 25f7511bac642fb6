package api_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

// readJSON reads body as the parameters of a sandbox.
func readJSON(t testing.TB, body string) (sandbox.CreateParams, error) {
	t.Helper()
	r := httptest.NewRequest("POST", "/", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	var p sandbox.CreateParams
	err := api.ReadJSON(httptest.NewRecorder(), r, &p)
	return p, err
}

func TestReadJSON_Refuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, body string
		code       cay.Code
		says       string
	}{
		{"nothing", "", cay.Invalid, "empty"},
		{"space", " \n ", cay.Invalid, "empty"},
		{"an array", `[]`, cay.Invalid, "array"},
		{"null", `null`, cay.Invalid, "null"},
		{"a string", `"x"`, cay.Invalid, "a string"},
		{"two values", `{} {}`, cay.Invalid, "goes on"},
		{"a value and rubbish", `{}x`, cay.Invalid, "goes on"},
		{"broken off", `{"name":`, cay.Invalid, "not JSON"},
		{"a comment", `{/**/}`, cay.Invalid, "not JSON"},
		{"a trailing comma", `{"name":"x",}`, cay.Invalid, "not JSON"},
		{"not UTF-8", "{\"name\":\"\xff\"}", cay.Invalid, "not JSON"},
		{"unknown field", `{"nmae":"x"}`, cay.Invalid, `"nmae"`},
		{"unknown field below", `{"network":{"mdoe":"x"}}`, cay.Invalid, `"network.mdoe"`},
		{"another case", `{"NAME":"x"}`, cay.Invalid, `"NAME"`},
		{"twice", `{"name":"x","name":"y"}`, cay.Invalid, `"name" is there twice`},
		{"twice, escaped", `{"name":"x","\u006eame":"y"}`, cay.Invalid, `"name" is there twice`},
		{"twice below", `{"env":{"A":"1","A":"2"}}`, cay.Invalid, `"env.A" is there twice`},
		{"a number for a string", `{"name":5}`, cay.Invalid, `"name": a number`},
		{"a string for a number", `{"memory_mb":"5"}`, cay.Invalid, `"memory_mb": "5"`},
		{"a fraction for a whole number", `{"memory_mb":1.5}`, cay.Invalid, `"memory_mb"`},
		{"a number too large", `{"memory_mb":99999999999999999999}`, cay.Invalid, `"memory_mb"`},
		{"a number in a map of strings", `{"env":{"A":1}}`, cay.Invalid, `"env.A"`},
		{"a duration as text", `{"timeout_ms":"5m"}`, cay.Invalid, `"timeout_ms": "5m" is not a whole number`},
		{"a key that is a header", `{"IdempotencyKey":"x"}`, cay.Invalid, "IdempotencyKey"},
		{"65 levels", strings.Repeat(`{"a":`, 65), cay.TooLarge, "64"},
		{"100 000 levels", strings.Repeat("[", 100_000), cay.TooLarge, "64"},
		{"more than 1 MiB", `{"name":"` + strings.Repeat("x", 1<<20) + `"}`, cay.TooLarge, "1048576"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := readJSON(t, tt.body)
			if err == nil {
				t.Fatal("it was taken")
			}
			e := api.Public(t.Context(), err)
			if e.Code != tt.code || !strings.Contains(e.Message, tt.says) || len(e.Message) > 400 {
				t.Errorf("%s: %s; want %s with %q", e.Code, e.Message, tt.code, tt.says)
			}
		})
	}
}

func TestReadJSON_ContentType(t *testing.T) {
	t.Parallel()
	for ct, ok := range map[string]bool{"application/json": true, "Application/JSON;charset=utf-8": true, "": false, "text/plain": false, "application/x-www-form-urlencoded": false} {
		r := httptest.NewRequest("POST", "/", strings.NewReader("{}"))
		r.Header.Set("Content-Type", ct)
		if err := api.ReadJSON(httptest.NewRecorder(), r, new(struct{})); (err == nil) != ok {
			t.Errorf("%q: %v", ct, err)
		}
	}
}

func TestReadOpenJSON(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		"": "", " \n ": "", `{}`: "", `{"more":{"a":1},"name":"x"}`: "x", `{"name":null}`: "",
		`{"name":"x","name":"y"}`: "!", `{"name":5}`: "!", `[]`: "!", `null`: "!", `{}x`: "!", `{"name":"` + strings.Repeat("x", 1<<20) + `"}`: "!",
	} {
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		var v struct {
			Name string `json:"name"`
		}
		err := api.ReadOpenJSON(httptest.NewRecorder(), r, &v)
		if want == "!" && err == nil || want != "!" && (err != nil || v.Name != want) {
			t.Errorf("%.100q: %q, %v", body, v.Name, err)
		}
	}
}

// Refusing a hostile body takes little memory beyond the body.
func TestReadJSON_Memory(t *testing.T) {
	var names strings.Builder
	names.WriteString(`{"env":{`)
	for names.Len() < 1<<19 {
		names.WriteString(`"":0,`) // a name that repeats at once
	}
	for name, body := range map[string]string{"deep": strings.Repeat("[", 1<<20), "repeated": names.String()} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := readJSON(t, body); err == nil {
			t.Errorf("%s: it was taken", name)
		}
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 8<<20 {
			t.Errorf("%s: %d bytes allocated for a body of %d", name, got, len(body))
		}
	}
}

// Accepted bodies mean the same to the standard library, and no body causes a
// panic.
func FuzzReadJSON(f *testing.F) {
	for _, s := range []string{`{}`, `{"name":"x","vcpus":0.5,"env":{"A":"b"},"network":{"mode":"deny-all"},"timeout_ms":5}`, `{"name":null}`, `{"env":{"a":"\ud800"}}`, `[[[`, `{"a":1}{`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		p, err := readJSON(t, body)
		if err != nil {
			if e := api.Public(t.Context(), err); e.Code != cay.Invalid && e.Code != cay.TooLarge {
				t.Errorf("%q: %v", body, err)
			}
			return
		}
		var q sandbox.CreateParams
		if err := json.Unmarshal([]byte(body), &q); err != nil {
			t.Errorf("%q was taken, but: %v", body, err)
		}
		a, _ := json.Marshal(p)
		b, _ := json.Marshal(q)
		if string(a) != string(b) {
			t.Errorf("%q was read as %s, by the standard library as %s", body, a, b)
		}
	})
}

func TestQuery(t *testing.T) {
	t.Parallel()
	read := func(query string) error {
		q := api.ParseQuery(httptest.NewRequest(http.MethodGet, "/?"+query, nil))
		q.String("s")
		q.Int("n", -1, 10, 5)
		q.Bool("b")
		q.Enum("e", "x", "x", "y")
		q.Strings("r", 2)
		q.Octal("m")
		q.Time("at")
		return q.Err()
	}
	for query, says := range map[string]string{
		"": "", "at=2026-11-20T12:00:00.5Z": "", "at=2026-11-20T12:00:00%2B01:00": "", "at=": "at", "at=1": "not a time", "s=&n=-1&b&e=y&r=1&r=2&m=0755": "", "b=true": "", "b=0": "",
		"n=11": "11", "n=": "n", "n=x": "x", "n=1.5": "1.5", "b=yes": "yes", "e=": "e", "e=z": "x, y", "r=1&r=2&r=3": "at most 2",
		"m=8": "octal", "m=-1": "octal", "m=010000": "octal", "s=1&s=2": "2 times", "t=1": `"t"`, "a=%": "malformed", "a;b=1": "malformed",
	} {
		err := read(query)
		if says == "" && err != nil || says != "" && (cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: %v, want %q", query, err, says)
		}
	}
}

func FuzzParseRange(f *testing.F) {
	for _, s := range []string{"bytes=0-1", "bytes=-5", "bytes=5-", "bytes=1-2,3-4", "bytes=9223372036854775807-", "bytes=0-9223372036854775807", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		r, ok := api.ParseRange(header)
		switch {
		case !ok && r != api.Range{}:
			t.Errorf("%q: not understood, but %+v", header, r)
		case ok && (r.First < -1 || r.Length < 0 || r.First == -1 && r.Length == 0):
			t.Errorf("%q: %+v", header, r)
		case ok && r.First >= 0 && r.Length > 0 && r.First+(r.Length-1) < r.First:
			t.Errorf("%q: %+v ends beyond all numbers", header, r)
		}
	})
}
