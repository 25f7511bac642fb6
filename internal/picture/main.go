// Command picture draws the SVG of the architecture page from a text:
//
//	go run ./internal/picture <docs/images/architecture.txt >docs/images/architecture.svg
//
// Each line of the text is one thing, with quoted texts and numbers in pixels; lines that
// begin with # are comments:
//
//	size WIDTH HEIGHT "title of the picture"
//	group X Y WIDTH HEIGHT "label"
//	box NAME X Y WIDTH HEIGHT "title" "line"...
//	arrow FROM TO "label"
//
// An arrow is straight. It joins the sides of two boxes that face each other; an empty
// label draws none.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"html"
	"io"
	"os"
	"strconv"
	"strings"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	p := picture{boxes: map[string]rect{}}
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		if err := p.line(lines.Text()); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if p.width == 0 {
		return errors.New("there is no size")
	}
	_, err := out.Write(p.svg())
	return err
}

// rect is a place in the picture, in pixels.
type rect struct{ x, y, w, h int }

// picture holds the elements of the SVG, and the boxes that arrows can name.
type picture struct {
	width, height int
	title         string
	boxes         map[string]rect
	below, above  bytes.Buffer // groups and arrows, and the boxes above them
}

const (
	lineHeight = 17
	// letter is the width of a letter at least, which bounds the texts of boxes.
	letter = 6
)

func (p *picture) line(text string) error {
	words, texts, err := split(text)
	if err != nil || len(words) == 0 {
		return err
	}
	names := map[string]int{"box": 1, "arrow": 2}[words[0]]
	if len(words) < 1+names {
		return fmt.Errorf("%s needs %d names", words[0], names)
	}
	var numbers []int
	for _, word := range words[1+names:] {
		n, err := strconv.Atoi(word)
		if err != nil {
			return fmt.Errorf("%q is no number", word)
		}
		numbers = append(numbers, n)
	}
	want := map[string]int{"size": 2, "group": 4, "box": 4}[words[0]]
	if len(numbers) != want || len(texts) == 0 || len(texts) > 1 && words[0] != "box" {
		return fmt.Errorf("%s has %d numbers and %d texts", words[0], len(numbers), len(texts))
	}
	switch words[0] {
	case "size":
		p.width, p.height, p.title = numbers[0], numbers[1], texts[0]
		return nil
	case "group":
		r := rect{numbers[0], numbers[1], numbers[2], numbers[3]}
		fmt.Fprintf(&p.below, "<rect class=\"group\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", r.x, r.y, r.w, r.h)
		p.text("label", r.x+12, r.y+20, texts[0])
		return nil
	case "box":
		return p.box(words[1], rect{numbers[0], numbers[1], numbers[2], numbers[3]}, texts)
	case "arrow":
		return p.arrow(words[1], words[2], texts[0])
	}
	return fmt.Errorf("there is no %q", words[0])
}

// split divides a line into words and quoted texts.
func split(line string) (words, texts []string, err error) {
	for line = strings.TrimSpace(line); line != "" && line[0] != '#'; line = strings.TrimSpace(line) {
		if line[0] == '"' {
			text, rest, ok := strings.Cut(line[1:], `"`)
			if !ok {
				return nil, nil, errors.New("a text does not end")
			}
			texts, line = append(texts, text), rest
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		words, line = append(words, word), rest
	}
	return words, texts, nil
}

func (p *picture) text(class string, x, y int, text string) {
	fmt.Fprintf(&p.above, "<text class=\"%s\" x=\"%d\" y=\"%d\">%s</text>\n", class, x, y, html.EscapeString(text))
}

func (p *picture) box(name string, r rect, texts []string) error {
	if _, ok := p.boxes[name]; ok {
		return fmt.Errorf("the box %s is there twice", name)
	}
	if len(texts)*lineHeight > r.h {
		return fmt.Errorf("%d lines do not fit the box %s", len(texts), name)
	}
	p.boxes[name] = r
	fmt.Fprintf(&p.above, "<rect class=\"box\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"5\"/>\n", r.x, r.y, r.w, r.h)
	y := r.y + (r.h-len(texts)*lineHeight)/2 + 13
	for i, text := range texts {
		if len(text)*letter > r.w {
			return fmt.Errorf("%q does not fit the box %s", text, name)
		}
		class := "line"
		if i == 0 {
			class = "title"
		}
		p.text(class, r.x+r.w/2, y+i*lineHeight, text)
	}
	return nil
}

func (p *picture) arrow(from, to, label string) error {
	a, b := p.boxes[from], p.boxes[to]
	if a == (rect{}) || b == (rect{}) {
		return fmt.Errorf("an arrow from %s to %s needs both boxes above it", from, to)
	}
	x1, x2 := facing(a.x, a.w, b.x, b.w)
	y1, y2 := facing(a.y, a.h, b.y, b.h)
	fmt.Fprintf(&p.below, "<path class=\"arrow\" marker-end=\"url(#head)\" d=\"M%d %dL%d %d\"/>\n", x1, y1, x2, y2)
	if label != "" {
		p.text("label", (x1+x2)/2+6, (y1+y2)/2+4, label)
	}
	return nil
}

// facing returns where an arrow begins and ends on one axis, between two ranges of start
// and length: at the ends that face each other, or in the middle of what they share.
func facing(a, lenA, b, lenB int) (from, to int) {
	switch {
	case a+lenA <= b:
		return a + lenA, b
	case b+lenB <= a:
		return a, b + lenB
	}
	middle := (max(a, b) + min(a+lenA, b+lenB)) / 2
	return middle, middle
}

// style has a second set of colors for dark pages.
const style = `text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 13px; text-anchor: middle; }
.line { text-anchor: middle; fill: #59636e; }
.label { fill: #59636e; }
.box { fill: #ffffff; stroke: #8c959f; }
.group { fill: #f0f4f8; stroke: #c0c8d0; }
.arrow { fill: none; stroke: #59636e; stroke-width: 1.4; }
.head { fill: #59636e; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .line, .label { fill: #a8b3bf; }
  .box { fill: #21262d; stroke: #656c76; }
  .group { fill: #151b23; stroke: #3d444d; }
  .arrow { stroke: #a8b3bf; }
  .head { fill: #a8b3bf; }
}
`

func (p *picture) svg() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %[1]d %[2]d\">\n", p.width, p.height)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>\n%s</style>\n", html.EscapeString(p.title), style)
	b.WriteString("<defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path class=\"head\" d=\"M0 0L8 4L0 8z\"/></marker></defs>\n")
	b.Write(p.below.Bytes())
	b.Write(p.above.Bytes())
	b.WriteString("</svg>\n")
	return b.Bytes()
}
