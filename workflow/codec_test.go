package workflow

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
)

func TestEnvelopes(t *testing.T) {
	checktest.Long(t)
	noise := make([]byte, 200<<10)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	keys := []EncryptionKey{NewEncryptionKey()}
	for name, p := range map[string]*envelopes{"json": {}, "sealed": {keys: keys}, "gob": {codec: gobCodec{}}, "sealed gob": {codec: gobCodec{}, keys: keys}} {
		t.Run(name, func(t *testing.T) {
			for _, v := range []string{"", "a", "<&>\u2028", strings.Repeat("compressible ", 1000), strings.ToValidUTF8(string(noise[:100]), "?"), strings.ToValidUTF8(string(noise), "?")} {
				env, err := p.encode("wrun_1", v)
				if err != nil {
					t.Fatal(err)
				}
				var got string
				if err := p.decode(env, &got); err != nil || got != v {
					t.Fatalf("decode(encode(%.20q)) = %.20q, %v", v, got, err)
				}
				if sealed := string(env[:4]) == envelopeSealed; sealed != (len(p.keys) > 0) {
					t.Errorf("envelope begins with %q", env[:4])
				}
			}
		})
	}
}

func TestEnvelopes_Compressed(t *testing.T) {
	checktest.Long(t)
	p := new(envelopes)
	env, err := p.encode("", strings.Repeat("a", 10000))
	if err != nil || string(env[:4]) != envelopeGzip || len(env) > 200 {
		t.Errorf("10000 equal letters: %d bytes, %q, %v", len(env), env[:4], err)
	}
	if env, _ := p.encode("", strings.Repeat("a", 500)); string(env[:4]) != envelopeJSON {
		t.Errorf("500 letters: %q", env[:4])
	}
	// A decompression bomb is not unpacked.
	bomb := gzipped(append([]byte(envelopeJSON), make([]byte, maxPayload+1)...))
	if err := p.decode(bomb, new(string)); cay.CodeOf(err) != cay.TooLarge {
		t.Errorf("bomb: %v", err)
	}
}

func TestEnvelopes_Refused(t *testing.T) {
	p := new(envelopes)
	if _, err := p.encode("", func() {}); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("a function: %v", err)
	}
	nested := []byte(envelopeJSON + "1")
	for range 10 {
		nested = gzipped(nested)
	}
	for name, env := range map[string]string{
		"short": "js", "unknown": "devl[1]", "no gzip": "gzipabc", "nested": string(nested), "wrong type": `json"a"`, "broken": "json{",
	} {
		var n int
		if err := p.decode([]byte(env), &n); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	n := 7
	if err := p.decode(nil, &n); err != nil || n != 7 {
		t.Errorf("nothing: %d, %v", n, err)
	}
}

