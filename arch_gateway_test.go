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

// wireObjects are structs of the gateway that have more fields than others may have, since
// a protocol or a file decides which members they have.
var wireObjects = map[string]string{
	"internal/gatewayd/messages.request":  "the members of a request of the Messages API",
	"internal/gatewayd/responses.request": "the members of a request of the Responses API",
	"internal/gatewayd/responses.body":    "the members of a request that is written for the Responses API",
	"internal/gatewayd/responses.item":    "the members of all kinds of items of the Responses API, which share one list",
	"internal/gatewayd/settings.Provider": "the members of a provider in the file of settings",
}

// A type of the gateway is small enough to be kept in mind.
func TestArch_TypeSizes(t *testing.T) {
	const fields, methods = 20, 40
	count := map[string]int{}
	large := map[string]bool{}
	for _, s := range sources(t) {
		if s.test || !within(s.pkg.path(), "internal/gatewayd") {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				count[s.pkg.path()+"."+receiver(f)]++
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			st, ok := spec.Type.(*ast.StructType)
			if !ok || st.Fields.NumFields() <= fields {
				return true
			}
			name := s.pkg.path() + "." + spec.Name.Name
			if large[name] = true; wireObjects[name] == "" {
				t.Errorf("%s: %s has %d fields, of at most %d: it is two types, each with the fields that its methods use", s.at(spec), spec.Name.Name, st.Fields.NumFields(), fields)
			}
			return true
		})
	}
	for name, n := range count {
		if n > methods {
			t.Errorf("%s has %d methods, of at most %d: it is two types, each with the fields that its methods use", name, n, methods)
		}
	}
	for name := range wireObjects {
		if !large[name] {
			t.Errorf("%s has at most %d fields: take it off the list", name, fields)
		}
	}
}

// A drawing of the gateway's folders has a top and a bottom. The compiler refuses circles of
// packages; a/x that imports b/x, and b/y that imports a/y, are a circle of folders only.
func TestArch_GatewayHasNoCircle(t *testing.T) {
	const slice = "internal/gatewayd"
	linked := map[string][]string{}
	for _, p := range packages(t) {
		if within(p.path(), slice) {
			for _, dep := range p.Deps { // also by way of packages outside
				if within(relative(dep), slice) {
					linked[p.path()] = append(linked[p.path()], relative(dep))
				}
			}
		}
	}
	if found := folderCircle(slice, linked); found != nil {
		t.Errorf("folders of %s import each other in a circle: %s", slice, strings.Join(found, " -> "))
	}
}

func TestFolderCircle(t *testing.T) {
	for _, c := range []struct {
		name, want string
		linked     map[string][]string
	}{
		{"layers", "", map[string][]string{"s": {"s/a", "s/b/x"}, "s/a": {"s/b/x"}, "s/b/x": {"s/b/y"}}},
		{"two folders", "a b a", map[string][]string{"s": {"s/a/y", "s/b"}, "s/a/x": {"s/b"}, "s/b": {"s/a/y"}}},
		{"three folders", "a b c a", map[string][]string{"s/a/x": {"s/b/x"}, "s/b/y": {"s/c"}, "s/c": {"s/a/y"}}},
		{"the slice itself", ". a .", map[string][]string{"s": {"s/a/x"}, "s/a/y": {"s"}}},
	} {
		if got := strings.Join(folderCircle("s", c.linked), " "); got != c.want {
			t.Errorf("%s: the circle is %q, want %q", c.name, got, c.want)
		}
	}
}

// folderCircle returns folders of a slice that import each other in a circle, from a
// folder back to the same folder, nil if there are none. linked has the packages of the
// slice that each package imports.
func folderCircle(slice string, linked map[string][]string) []string {
	folder := func(path string) string {
		if path == slice {
			return "."
		}
		first, _, _ := strings.Cut(strings.TrimPrefix(path, slice+"/"), "/")
		return first
	}
	next := map[string]map[string]bool{}
	for from, all := range linked {
		f := folder(from)
		if next[f] == nil {
			next[f] = map[string]bool{}
		}
		for _, to := range all {
			if g := folder(to); g != f {
				next[f][g] = true
			}
		}
	}
	done := map[string]bool{} // folders from which no circle is reached
	var walk func(way []string) []string
	walk = func(way []string) []string {
		last := way[len(way)-1]
		if i := slices.Index(way, last); i < len(way)-1 {
			return way[i:]
		}
		if done[last] {
			return nil
		}
		for _, f := range slices.Sorted(maps.Keys(next[last])) {
			if found := walk(append(way, f)); found != nil {
				return found
			}
		}
		done[last] = true
		return nil
	}
	for _, f := range slices.Sorted(maps.Keys(next)) {
		if found := walk([]string{f}); found != nil {
			return found
		}
	}
	return nil
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
