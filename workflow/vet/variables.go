package vet

import (
	"go/ast"
	"go/token"
	"go/types"
)

// findChanged finds the variables of this package that functions other than init change,
// and exports facts about them.
func (c *checker) findChanged() {
	for _, f := range c.pass.Files {
		for _, d := range f.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok || d.Body == nil || d.Recv == nil && d.Name.Name == "init" {
				continue
			}
			ast.Inspect(d.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					if n.Tok != token.DEFINE {
						for _, lhs := range n.Lhs {
							c.noteWrite(lhs)
						}
					}
				case *ast.IncDecStmt:
					c.noteWrite(n.X)
				case *ast.CallExpr:
					id, ok := ast.Unparen(n.Fun).(*ast.Ident)
					if ok && (id.Name == "delete" || id.Name == "clear") && len(n.Args) > 0 {
						if _, ok := c.pass.TypesInfo.Uses[id].(*types.Builtin); ok {
							c.noteWrite(n.Args[0])
						}
					}
				}
				return true
			})
		}
	}
}

func (c *checker) noteWrite(e ast.Expr) {
	if v := c.global(e); v != nil && v.Pkg() == c.pass.Pkg {
		c.pass.ExportObjectFact(v, &changed{})
	}
}

// global returns the package variable in an expression such as v.f or v[i], or nil.
func (c *checker) global(e ast.Expr) *types.Var {
	id := c.root(e)
	if id == nil {
		return nil
	}
	v, ok := c.pass.TypesInfo.Uses[id].(*types.Var)
	if !ok || v.IsField() || v.Pkg() == nil || v.Parent() != v.Pkg().Scope() {
		return nil
	}
	return v
}

// checkWrite reports a change of a package variable.
func (c *checker) checkWrite(e ast.Expr) {
	if v := c.global(e); v != nil {
		c.report(e, "a workflow changes the package variable %s: a replay changes it again, and another process has its own; return it, or store it in a step", nameOf(v, c.pass.Pkg))
	}
}

// checkVariable reports a package variable whose value may differ on replay.
func (c *checker) checkVariable(id *ast.Ident, v *types.Var) {
	if v.IsField() || v.Pkg() == nil || v.Parent() != v.Pkg().Scope() {
		return
	}
	name := nameOf(v, c.pass.Pkg)
	if r := ruleOf(v); r != nil {
		c.report(id, "%s in a workflow: %s; %s", name, r.kind, r.use)
		return
	}
	if c.pass.ImportObjectFact(v, &changed{}) || isSynchronized(v.Type()) {
		c.report(id, "a workflow uses the package variable %s, which changes while the program runs: a replay finds another value; %s", name, useInput)
	}
}

// isSynchronized reports whether a type is made for concurrent changes.
func isSynchronized(t types.Type) bool {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	if _, ok := types.Unalias(t).Underlying().(*types.Chan); ok {
		return true
	}
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Pkg() != nil && (named.Obj().Pkg().Path() == "sync/atomic" || named.Obj().Pkg().Path() == "sync" && named.Obj().Name() == "Map")
}
