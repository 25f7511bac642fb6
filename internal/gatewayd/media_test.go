package gatewayd_test

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// priced adds a model of a kind with a price, at the mock upstream's address or another.
func (w *world) priced(kind, id, providerName string, p catalog.PricePerMillion) {
	w.t.Helper()
	price, err := p.Price("test")
	if err != nil {
		w.t.Fatal(err)
	}
	s := *w.settings
	s.Catalog = catalog.New(append(s.Catalog.List(), gateway.Model{ID: id, Kind: kind, Endpoints: []gateway.Endpoint{{Provider: providerName, Model: "m", Price: price}}}))
	w.settings = &s
}

// Images are charged per image or by tokens, and the maximum is reserved.
func TestMedia_Images(t *testing.T) {
	t.Parallel()
	byPiece := catalog.PricePerMillion{Input: "0", Output: "0", Image: "0.02", Images: map[string]string{"hd/1024x1024": "0.08", "hd": "0.12"}}
	byToken := catalog.PricePerMillion{Input: "5", Output: "40"}
	for name, test := range map[string]struct {
		price      catalog.PricePerMillion
		members    string
		answer     string
		cost, held string // held is the most
	}{
		"plain":              {byPiece, `"n":2,"quality":"standard","size":"1024x1024"`, `{"data":[{"b64_json":"eA=="},{"b64_json":"eA=="}]}`, "0.24", "0.24"}, // standard is not listed: the dearest
		"by both":            {byPiece, `"n":2,"quality":"hd","size":"1024x1024"`, `{"data":[{"b64_json":"eA=="},{"b64_json":"eA=="}]}`, "0.16", "0.16"},
		"by quality":         {byPiece, `"quality":"hd","size":"1792x1024"`, `{"data":[{"b64_json":"eA=="}]}`, "0.12", "0.12"},
		"fewer than asked":   {byPiece, `"n":10,"quality":"hd","size":"1024x1024"`, `{"data":[{"b64_json":"eA=="}]}`, "0.08", "0.8"},
		"tokens are counted": {byToken, `"quality":"low"`, `{"data":[{"b64_json":"eA=="}],"usage":{"input_tokens":20,"output_tokens":272}}`, "0.01098", "0.01672"},
		"they are not":       {byToken, `"quality":"low","n":2`, `{"data":[{"b64_json":"eA=="},{"b64_json":"eA=="}]}`, "0.032765", "0.033"},
		"nothing is said":    {byToken, `"n":1`, `{"data":[{"b64_json":"eA=="}]}`, "0.249705", "0.25"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.add(w.provider("paint", gatewaytest.Chat, answering(t, test.answer).URL))
			w.priced("image", "paint/er", "paint", test.price)
			body := `{"model":"paint/er","prompt":"A sesame seed",` + test.members + `}`
			status, answer, _ := w.post("/v1/images/generations", body)
			if status != http.StatusOK {
				t.Fatalf("%d %s", status, answer)
			}
			r := w.record(1)
			if want := dollars(t, test.cost); r.Cost == nil || *r.Cost < want-dollars(t, "0.0001") || *r.Cost > want+dollars(t, "0.0001") {
				t.Errorf("cost %v, want about %v", r.Cost, want)
			}
			if n, want := w.ledger.needs[0], dollars(t, test.held); n.Cost < *r.Cost || n.Cost > want+dollars(t, "0.001") {
				t.Errorf("%v is set aside, want about %v", n.Cost, want)
			}
		})
	}
}

// Speech is charged per character, transcription per second.
func TestMedia_Sound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "audio/mpeg")
		_, _ = w.Write(make([]byte, 4000))
	}))
	t.Cleanup(srv.Close)
	w.add(w.provider("voice", gatewaytest.Chat, srv.URL), w.provider("ear", gatewaytest.Chat, answering(t, `{"text":"x","usage":{"type":"duration","seconds":2.5}}`).URL),
		w.provider("deaf", gatewaytest.Chat, answering(t, `{"text":"x"}`).URL))
	w.priced("speech", "voice/v", "voice", catalog.PricePerMillion{Input: "0", Output: "0", Character: "0.00001"})
	w.priced("transcription", "ear/e", "ear", catalog.PricePerMillion{Input: "0", Output: "0", Second: "0.0001"})
	w.priced("transcription", "deaf/d", "deaf", catalog.PricePerMillion{Input: "0", Output: "0", Second: "0.0001"})
	if status, body, _ := w.post("/v1/audio/speech", `{"model":"voice/v","voice":"v","input":"`+strings.Repeat("ä", 500)+`"}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if r, n := w.record(1), w.ledger.needs[0]; *r.Cost != dollars(t, "0.005") || n.Cost != *r.Cost {
		t.Errorf("cost %v, set aside %v", r.Cost, n.Cost)
	}
	for i, test := range []struct{ model, cost string }{{"ear/e", "0.0003"}, {"deaf/d", "0.0051"}} { // 100 kB are 50 seconds at most
		var b bytes.Buffer
		form := multipart.NewWriter(&b)
		_ = form.WriteField("model", test.model)
		file, _ := form.CreateFormFile("file", "a.mp3")
		_, _ = file.Write(make([]byte, 100_000))
		_ = form.Close()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/v1/audio/transcriptions", &b)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+secret)
		r.Header.Set("Content-Type", form.FormDataContentType())
		if status, body, _ := w.do(r); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
		if r, n := w.record(i+2), w.ledger.needs[i+1]; *r.Cost != dollars(t, test.cost) || n.Cost != dollars(t, "0.0051") {
			t.Errorf("%s: cost %v, set aside %v", test.model, r.Cost, n.Cost)
		}
	}
}

// If the last of several requests for texts fails, the answered ones are charged.
func TestLost_Partly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if asked++; asked == 3 {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"error":{"message":"a text is empty"}}`))
			return
		}
		_, _ = w.Write([]byte(`{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[1]}],"usage":{"prompt_tokens":1000,"total_tokens":1000}}`))
	}))
	t.Cleanup(srv.Close)
	p := w.provider("embedder", gatewaytest.Chat, srv.URL)
	p.EmbedBatch = 2
	w.add(p)
	w.modelOf("embedding", "m/e", "embedder")
	status, body, _ := w.post("/v1/embeddings", `{"model":"m/e","input":["a","b","c","d",""]}`)
	r := w.record(1)
	if status != http.StatusBadRequest || r.ErrorKind != string(hub.BadRequest) || *r.Cost != 2000*price.Input || *r.Attempts[0].Cost != *r.Cost {
		t.Errorf("%d %s: %s, cost %v", status, body, r.ErrorKind, r.Cost)
	}
}
