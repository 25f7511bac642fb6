// Package strictyaml reads files that people write in YAML and refuses whatever would
// be ignored or surprising: a file has a single document, no unknown keys, no
// anchors, bounded nesting. Errors say in which line something is wrong, and repeat
// nothing else of the file, which may have secrets in it.
package strictyaml

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/cayhq/cay"
)

const (
	// maxNesting is more than real files need. The parser recurses.
	maxNesting  = 99
	maxBrackets = 20_000
)

// Kind is a kind of file.
type Kind struct {
	Name  string // of one, in "cannot read the ...": template
	Many  string // in "... have no anchors": templates
	Limit int    // bytes a file may have
	Hint  string // of every error: where it is said what one may say
}

// Document is a file that was read.
type Document struct{ tree *ast.File }

// Read reads the file at a path into v. Errors: invalid, with the file and the line;
// for a missing file the error wraps fs.ErrNotExist.
func (k *Kind) Read(path string, v any) (*Document, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "cannot read the %s: %w", k.Name, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(k.Limit)+1))
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "cannot read the %s: %w", k.Name, err)
	}
	return k.Parse(path, b, v)
}

// Parse reads b into v; file is the name in messages. A document that has only
// comments leaves v unchanged. Errors: invalid, with the file and the line.
func (k *Kind) Parse(file string, b []byte, v any) (*Document, error) {
	if len(b) > k.Limit {
		return nil, cay.Errorf(cay.Invalid, "%s is larger than %d KiB", file, k.Limit>>10)
	}
	d := new(Document)
	err := checkNesting(b)
	if err == nil {
		if err = d.decode(b, v, k.Many); err != nil {
			err = d.place(err)
		}
	}
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "%s:%s", file, said(err)).WithHint("%s", k.Hint)
	}
	return d, nil
}

// decode reads one document, without anchors and unknown keys.
func (d *Document) decode(b []byte, v any, many string) (err error) {
	defer func() {
		if p := recover(); p != nil { // the library's answer to some input that is damaged
			err = fmt.Errorf("it is not YAML: %v", p)
		}
	}()
	if d.tree, err = parser.ParseBytes(b, 0); err != nil {
		return err
	}
	if err := checkNodes(d.tree, many); err != nil {
		return err
	}
	if !slices.ContainsFunc(d.tree.Docs, func(d *ast.DocumentNode) bool { return d.Body != nil }) {
		return nil // nothing but comments, for which the library would clear v
	}
	return yaml.NewDecoder(bytes.NewReader(b), yaml.Strict()).Decode(v)
}

// place adds the line to an error of a value's own decoder, which does not know the
// line but quotes the value.
func (d *Document) place(err error) (placed error) {
	defer func() {
		if recover() != nil { // the library's trees of damaged input have holes
			placed = err
		}
	}()
	if d.tree == nil || strings.HasPrefix(err.Error(), "[") {
		return err
	}
	for _, kind := range []ast.NodeType{ast.StringType, ast.IntegerType, ast.FloatType, ast.BoolType} {
		for _, n := range ast.FilterFile(kind, d.tree) {
			if t := n.GetToken(); t != nil && strings.Contains(err.Error(), strconv.Quote(t.Value)) {
				return fmt.Errorf("[%d:1] %w", lineOf(n), err)
			}
		}
	}
	return err
}

// said returns the message of an error of the library, without the file's name. The
// first line of such an error is "[line:column] what is wrong"; the other lines quote
// the file, and are dropped.
func said(err error) string {
	what, _, _ := strings.Cut(err.Error(), "\n")
	pos, rest, ok := strings.Cut(strings.TrimPrefix(what, "["), "] ")
	if !ok || what[0] != '[' {
		return " " + what
	}
	line, _, _ := strings.Cut(pos, ":")
	return line + ": " + rest
}

// checkNesting refuses files that would make the parser recurse deeply: brackets, and
// block collections, which nest by indentation or by dashes on a line. Brackets in
// texts count, too, so a file may have at most maxBrackets in total.
func checkNesting(b []byte) error {
	depth, total, n := 0, 0, 1
	for text := range bytes.Lines(b) {
		indent := len(text) - len(bytes.TrimLeft(text, " -?"))
		opened := bytes.Count(text, []byte{'['}) + bytes.Count(text, []byte{'{'})
		total += opened
		depth += opened - bytes.Count(text, []byte{']'}) - bytes.Count(text, []byte{'}'})
		if indent > 2*maxNesting || depth > maxNesting || total > maxBrackets {
			return fmt.Errorf("[%d:1] it is nested too deeply", n)
		}
		n++
	}
	return nil
}

// checkNodes refuses more than one document, and anchors: an alias of aliases makes a
// small file large.
func checkNodes(f *ast.File, many string) error {
	docs := 0
	for _, d := range f.Docs {
		if d.Body == nil {
			continue
		}
		if docs++; docs > 1 {
			return fmt.Errorf("[%d:1] there is more than one document", lineOf(d.Body))
		}
		if a := ast.Filter(ast.AnchorType, d.Body); len(a) > 0 {
			return fmt.Errorf("[%d:1] %s have no anchors", lineOf(a[0]), many)
		}
		if a := ast.Filter(ast.AliasType, d.Body); len(a) > 0 {
			return fmt.Errorf("[%d:1] %s have no aliases", lineOf(a[0]), many)
		}
	}
	return nil
}

func lineOf(n ast.Node) int {
	if n == nil {
		return 1
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 1
}

// Line returns the line of the value at a path of keys (string) and indexes (int), or
// of the closest existing value above it.
func (d *Document) Line(path ...any) int {
	if d.tree == nil || len(d.tree.Docs) == 0 || d.tree.Docs[0].Body == nil {
		return 1
	}
	node, line := d.tree.Docs[0].Body, 1
	for _, step := range path {
		next := child(node, step)
		if next == nil {
			break
		}
		node, line = next.value, next.line
	}
	return line
}

type place struct {
	value ast.Node
	line  int
}

func child(n ast.Node, step any) *place {
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			if p := child(v, step); p != nil {
				return p
			}
		}
	case *ast.MappingValueNode:
		if k, ok := step.(string); ok && n.Key.GetToken() != nil && n.Key.GetToken().Value == k {
			return &place{n.Value, lineOf(n.Key)}
		}
	case *ast.SequenceNode:
		if i, ok := step.(int); ok && i >= 0 && i < len(n.Values) {
			return &place{n.Values[i], lineOf(n.Values[i])}
		}
	}
	return nil
}
