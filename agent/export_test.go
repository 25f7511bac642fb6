package agent

import (
	"strings"
	"testing"
	"time"
)

// SignAt signs a question as if it had been asked at a time.
func SignAt(t *testing.T, env, agent string, c ToolCall, at time.Time) string {
	t.Helper()
	key, err := secretOf(env)
	if err != nil {
		t.Fatal(err)
	}
	s, err := key.sign(asking{agent: agent, question: strings.Repeat("q", 22), at: at}, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TellProgress lets an agent write a text n times in one answer, with long pauses, and
// returns the number of chunks and of their bytes.
func TellProgress(t *testing.T, n int, text string) (chunks, size int) {
	t.Helper()
	b := newBuilder(answer{}, nil, nil)
	teller := &teller{progress: newProgress("c", nil), send: func(all ...Chunk) error {
		for _, c := range all {
			chunks, size = chunks+1, size+len(c.Output)
		}
		return nil
	}}
	if _, err := b.take(&StreamPart{Type: StreamTextStart, ID: "0"}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if _, err := b.take(&StreamPart{Type: StreamTextDelta, ID: "0", Delta: text}); err != nil {
			t.Fatal(err)
		}
		teller.at = time.Time{}
		if err := teller.tell(b, i == n-1); err != nil {
			t.Fatal(err)
		}
	}
	return chunks, size
}
