package cay_test

import (
	"go/ast"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// dialects are the packages of the gateway's wire formats.
var dialects = []string{"aisdk", "chatcompletions", "converse", "gemini", "messages", "responses"}

// roles are the files of a wire format, by the functions and types that they begin with.
// docs/architecture.md lists them.
var roles = map[string][]string{
	"doc.go":        {"New", "Name"},
	"request.go":    {"ReadCall"},
	"outgoing.go":   {"WriteCall", "callWriter"},
	"blocking.go":   {"ReadResult", "WriteResult"},
	"reader.go":     {"NewReader", "reader"},
	"decoder.go":    {"decoder"},
	"encoder.go":    {"encoder"},
	"writer.go":     {"NewWriter", "writer"},
	"errors.go":     {"ReadError", "WriteError"},
	"tap.go":        {"Tap", "tap"},
	"mend.go":       {"Mend", "mender"},
	"count.go":      {"ReadCount", "WriteCount", "WriteCounted"},
	"embeddings.go": {"ReadEmbed", "WriteEmbed", "ReadEmbedCall", "WriteEmbedCall", "ReadEmbedResult", "WriteEmbedResult"},
	"images.go":     {"ReadImage", "WriteImage", "ReadImageCall", "WriteImageCall", "ReadImageResult", "WriteImageResult"},
	"rerank.go":     {"ReadRerank", "WriteRerank", "WriteRerankCall", "ReadRerankResult"},
}

// synonyms are names that files of a wire format had or could have, in place of the name
// that the formats agree on.
var synonyms = map[string]string{
	"call.go": "request.go or outgoing.go", "streaming.go": "reader.go or writer.go", "decode.go": "decoder.go", "encode.go": "encoder.go",
	"assembler.go": "decoder.go", "items.go": "decoder.go", "embed.go": "embeddings.go", "embedding.go": "embeddings.go", "image.go": "images.go",
	"reranking.go": "rerank.go", "error.go": "errors.go", "call_tools.go": "tools.go", "call_items.go": "prompt.go",
}

// The wire formats have the same files, so that a reader of one finds the way in all.
func TestArch_DialectFiles(t *testing.T) {
	in := map[string]string{}
	for file, names := range roles {
		for _, name := range names {
			in[name] = file
		}
	}
	for _, s := range sources(t) {
		dir, file := path.Split(s.name)
		if s.test || !slices.Contains(dialects, strings.TrimPrefix(path.Clean(dir), "internal/gatewayd/")) {
			continue
		}
		if name := synonyms[file]; name != "" {
			t.Errorf("%s: in the other wire formats the file is called %s", s.name, name)
		}
		for _, name := range declared(s.file) {
			if want := in[name]; want != "" && want != file {
				t.Errorf("%s declares %s, which is in %s in the other wire formats", s.name, name, want)
			}
		}
	}
}

// declared returns the names of the functions, the methods of Format and the types of a
// file.
func declared(f *ast.File) (names []string) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || receiver(d) == "Format" {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if spec, ok := spec.(*ast.TypeSpec); ok {
					names = append(names, spec.Name.Name)
				}
			}
		}
	}
	return names
}

// receiver returns the name of the type that a method belongs to, "" for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	return named(f.Recv.List[0].Type)
}

// named returns the name of a type of the same package, or of a pointer to it.
func named(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// engineParts are the gateway's engine and the packages that are parts of it alone.
var engineParts = []string{"internal/gatewayd", "internal/gatewayd/admin", "internal/gatewayd/asks", "internal/gatewayd/charge", "internal/gatewayd/endpoint",
	"internal/gatewayd/intake", "internal/gatewayd/plan", "internal/gatewayd/request", "internal/gatewayd/scan"}

// A type of the gateway's engine is small enough to be kept in mind.
func TestArch_TypeSizes(t *testing.T) {
	const fields, methods = 20, 40
	count := map[string]int{}
	for _, s := range sources(t) {
		if !slices.Contains(engineParts, s.pkg.path()) || s.test {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				count[s.pkg.path()+"."+receiver(f)]++
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if st, ok := spec.Type.(*ast.StructType); ok && st.Fields.NumFields() > fields {
					t.Errorf("%s: %s has %d fields, of at most %d: a stage of a call has its own type", s.at(spec), spec.Name.Name, st.Fields.NumFields(), fields)
				}
			}
			return true
		})
	}
	for name, n := range count {
		if n > methods {
			t.Errorf("%s has %d methods, of at most %d: a stage of a call has its own type", name, n, methods)
		}
	}
}

// A part of the engine is read without it.
func TestArch_EngineParts(t *testing.T) {
	const engine = "internal/gatewayd"
	for _, part := range engineParts {
		if part != engine && slices.Contains(find(t, part).Deps, module+"/"+engine) {
			t.Errorf("%s links the engine: it gets what it needs as arguments", part)
		}
	}
}

// stages are the types of a call's stages.
var stages = map[string]bool{
	"internal/gatewayd/request.Request": true, "internal/gatewayd/request.Payload": true, "internal/gatewayd/request.Document": true, "internal/gatewayd/intake.Place": true,
	"internal/gatewayd/plan.Plan": true, "internal/gatewayd/charge.Bill": true, "internal/gatewayd/charge.Result": true, "internal/gatewayd.exchange": true, "internal/gatewayd.result": true,
}

// The stages of a call get what they may read and change; the call itself would give them
// everything.
func TestArch_StagesKnowNoCall(t *testing.T) {
	const fields = 15
	left := maps.Clone(stages)
	for _, s := range sources(t) {
		if !slices.Contains(engineParts, s.pkg.path()) || s.test {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil || receiver(d) == "call" {
					continue
				}
				for _, p := range d.Type.Params.List {
					if named(p.Type) == "call" {
						t.Errorf("%s: %s.%s gets the whole call", s.at(d), receiver(d), d.Name.Name)
					}
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					spec, ok := spec.(*ast.TypeSpec)
					if !ok {
						continue
					}
					st, ok := spec.Type.(*ast.StructType)
					if !ok {
						continue
					}
					name := s.pkg.path() + "." + spec.Name.Name
					if n := st.Fields.NumFields(); stages[name] && n > fields {
						t.Errorf("%s: the stage %s has %d fields, of at most %d", s.at(spec), spec.Name.Name, n, fields)
					}
					delete(left, name)
					for _, f := range st.Fields.List {
						if named(f.Type) == "call" {
							t.Errorf("%s: %s keeps the whole call", s.at(f), spec.Name.Name)
						}
					}
				}
			}
		}
	}
	for name := range left {
		t.Errorf("there is no stage %s", name)
	}
}
