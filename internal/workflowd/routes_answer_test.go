package workflowd

import (
	"net/http/httptest"
	"testing"
)

// A program's answer at the daemon's address cannot relax the daemon's browser security
// headers, nor set state in the browser.
func TestProgramAnswer(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(a *programAnswer){
		"with a status": func(a *programAnswer) { a.WriteHeader(201) },
		"without":       func(*programAnswer) {},
	} {
		w := httptest.NewRecorder()
		w.Header().Set("Content-Security-Policy", "sandbox")
		a := &programAnswer{ResponseWriter: w, said: w.Header().Clone()}
		a.Header()["Content-Security-Policy"] = []string{"script-src *"}
		a.Header()["content-security-policy"] = []string{"script-src *"}
		a.Header()["set-cookie"] = []string{"cay_session=x"}
		a.Header().Set("Clear-Site-Data", `"*"`)
		a.Header().Set("X-Mine", "kept")
		begin(a)
		if _, err := a.Write([]byte("<script>")); err != nil {
			t.Fatal(err)
		}
		got := w.Result().Header
		if len(got) != 2 || got.Get("Content-Security-Policy") != "sandbox" || got.Get("X-Mine") != "kept" {
			t.Errorf("%s: the headers are %v", name, got)
		}
	}
}
