package hub

import (
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// anyOptions generates Options with all kinds of names and values.
func anyOptions(r *rand.Rand) Options {
	var o Options
	for range 1 + r.IntN(3) {
		o.Set(anyText(r), anyText(r), anyText(r))
		o.Set("google", "thoughtSignature", anyText(r))
		o.SetRaw(anyText(r), "n", json.RawMessage([]string{"1", "null", "true", `{"a":[1,2]}`, "1e9"}[r.IntN(5)]))
	}
	return o
}

// anyText generates UTF-8 text with characters that JSON and base64 treat specially.
func anyText(r *rand.Rand) string {
	letters := []rune("abcXYZ019_-.+/=\"\\<>&{}: \x00\u00e9\u2028\uffff\U0010ffff")
	text := make([]rune, 1+r.IntN(24))
	for i := range text {
		text[i] = letters[r.IntN(len(letters))]
	}
	return string(text)
}

var allowedID = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func TestPackID_RoundTrip(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	ids := []string{"call_1", "", "functions.weather:0", "__cay_", "a__cay_b", "toolu_01ABC", "x y"}
	for i := range 2000 {
		id, o := ids[i%len(ids)], anyOptions(r)
		packed := PackID(id, o)
		if !allowedID.MatchString(packed) {
			t.Fatalf("PackID(%q, %v) = %q, which has characters an id may not have", id, o, packed)
		}
		back, options := UnpackID(packed)
		if back != id || !reflect.DeepEqual(options, o) {
			t.Fatalf("UnpackID(%q) = %q, %v; want %q, %v", packed, back, options, id, o)
		}
		// A gateway behind a gateway packs packed ids again.
		twice := PackID(packed, o)
		if back, _ := UnpackID(twice); back != packed {
			t.Fatalf("UnpackID(%q) = %q, want %q", twice, back, packed)
		}
	}
}

func TestPackID_LeavesWhatNeedsNoPacking(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{nil, {}, {"google": nil}, {"google": {}}} {
		if got := PackID("functions.f:0", o); got != "functions.f:0" {
			t.Errorf("PackID with %#v = %q, want the id", o, got)
		}
	}
	var large Options
	large.Set("google", "thoughtSignature", strings.Repeat("s", maxPacked))
	if got := PackID("call_1", large); got != "call_1" {
		t.Errorf("PackID of %d bytes = %d characters, want the id", maxPacked, len(got))
	}
	if got := PackID("call_1", Options{"google": {"x": json.RawMessage("{")}}); got != "call_1" {
		t.Errorf("PackID of what is no JSON = %q, want the id", got)
	}
}

func TestUnpackID_LeavesWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	encode := func(text string) string {
		o := Options{"x": {"y": json.RawMessage("1")}}
		return strings.Replace(PackID("call", o), mustPack(t, o), rawPack(text), 1)
	}
	for _, id := range []string{
		"", "call_1", "__cay_", "call__cay_", "call__cay_!!", "call__cay_e", "call__cay_YWJj",
		encode("null"), encode("{}"), encode(`{"a":{}}`), encode(`{"a":1}`), encode(`[1]`), encode(`{"":{"id":"a"}}`),
		encode(`{"":{"id":1},"a":{"b":1}}`), encode(`{"":{"id":"a","b":1},"a":{"b":1}}`),
		PackID("call_1", Options{"a": {"b": json.RawMessage(`"c"`)}}) + strings.Repeat("A", maxPacked),
	} {
		if got, o := UnpackID(id); got != id || o != nil {
			t.Errorf("UnpackID(%.60q) = %.60q, %v; want it as it is", id, got, o)
		}
	}
}

func TestWrap_RoundTrip(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 1000 {
		o := anyOptions(r)
		provider := []string{"google", "openai", "my.vllm", ""}[i%4]
		s := Wrap(provider, o)
		if !strings.HasPrefix(s, "cay1."+provider+".") {
			t.Fatalf("Wrap(%q) = %q, want cay1.%s.", provider, s, provider)
		}
		back, ok := Unwrap(s)
		if !ok || !reflect.DeepEqual(back, o) {
			t.Fatalf("Unwrap(%q) = %v, %v; want %v", s, back, ok, o)
		}
	}
}

func TestUnwrap_RefusesWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	good := Wrap("google", Options{"google": {"s": json.RawMessage(`"x"`)}})
	for _, s := range []string{
		"", "cay1.", "cay1.google.", "cay1." + rawPack(`{"a":{"b":1}}`), "cay1.google.!", strings.TrimPrefix(good, "cay1."),
		"cay2" + good[4:], good[:len(good)-2], "EqQBCgIYAhIM.cay1." + good, "cay1.google." + rawPack(`{}`), "cay1.google." + rawPack("null"),
		good + strings.Repeat("A", maxWrapped),
	} {
		if o, ok := Unwrap(s); ok || o != nil {
			t.Errorf("Unwrap(%.60q) = %v, %v; want no", s, o, ok)
		}
	}
	var large Options
	large.Set("openai", "reasoningEncryptedContent", strings.Repeat("s", maxWrapped))
	if got := Wrap("openai", large); got != "" {
		t.Errorf("Wrap of %d bytes = %d characters, want none", maxWrapped, len(got))
	}
	if got := Wrap("openai", Options{"openai": {}}); got != "" {
		t.Errorf("Wrap of nothing = %q", got)
	}
}

func FuzzUnpackID(f *testing.F) {
	f.Add("call_1")
	f.Add(PackID("call_1", Options{"google": {"thoughtSignature": json.RawMessage(`"abc"`)}}))
	f.Add(PackID("a b", Options{"google": {"thoughtSignature": json.RawMessage(`"abc"`)}}))
	f.Fuzz(func(t *testing.T, id string) {
		plain, o := UnpackID(id)
		if o == nil && plain != id {
			t.Fatalf("UnpackID(%q) = %q without options", id, plain)
		}
		if o == nil {
			return
		}
		again, p := UnpackID(PackID(plain, o))
		if again != plain || len(p) == 0 {
			t.Fatalf("%q does not pack again: %q, %v", id, again, p)
		}
	})
}

func mustPack(t *testing.T, o Options) string {
	t.Helper()
	s := pack(o, maxPacked)
	if s == "" {
		t.Fatal("cannot be packed")
	}
	return s
}

// rawPack packs text without further encoding.
func rawPack(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