func TestSeal(t *testing.T) {
	old, key := NewEncryptionKey(), NewEncryptionKey()
	env, err := seal(old, "wrun_1", []byte("json1"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(env, []byte("json1")) {
		t.Error("the value is in the clear")
	}
	if got, err := unseal([]EncryptionKey{key, old}, env); err != nil || string(got) != "json1" {
		t.Errorf("with an old key second: %q, %v", got, err)
	}
	if _, err := unseal([]EncryptionKey{key}, env); cay.CodeOf(err) != cay.PermissionDenied {
		t.Errorf("with another key: %v", err)
	}
	for i := range env {
		bad := bytes.Clone(env)
		bad[i] ^= 1
		if i < 4 {
			continue // another kind of envelope
		}
		if got, err := unseal([]EncryptionKey{old}, bad); err == nil {
			t.Fatalf("byte %d changed: %q", i, got)
		}
		if _, err := unseal([]EncryptionKey{old}, env[:i]); err == nil {
			t.Fatalf("cut to %d bytes and opened", i)
		}
	}
	for _, text := range []string{key.Encode(), fmt.Sprintf("%x", key[:])} {
		if got, err := ParseEncryptionKey(text); err != nil || got != key {
			t.Errorf("ParseEncryptionKey(%q) = %v", text, err)
		}
	}
	if _, err := ParseEncryptionKey("c2hvcnQ="); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("a short key: %v", err)
	}
	if s := fmt.Sprintf("%v %+v %#v %s", key, key, key, key); strings.Contains(s, key.Encode()) || strings.Contains(s, fmt.Sprint(key[0])+" "+fmt.Sprint(key[1])) {
		t.Errorf("a key shows itself: %s", s)
	}
}

func FuzzUnseal(f *testing.F) {
	key := EncryptionKey{1}
	env, err := seal(key, "wrun_1", []byte("json1"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(env)
	f.Add([]byte("encr\x01\xff"))
	p := &envelopes{keys: []EncryptionKey{key}}
	f.Fuzz(func(t *testing.T, env []byte) {
		var v any
		_ = p.decode(env, &v)  // must not panic
		_ = p.decodeError(env) // must not panic
		_, _, _ = p.open(env)
	})
}

type gobCodec struct{}

func (gobCodec) Encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	err := gob.NewEncoder(&buf).Encode(v)
	return buf.Bytes(), err
}

func (gobCodec) Decode(b []byte, v any) error { return gob.NewDecoder(bytes.NewReader(b)).Decode(v) }

// soldOut is a registered error type, errSentinel a registered value.
type soldOut struct {
	Item string
	Left int
}

func (e *soldOut) Error() string { return e.Item + " is sold out" }

type plain struct{ hidden int }

func (plain) Error() string { return "plain" }

var errSentinel = RegisterError("workflow_test.sentinel", errors.New("sentinel"))

var _ = RegisterError("workflow_test.soldOut", &soldOut{})

// logged returns err as decoded from a log.
func logged(t *testing.T, err error) error {
	t.Helper()
	p := new(envelopes)
	return p.decodeError(p.encodeError("", err))
}

func TestRecordedError(t *testing.T) {
	_, notExist := os.Open("/does/not/exist")
	err := logged(t, fmt.Errorf("order: %w", errors.Join(&soldOut{Item: "book", Left: 2}, errSentinel, notExist,
		cay.Errorf(cay.QuotaExceeded, "slow down").WithHint("wait"))))
	if want := "order: book is sold out\nsentinel\nopen /does/not/exist: no such file or directory\nslow down"; err.Error() != want {
		t.Errorf("words: %q", err)
	}
	var s *soldOut
	if !errors.As(err, &s) || s.Left != 2 {
		t.Errorf("As of a registered type: %+v", s)
	}
	for name, target := range map[string]error{"sentinel": errSentinel, "cay": &cay.Error{Code: cay.QuotaExceeded}} {
		if !errors.Is(err, target) {
			t.Errorf("Is %s: false", name)
		}
	}
	if errors.Is(err, &cay.Error{Code: cay.NotFound}) || errors.Is(err, fs.ErrExist) || errors.Is(err, ErrTimeout) {
		t.Error("it is what it is not")
	}
	var c *cay.Error
	if !errors.As(err, &c) || c.Hint != "wait" || cay.CodeOf(err) != cay.QuotaExceeded {
		t.Errorf("As of a cay.Error: %+v", c)
	}
	// The error passes through a second log, as that of a parent run.
	again := logged(t, fmt.Errorf("again: %w", err))
	if !errors.As(again, &s) || s.Item != "book" || !errors.Is(again, errSentinel) || cay.CodeOf(again) != cay.QuotaExceeded {
		t.Errorf("after two logs: %v", again)
	}
}

func TestRecordedError_Own(t *testing.T) {
	var step *StepError
	err := logged(t, &StepError{Step: "charge", ID: "step_charge.1", Attempts: 3, Err: Fatal(errSentinel)})
	if !errors.As(err, &step) || step.Attempts != 3 || !errors.Is(err, errSentinel) {
		t.Errorf("%+v", err)
	}
	var fatal *FatalError
	if !errors.As(err, &fatal) {
		t.Error("it is not fatal any more")
	}
	var failed *RunFailedError
	err = logged(t, fmt.Errorf("w: %w", &RunFailedError{Run: "wrun_1", Code: "USER_ERROR", Cause: errSentinel}))
	if !errors.As(err, &failed) || failed.Run != "wrun_1" || !errors.Is(failed.Cause, errSentinel) {
		t.Errorf("%+v", err)
	}
	if err := logged(t, &RunCancelledError{Run: "wrun_1", Reason: "r"}); !errors.Is(err, ErrCancelled) {
		t.Errorf("%+v", err)
	}
	for _, sentinel := range []error{ErrCancelled, ErrTimeout, fs.ErrNotExist} {
		if !errors.Is(logged(t, sentinel), sentinel) {
			t.Errorf("%v does not survive", sentinel)
		}
	}
}

func TestRecordedError_Odd(t *testing.T) {
	var null *soldOut
	for name, err := range map[string]error{
		"nil pointer": null, "not comparable": uncomparable{[]int{1}}, "plain": plain{1}, "long": errors.New(strings.Repeat("a", 1<<20)),
	} {
		got := logged(t, err)
		if got == nil || got.Error() == "" || len(got.Error()) > 2*maxErrorWords {
			t.Errorf("%s: %v", name, got)
		}
	}
	deep := error(errSentinel)
	for range 1000 {
		deep = fmt.Errorf("w: %w", deep)
	}
	var wide []error
	for range 10000 {
		wide = append(wide, errSentinel)
	}
	p := new(envelopes)
	for name, err := range map[string]error{"deep": deep, "wide": errors.Join(wide...)} {
		if env := p.encodeError("", err); len(env) > 1<<20 {
			t.Errorf("%s: %d bytes", name, len(env))
		}
	}
}

type uncomparable struct{ list []int }

func (uncomparable) Error() string { return "uncomparable" }

func TestRegisterError_Taken(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("two errors of one name")
		}
	}()
	RegisterError("workflow_test.sentinel", errors.New("another"))
}
