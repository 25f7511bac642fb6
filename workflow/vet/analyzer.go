package vet

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// sdk is the package whose Context makes a function workflow code. The package itself is
// not checked.
const sdk = "github.com/cayhq/cay/workflow"

// Analyzer reports code that a workflow must not contain; see the package comment.
var Analyzer = &analysis.Analyzer{
	Name:      "workflow",
	Doc:       "report what workflow functions must not do: clocks, randomness, goroutines, I/O, package variables",
	URL:       "https://pkg.go.dev/" + sdk + "/vet",
	Run:       run,
	FactTypes: []analysis.Fact{(*impure)(nil), (*changed)(nil)},
}

// impure is the fact that a function contains code that a workflow must not contain.
type impure struct {
	Kind kind
	// Way is the chain of calls to that code: "calls stamp, which calls time.Now".
	Way []string
}

func (*impure) AFact() {}

func (f *impure) String() string { return "impure: " + strings.Join(f.Way, " > ") }

// changed is the fact that a variable of a package is changed after the start of the
// program.
type changed struct{}

func (*changed) AFact() {}

func (*changed) String() string { return "changed" }

// checker checks one package.
type checker struct {
	pass *analysis.Pass
	// impure holds the facts about functions of this package that are not workflow code.
	impure   map[*types.Func]*impure
	literals map[types.Object]*ast.FuncLit // function literals assigned to local variables
	allowed  map[line]bool                 // lines without reports
	reported map[string]bool
}

type line struct {
	file string
	n    int
}

func run(pass *analysis.Pass) (any, error) {
	if pass.Pkg.Path() == sdk || isStandard(pass) {
		return nil, nil
	}
	c := &checker{
		pass:     pass,
		impure:   map[*types.Func]*impure{},
		literals: map[types.Object]*ast.FuncLit{},
		allowed:  map[line]bool{},
		reported: map[string]bool{},
	}
	c.readComments()
	c.findChanged()
	c.findLiterals()
	c.findImpure()
	for _, f := range pass.Files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Body != nil && (c.takesContext(n.Type) || c.usesContext(n.Body)) {
					c.checkWorkflow(n.Body)
				}
			case *ast.FuncLit:
				if c.takesContext(n.Type) {
					c.checkWorkflow(n.Body)
				}
			}
			return true
		})
	}
	return nil, nil
}

// isStandard reports whether the package belongs to the standard library: it has no
// module, and its path has no domain name.
func isStandard(pass *analysis.Pass) bool {
	first, _, _ := strings.Cut(pass.Pkg.Path(), "/")
	return (pass.Module == nil || pass.Module.Path == "" || pass.Module.Path == "std") && !strings.Contains(first, ".") && first != "command-line-arguments"
}

// findImpure finds the impure functions that are not workflow code, including the callers
// of impure functions, and exports facts about them.
func (c *checker) findImpure() {
	type call struct {
		to *types.Func
		at token.Pos
	}
	calls := map[*types.Func][]call{}
	var order []*types.Func // in source order, so that reports are deterministic
	for _, f := range c.pass.Files {
		for _, d := range f.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok || d.Body == nil || c.takesContext(d.Type) || c.usesContext(d.Body) {
				continue
			}
			fn, ok := c.pass.TypesInfo.Defs[d.Name].(*types.Func)
			if !ok {
				continue
			}
			order = append(order, fn)
			c.walk(d.Body, func(n ast.Node) {
				id, ok := n.(*ast.Ident)
				if !ok || c.isAllowed(id.Pos()) || c.impure[fn] != nil {
					return
				}
				switch obj := c.pass.TypesInfo.Uses[id].(type) {
				case *types.Func:
					obj = obj.Origin()
					if r := ruleOf(obj); r != nil {
						if r.kind.spreads() {
							c.impure[fn] = &impure{Kind: r.kind, Way: []string{nameOf(obj, c.pass.Pkg)}}
						}
						return
					}
					calls[fn] = append(calls[fn], call{obj, id.Pos()})
				case *types.Var:
					if r := ruleOf(obj); r != nil && r.kind.spreads() {
						c.impure[fn] = &impure{Kind: r.kind, Way: []string{nameOf(obj, c.pass.Pkg)}}
					}
				}
			})
		}
	}
	for again := true; again; {
		again = false
		for _, fn := range order {
			if c.impure[fn] != nil {
				continue
			}
			for _, call := range calls[fn] {
				if why := c.impurityOf(call.to); why != nil {
					c.impure[fn] = &impure{Kind: why.Kind, Way: append([]string{nameOf(call.to, nil)}, why.Way...)}
					again = true
					break
				}
			}
		}
	}
	for _, fn := range order {
		if why := c.impure[fn]; why != nil {
			c.pass.ExportObjectFact(fn, why)
		}
	}
}

// impurityOf returns the fact about a function of this package or an imported one, nil if
// there is none.
func (c *checker) impurityOf(fn *types.Func) *impure {
	if why := c.impure[fn]; why != nil || fn.Pkg() == c.pass.Pkg {
		return why
	}
	var fact impure
	if fn.Pkg() != nil && c.pass.ImportObjectFact(fn, &fact) {
		return &fact
	}
	return nil
}

