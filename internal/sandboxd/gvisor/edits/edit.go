package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"slices"
)

// A change is something about gVisor that users notice, and the edits for it.
type change struct {
	name   string
	reason string
	issue  string // at gVisor, if there is one
	test   string
	edits  []declaration
}

// A declaration is one that an edit changes. Exactly one of renamed, field and value is set.
type declaration struct {
	file string
	name string // "function", "Type.method", "Type" or "constant"
	sum  string // of the declaration's tokens

	renamed string // the new name of a function or method, whose old name a file in _gvisor declares
	field   string // of a struct, in addition
	value   string // of a constant
}

// edit returns the edited files of the module in root.
func edit(root string) (map[string][]byte, error) {
	edited := make(map[string][]byte)
	var errs []error
	for _, c := range changes {
		for _, d := range c.edits {
			text, ok := edited[d.file]
			if !ok {
				var err error
				if text, err = os.ReadFile(filepath.Join(root, d.file)); err != nil {
					errs = append(errs, c.fails(d, err))
					continue
				}
			}
			text, err := d.apply(text)
			if err != nil {
				errs = append(errs, c.fails(d, err))
				continue
			}
			edited[d.file] = text
		}
	}
	return edited, errors.Join(errs...)
}

func (c change) fails(d declaration, err error) error {
	return fmt.Errorf("edit %q of gVisor, %s in %s: %w\n\treason: %s\n\tissue: %s\n\ttest: %s",
		c.name, d.name, d.file, err, c.reason, c.issue, c.test)
}

// apply returns the text of a file with the declaration changed.
func (d declaration) apply(text []byte) ([]byte, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, d.file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	node := find(file, d.name)
	if node == nil {
		return nil, errors.New("there is no such declaration: gVisor moved, renamed or removed it")
	}
	at := func(p token.Pos) int { return set.Position(p).Offset }
	if sum := tokens(text[at(node.Pos()):at(node.End())]); sum != d.sum {
		return nil, fmt.Errorf("the declaration is not the one that the edit was written for: its checksum is %s, not %s", sum, d.sum)
	}
	// Several edits of a file do not touch the same declaration, so that each finds
	// the text that it has the checksum of.
	var from, to int
	var with string
	switch n := node.(type) {
	case *ast.FuncDecl:
		if d.renamed == "" {
			return nil, errors.New("a function can only be renamed")
		}
		from, to, with = at(n.Name.Pos()), at(n.Name.End()), d.renamed
	case *ast.TypeSpec:
		structure, ok := n.Type.(*ast.StructType)
		if !ok || d.field == "" {
			return nil, errors.New("a type can only be a struct that gets a field")
		}
		from = at(structure.Fields.Closing)
		to, with = from, "\n\t"+d.field+"\n"
	case *ast.ValueSpec:
		if len(n.Values) != 1 || d.value == "" {
			return nil, errors.New("a constant can only get another value")
		}
		from, to, with = at(n.Values[0].Pos()), at(n.Values[0].End()), d.value
	}
	return slices.Concat(text[:from], []byte(with), text[to:]), nil
}

// find returns the declaration with a name, nil if the file has none.
func find(file *ast.File, name string) ast.Node {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if receiver(d)+d.Name.Name == name {
				return d
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					if s.Name.Name == name {
						return s
					}
				case *ast.ValueSpec:
					if len(s.Names) == 1 && s.Names[0].Name == name {
						return s
					}
				}
			}
		}
	}
	return nil
}

// receiver returns "Type." of a method, and "" of a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) != 1 {
		return ""
	}
	t := d.Recv.List[0].Type
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}

// tokens returns a checksum of source text that depends neither on comments nor on how the
// text is formatted.
func tokens(text []byte) string {
	set := token.NewFileSet()
	var s scanner.Scanner
	s.Init(set.AddFile("", set.Base(), len(text)), text, nil, 0)
	var all bytes.Buffer
	for {
		_, tok, literal := s.Scan()
		if tok == token.EOF {
			sum := sha256.Sum256(all.Bytes())
			return hex.EncodeToString(sum[:6])
		}
		if tok == token.SEMICOLON && literal == "\n" {
			continue // the end of a line
		}
		fmt.Fprintf(&all, "%s %q\n", tok, literal)
	}
}
