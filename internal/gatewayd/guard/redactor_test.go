package guard

import (
	"strings"
	"testing"
)

func redactor(t testing.TB) *Redactor {
	r, err := NewRedactor([]Pattern{{Preset: "email"}, {Preset: "key"}, {Name: "word", Words: []string{"sesame"}}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRedactor(t *testing.T) {
	t.Parallel()
	r := redactor(t)
	for in, want := range map[string]string{
		`{"a":"joe@example.com, sesame","model":"m","n":1}`: `{"a":"[email], [word]","model":"m","n":1}`,
		`{"a":"joe\u0040example.com"}`:                      `{"a":"[email]"}`,
		`{"a":"joe\u0040example.com and cut o`:              `{"a":"[email] and cut o`,
		`{"a":"x \u0022 y`:                                  `{"a":"x \u0022 y`,
		`plain joe@example.com`:                             `plain [email]`,
		`{"plain":1}`:                                       `{"plain":1}`,
		strings.Repeat("[", 600) + strings.Repeat("]", 600): strings.Repeat("[", 600) + strings.Repeat("]", 600),
	} {
		if got := string(r.JSON([]byte(in))); got != want {
			t.Errorf("%s\nis %s\nwant %s", in, got, want)
		}
	}
	if _, err := NewRedactor([]Pattern{{Preset: "name"}}); err == nil {
		t.Error("a preset nobody knows is taken")
	}
	var none *Redactor
	if got := string(none.JSON([]byte("joe@example.com"))); got != "joe@example.com" {
		t.Error(got)
	}
}

// A match within one event is redacted in that event; if a match spans several events,
// the joined texts are returned redacted.
func TestRedactor_Events(t *testing.T) {
	t.Parallel()
	r := redactor(t)
	out, assembled := r.Events([]byte("event: x\r\ndata: {\"delta\":{\"text\":\"joe@example.com\"}}\r\n\r\n: sesame\n\ndata: [DONE]\n\n"))
	if want := "event: x\r\ndata: {\"delta\":{\"text\":\"[email]\"}}\r\n\r\n: [word]\n\ndata: [DONE]\n\n"; string(out) != want || assembled {
		t.Errorf("it is %q, %v", out, assembled)
	}
	for _, stream := range []string{
		"data: {\"choices\":[{\"delta\":{\"content\":\"I am joe@exa\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"mple.com!\"}}]}\n\n",
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"I am joe\"}}\n\ndata: {\"delta\":{\"text\":\"@example.com!\"}}\n\n",
		"data: {\"type\":\"text-delta\",\"id\":\"1\",\"delta\":\"I am joe@\"}\n\ndata: {\"type\":\"text-delta\",\"id\":\"1\",\"delta\":\"example.com!\"}\n\n",
	} {
		out, assembled := r.Events([]byte(stream))
		if string(out) != "I am [email]!\n" || !assembled {
			t.Errorf("%q is %q, %v", stream, out, assembled)
		}
	}
}

func FuzzRedactor_Events(f *testing.F) {
	f.Add([]byte("data: {\"delta\":\"joe@\"}\n\ndata: {\"delta\":\"example.com\"}\n\n"))
	f.Add([]byte("data: [DONE]\r\rdata"))
	r := redactor(f)
	f.Fuzz(func(t *testing.T, stream []byte) {
		out, _ := r.Events(stream)
		if strings.Contains(string(out), "joe@example.com") {
			t.Errorf("%q is %q", stream, out)
		}
	})
}