// findLiterals records which function literal was assigned to a local variable.
func (c *checker) findLiterals() {
	for _, f := range c.pass.Files {
		ast.Inspect(f, func(n ast.Node) bool {
			assign, ok := n.(*ast.AssignStmt)
			if !ok || len(assign.Lhs) != len(assign.Rhs) {
				return true
			}
			for i, rhs := range assign.Rhs {
				lit, ok := rhs.(*ast.FuncLit)
				if !ok {
					continue
				}
				if id, ok := assign.Lhs[i].(*ast.Ident); ok {
					if obj := c.pass.TypesInfo.ObjectOf(id); obj != nil {
						c.literals[obj] = lit
					}
				}
			}
			return true
		})
	}
}

// walk calls f for the nodes of a function's body, and of the literals in it that run as
// part of it: it skips literals that are separate workflow code, and steps.
func (c *checker) walk(body ast.Node, f func(ast.Node)) {
	ast.Inspect(body, func(n ast.Node) bool {
		if lit, ok := n.(*ast.FuncLit); ok && (c.takesContext(lit.Type) || c.isStep(lit.Type)) {
			return false
		}
		if n != nil {
			f(n)
		}
		return true
	})
}

// takesContext reports whether a function has a parameter of type workflow.Context.
func (c *checker) takesContext(t *ast.FuncType) bool {
	return c.takes(t, func(t types.Type) bool { return isNamed(t, sdk, "Context") })
}

// isStep reports whether a function literal has a context.Context of its own: it is a
// step, or runs outside of a workflow for another reason.
func (c *checker) isStep(t *ast.FuncType) bool {
	return c.takes(t, func(t types.Type) bool { return isNamed(t, "context", "Context") })
}

func (c *checker) takes(t *ast.FuncType, is func(types.Type) bool) bool {
	return slices.ContainsFunc(t.Params.List, func(p *ast.Field) bool {
		typ := c.pass.TypesInfo.TypeOf(p.Type)
		return typ != nil && is(typ)
	})
}

// usesContext reports whether a body uses a workflow.Context from outside the body: a
// captured one, or a field.
func (c *checker) usesContext(body ast.Node) bool {
	found := false
	c.walk(body, func(n ast.Node) {
		if id, ok := n.(*ast.Ident); ok {
			if v, ok := c.pass.TypesInfo.Uses[id].(*types.Var); ok && isNamed(v.Type(), sdk, "Context") {
				found = true
			}
		}
	})
	return found
}

// isNamed reports whether t is the named type of a package.
func isNamed(t types.Type, pkg, name string) bool {
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Name() == name && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == pkg
}

// nameOf returns the name of a function or variable as written in code of package from;
// if from is nil, as people write it.
func nameOf(obj types.Object, from *types.Package) string {
	name := obj.Name()
	if fn, ok := obj.(*types.Func); ok {
		if recv := receiver(fn); recv != "" {
			name = recv + "." + name
		}
	}
	if obj.Pkg() == nil || obj.Pkg() == from {
		return name
	}
	return obj.Pkg().Name() + "." + name
}

// receiver returns the name of the type whose method fn is.
func receiver(fn *types.Func) string {
	recv := fn.Signature().Recv()
	if recv == nil {
		return ""
	}
	t := types.Unalias(recv.Type())
	if p, ok := t.(*types.Pointer); ok {
		t = types.Unalias(p.Elem())
	}
	if named, ok := t.(*types.Named); ok {
		return named.Obj().Name()
	}
	return ""
}

// allow begins the comment that excludes a line from the analysis.
const allow = "//cayvet:allow"

func (c *checker) readComments() {
	for _, f := range c.pass.Files {
		for _, g := range f.Comments {
			for _, comment := range g.List {
				rest, ok := strings.CutPrefix(comment.Text, allow)
				if !ok {
					continue
				}
				if rest = strings.TrimSpace(rest); rest == "" {
					c.pass.Reportf(comment.Pos(), "%s without a reason: say why this may be in workflow code", allow)
					continue
				}
				p := c.pass.Fset.Position(comment.Pos())
				c.allowed[line{p.Filename, p.Line}] = true
			}
		}
	}
}

func (c *checker) isAllowed(pos token.Pos) bool {
	p := c.pass.Fset.Position(pos)
	return c.allowed[line{p.Filename, p.Line}] || c.allowed[line{p.Filename, p.Line - 1}]
}

// report reports a problem at a node, once.
func (c *checker) report(n ast.Node, format string, args ...any) {
	d := analysis.Diagnostic{Pos: n.Pos(), End: n.End(), Message: fmt.Sprintf(format, args...)}
	key := fmt.Sprint(d.Pos, d.Message)
	if c.isAllowed(d.Pos) || c.reported[key] {
		return
	}
	c.reported[key] = true
	c.pass.Report(d)
}

// describe describes how a function reaches forbidden code: "stamp, which calls now,
// which uses time.Now".
func describe(name string, way []string) string {
	var b strings.Builder
	b.WriteString(name)
	for _, w := range shorten(way) {
		b.WriteString(", which calls ")
		b.WriteString(w)
	}
	return b.String()
}

// shorten keeps both ends of a long chain of calls.
func shorten(way []string) []string {
	const most = 4
	if len(way) <= most {
		return way
	}
	return slices.Concat(way[:most-2], []string{"..."}, way[len(way)-1:])
}
