package cay_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Sentences of 8 to 45 words are measured. A sentence of which 45 % or more are function
// words is a riddle: its nouns are left for the reader to guess. Comments of well-read
// Go code have hardly any (gVisor's runsc 0.1 %, net/http none).
const (
	leastWords = 8
	mostWords  = 45
	riddle     = 0.45
)

var (
	functionWords = wordSet(`what who whose which that it its one ones those them none there such another others anybody nobody
		everybody somebody whoever whatever so as of do does did is are was were be been has have had this these he they their other`)
	oddBeginnings = wordSet("what who whoever of that whose one those")

	word        = regexp.MustCompile(`[A-Za-z']+`)
	sentenceEnd = regexp.MustCompile(`[.:;?]\s+`)
	codeBlock   = regexp.MustCompile("(?s)```.*?```")
	blankLine   = regexp.MustCompile(`\n\s*\n`)
)

func wordSet(words string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(words) {
		set[w] = true
	}
	return set
}

// prose counts the sentences of a file, and collects those that are hard to read, each
// with its line or paragraph.
type prose struct {
	sentences    int
	riddles, odd []string
}

func (h *prose) measure(at int, text string) {
	for _, s := range sentences(text) {
		words := word.FindAllString(strings.ToLower(s), -1)
		if len(words) < leastWords || len(words) > mostWords {
			continue
		}
		h.sentences++
		shown, n := fmt.Sprintf("%d: %s", at, s), 0
		for _, w := range words {
			if functionWords[w] {
				n++
			}
		}
		if float64(n)/float64(len(words)) >= riddle {
			h.riddles = append(h.riddles, shown)
		}
		if oddBeginnings[words[0]] {
			h.odd = append(h.odd, shown)
		}
	}
}

// sentences cuts a text behind each . : ; and ? that a space follows.
func sentences(text string) (all []string) {
	for {
		at := sentenceEnd.FindStringIndex(text)
		if at == nil {
			return append(all, text)
		}
		all, text = append(all, text[:at[0]+1]), text[at[1]:]
	}
}

// comments calls f with each block of comment lines of a Go file.
func comments(text string, f func(line int, text string)) {
	var block []string
	first, n := 0, 0
	flush := func() {
		if len(block) > 0 {
			f(first, strings.Join(block, " "))
			block = nil
		}
	}
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "// ") || len(block) > 0 && strings.HasPrefix(line, "//"):
			if len(block) == 0 {
				first = n
			}
			block = append(block, strings.TrimSpace(line[2:]))
		default:
			flush()
		}
	}
	flush()
}

// TestArch_PlainEnglish holds comments and pages to words that a reader need not guess at. A
// file may have 1 % riddles and 2 % odd beginnings, or one of each: some doc comments have to
// begin with the name of an identifier such as one.
func TestArch_PlainEnglish(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (path != "." && notOurs(e.Name()) || e.Name() == "testdata" || e.Name() == "dist"):
			return fs.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".md"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var h prose
		if strings.HasSuffix(path, ".go") {
			comments(string(text), h.measure)
		} else {
			for i, paragraph := range blankLine.Split(codeBlock.ReplaceAllString(string(text), ""), -1) {
				h.measure(i+1, strings.ReplaceAll(paragraph, "\n", " "))
			}
		}
		check := func(kind string, found []string, share float64) {
			if most := max(1, int(share*float64(h.sentences))); len(found) > most {
				t.Errorf("%s has %d %s, more than %d:\n\t%s", path, len(found), kind, most, strings.Join(found, "\n\t"))
			}
		}
		check("sentences without nouns to go by", h.riddles, 0.01)
		check("sentences that begin with What, Who, Of, That, One or Those", h.odd, 0.02)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
