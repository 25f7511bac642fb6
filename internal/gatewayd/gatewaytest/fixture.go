package gatewaytest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The wire formats, named like the packages that implement them.
const (
	Chat      = "chatcompletions"
	Responses = "responses"
	Messages  = "messages"
	Gemini    = "gemini"
	Converse  = "converse"
)

// Formats are all wire formats of providers.
var Formats = []string{Chat, Responses, Messages, Gemini, Converse}

// Fixture is a recorded answer of a provider. Whole and Chunks of a Fixture come from the
// same kind of call, but mostly from two calls.
type Fixture struct {
	// Name is the name of the fixture's files, including the folder:
	// openai/chat-openai-text.
	Name string
	// Provider is the folder.
	Provider string
	// Format is the wire format, empty for recordings other than answers of language
	// models: embeddings, images, transcriptions, Google's interactions, errors.
	Format string
	Whole  []byte   // nil if missing
	Chunks [][]byte // the JSON of an event each; nil if there are none
}

// Fixtures returns the recorded answers of a provider, sorted by name, or of all
// providers if provider is empty. It skips the test if the recordings are missing; they
// are in the folder $CAY_FIXTURES, or shared/fixtures beside the repository.
func Fixtures(t testing.TB, provider string) []Fixture {
	t.Helper()
	dir := folder(t)
	if provider != "" {
		return read(t, filepath.Join(dir, provider), provider)
	}
	providers, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []Fixture
	for _, p := range providers {
		all = append(all, read(t, filepath.Join(dir, p.Name()), p.Name())...)
	}
	return all
}

// Language returns the recorded answers of language models.
func Language(t testing.TB) []Fixture {
	t.Helper()
	return slices.DeleteFunc(Fixtures(t, ""), func(f Fixture) bool { return f.Format == "" })
}

// Named returns one recorded answer.
func Named(t testing.TB, name string) Fixture {
	t.Helper()
	provider, _, _ := strings.Cut(name, "/")
	for _, f := range Fixtures(t, provider) {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("there is no fixture %s", name)
	return Fixture{}
}

func folder(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("CAY_FIXTURES"); dir != "" {
		return filepath.Join(dir, "providers")
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		if root == filepath.Dir(root) {
			t.Fatal("the test does not run in the repository")
		}
	}
	dir := filepath.Join(filepath.Dir(root), "shared", "fixtures", "providers")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no recorded answers of providers: neither $CAY_FIXTURES is set nor is there %s", dir)
	}
	return dir
}

func read(t testing.TB, dir, provider string) []Fixture {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []Fixture
	for _, file := range files {
		base, chunks := strings.CutSuffix(file.Name(), ".chunks.txt")
		if !chunks {
			base = strings.TrimSuffix(base, ".json")
		}
		base = strings.TrimPrefix(base, "__fixtures__-")
		text, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(f Fixture) bool { return f.Name == provider+"/"+base })
		if i < 0 {
			i = len(all)
			all = append(all, Fixture{Name: provider + "/" + base, Provider: provider})
		}
		f := &all[i]
		if chunks {
			for line := range bytes.Lines(text) {
				if line = bytes.TrimSpace(line); len(line) > 0 {
					f.Chunks = append(f.Chunks, whole(line))
				}
			}
		} else {
			f.Whole = text
		}
		f.Format = format(f)
	}
	return all
}

// whole returns an event with a missing last brace added, which two events of
// openai/responses-parallel-tool-call-wrapper.1 lack.
func whole(event []byte) []byte {
	if closed := append(bytes.Clone(event), '}'); !json.Valid(event) && json.Valid(closed) {
		return closed
	}
	return event
}

// format returns a fixture's format, determined by folder, name, and whether it is an
// error.
func format(f *Fixture) string {
	_, name, _ := strings.Cut(f.Name, "/")
	var body struct{ Error json.RawMessage }
	if f.Whole != nil && json.Unmarshal(f.Whole, &body) == nil && body.Error != nil && string(body.Error) != "null" {
		return ""
	}
	kind, _, _ := strings.Cut(name, "-")
	switch {
	case slices.Contains([]string{"skills", "reranking", "interactions", "completion", "embedding", "image", "speech", "transcription"}, kind),
		strings.Contains(name, "-transcription"), strings.Contains(name, "-embedding"):
		return ""
	case kind == "responses":
		return Responses
	}
	switch f.Provider {
	case "anthropic":
		return Messages
	case "google":
		return Gemini
	case "amazon-bedrock":
		return Converse
	}
	return Chat
}
