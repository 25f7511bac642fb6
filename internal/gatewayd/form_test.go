package gatewayd_test

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/guard"
)

// formField is a field of a form, with its disposition and its bytes.
type formField struct{ disposition, data string }

// transcribe posts a form with a recording and additional fields.
func (w *world) transcribe(t *testing.T, fields ...formField) (int, string) {
	t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for _, f := range append(fields, formField{`form-data; name="model"`, "lab/scribe"}) {
		part, err := form.CreatePart(textproto.MIMEHeader{"Content-Disposition": {f.disposition}})
		checktest.OK(t, err)
		_, err = part.Write([]byte(f.data))
		checktest.OK(t, err)
	}
	checktest.OK(t, form.Close())
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/v1/audio/transcriptions", &body)
	checktest.OK(t, err)
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("Content-Type", form.FormDataContentType())
	status, answer, _ := w.do(r)
	return status, answer
}

// Plain text answers are guarded like JSON answers.
func TestForm_GuardsTexts(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/vtt")
		_, _ = io.WriteString(w, "WEBVTT\n\nIt is hunter2.")
	}))
	t.Cleanup(up.Close)
	w := newWorld(t)
	g, err := guard.New(guard.Config{Answers: []guard.Pattern{{Name: "secret", Regex: "hunter2", Redact: true}}, BufferStreams: true}, nil)
	checktest.OK(t, err)
	w.add(w.provider("texts", gatewaytest.Chat, up.URL))
	s := *w.settings
	s.Guards = g
	w.settings = &s
	w.model("lab/scribe", "texts")
	w.settings.Catalog.Lookup("lab/scribe").Kind = "transcription"
	status, answer := w.transcribe(t, formField{`form-data; name="file"; filename="a.mp3"`, "sound"})
	if status != http.StatusOK || answer != "WEBVTT\n\nIt is [secret]." {
		t.Errorf("%d %q", status, answer)
	}
}

// Guards see the texts of a form, also in fields that the client labels as files.
func TestForm_Guards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := *w.settings
	g, err := guard.New(guard.Config{Requests: []guard.Pattern{{Name: "secret", Regex: "hunter2", Redact: true}}}, nil)
	checktest.OK(t, err)
	m.Guards = g
	w.settings = &m
	w.model("lab/scribe", gatewaytest.Chat+":scribe")
	w.settings.Catalog.Lookup("lab/scribe").Kind = "transcription"
	sound := formField{`form-data; name="file"; filename="a.mp3"`, "hunter2 in a recording \xff"}
	for i, test := range []struct {
		field  formField
		status int
		says   string // what the provider gets, or the error
	}{
		{formField{`form-data; name="prompt"`, "Names: hunter2."}, http.StatusOK, "Names: [secret]."},
		{formField{`form-data; name="prompt"; filename="p.txt"`, "Names: hunter2."}, http.StatusOK, "Names: [secret]."},
		{formField{`form-data; name="prompt"; filename="p.txt"`, "\xff"}, http.StatusBadRequest, "is no text"},
		{formField{`form-data; name="file"; filename="hunter2.mp3"`, ""}, http.StatusBadRequest, "the name of a field or a file"},
		{formField{`form-data; name="file"; filename*=utf-8''hunter2.mp3`, ""}, http.StatusBadRequest, "the name of a field or a file"},
		{formField{`form-data; name="hunter2"`, ""}, http.StatusBadRequest, "the name of a field or a file"},
	} {
		before := len(w.up.Requests())
		status, answer := w.transcribe(t, sound, test.field)
		if status != test.status {
			t.Errorf("%d: %d %s", i, status, answer)
			continue
		}
		asked := w.up.Requests()[before:]
		if status != http.StatusOK {
			if len(asked) > 0 || !strings.Contains(answer, test.says) {
				t.Errorf("%d: %s, after %d requests", i, answer, len(asked))
			}
			continue
		}
		sent := string(asked[0].Body)
		if !strings.Contains(sent, test.says) || strings.Count(sent, "hunter2") != 1 || !strings.Contains(sent, sound.data) {
			t.Errorf("%d: the provider got %s", i, sent)
		}
	}
}
