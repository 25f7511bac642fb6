package vet

import (
	"go/ast"
	"go/token"
	"go/types"
)

// checkWorkflow reports forbidden code in one workflow function.
func (c *checker) checkWorkflow(body *ast.BlockStmt) {
	inSelect := map[ast.Node]bool{} // channel operations that belong to a select
	called := map[*ast.Ident]bool{} // names of called functions
	c.walk(body, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.GoStmt:
			c.report(n, "go statement in a workflow: %s; %s", concurrency, useGo)
		case *ast.SelectStmt:
			c.report(n, "select in a workflow: %s; use workflow.NewSelector or workflow.Race", concurrency)
			for _, clause := range n.Body.List {
				if comm := clause.(*ast.CommClause).Comm; comm != nil {
					ast.Inspect(comm, func(m ast.Node) bool { inSelect[m] = true; return true })
				}
			}
		case *ast.SendStmt:
			if !inSelect[n] {
				c.report(n, "channel in a workflow: %s; use a Future, or a variable: branches run one at a time", concurrency)
			}
		case *ast.UnaryExpr:
			if n.Op == token.ARROW && !inSelect[n] {
				c.report(n, "channel in a workflow: %s; use a Future or a hook", concurrency)
			}
		case *ast.RangeStmt:
			c.checkRange(body, n)
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, lhs := range n.Lhs {
					c.checkWrite(lhs)
				}
			}
			c.checkCollect(body, n)
		case *ast.IncDecStmt:
			c.checkWrite(n.X)
		case *ast.CallExpr:
			if id := calleeName(n); id != nil {
				called[id] = true
			}
			c.checkBuiltin(n)
		case *ast.Ident:
			c.checkUse(n, called[n])
		}
	})
	ast.Inspect(body, func(n ast.Node) bool {
		if lit, ok := n.(*ast.FuncLit); ok {
			if c.takesContext(lit.Type) {
				return false // checked by itself
			}
			if c.isStep(lit.Type) {
				c.checkStep(body, lit)
				return false
			}
		}
		return true
	})
}

// calleeName returns the name of the called function, without package, receiver and type
// arguments.
func calleeName(call *ast.CallExpr) *ast.Ident {
	fun := ast.Unparen(call.Fun)
	for {
		switch f := fun.(type) {
		case *ast.Ident:
			return f
		case *ast.SelectorExpr:
			return f.Sel
		case *ast.IndexExpr:
			fun = f.X
		case *ast.IndexListExpr:
			fun = f.X
		default:
			return nil
		}
	}
}

func (c *checker) checkBuiltin(call *ast.CallExpr) {
	id, ok := ast.Unparen(call.Fun).(*ast.Ident)
	if !ok {
		return
	}
	if _, ok := c.pass.TypesInfo.Uses[id].(*types.Builtin); !ok {
		return
	}
	switch id.Name {
	case "close":
		c.report(call, "channel in a workflow: %s; use a Future or a hook", concurrency)
	case "delete", "clear":
		if len(call.Args) > 0 {
			c.checkWrite(call.Args[0])
		}
	default:
		if r, ok := builtins[id.Name]; ok {
			c.report(call, "%s in a workflow: %s; %s", id.Name, r.kind, r.use)
		}
	}
}

// checkUse checks the object that a name refers to.
func (c *checker) checkUse(id *ast.Ident, called bool) {
	switch obj := c.pass.TypesInfo.Uses[id].(type) {
	case *types.Func:
		obj = obj.Origin()
		if !called && c.isStepFunc(obj) {
			return // passed to workflow.Do, for example
		}
		if r := ruleOf(obj); r != nil {
			c.report(id, "%s in a workflow: %s; %s", nameOf(obj, c.pass.Pkg), r.kind, r.use)
		} else if why := c.impurityOf(obj); why != nil {
			c.report(id, "a workflow calls %s: %s; %s", describe(nameOf(obj, c.pass.Pkg), why.Way), why.Kind, useStep)
		}
	case *types.Var:
		c.checkVariable(id, obj)
	}
}

// isStepFunc reports whether a function is meant to run outside of workflows.
func (c *checker) isStepFunc(fn *types.Func) bool {
	params := fn.Signature().Params()
	for i := range params.Len() {
		if isNamed(params.At(i).Type(), "context", "Context") {
			return true
		}
	}
	return false
}

// checkStep checks a step that is written inside of a workflow. On replay the step's
// result is read from the log, and the step has no other effect.
func (c *checker) checkStep(workflow *ast.BlockStmt, step *ast.FuncLit) {
	outside := func(obj types.Object) bool {
		return obj != nil && obj.Pos().IsValid() && (obj.Pos() < step.Pos() || obj.Pos() > step.End()) && obj.Parent() != c.pass.Pkg.Scope()
	}
	write := func(n ast.Expr) {
		id := c.root(n)
		if id == nil {
			return
		}
		v, ok := c.pass.TypesInfo.Uses[id].(*types.Var)
		if ok && !v.IsField() && outside(v) {
			c.report(n, "a step changes %s, a variable of the workflow: a replay does not repeat that; return it from the step", id.Name)
		}
	}
	ast.Inspect(step.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, lhs := range n.Lhs {
					write(lhs)
				}
			}
		case *ast.IncDecStmt:
			write(n.X)
		case *ast.Ident:
			if v, ok := c.pass.TypesInfo.Uses[n].(*types.Var); ok && isNamed(v.Type(), sdk, "Context") && outside(v) {
				c.report(n, "a step uses the workflow's Context %s: a step cannot contain others; do that before or after it", n.Name)
			}
		}
		return true
	})
}

// root returns the name of the variable in an expression such as v, v.f or v[i].
func (c *checker) root(e ast.Expr) *ast.Ident {
	for {
		switch x := ast.Unparen(e).(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			if id, ok := x.X.(*ast.Ident); ok {
				if _, ok := c.pass.TypesInfo.Uses[id].(*types.PkgName); ok {
					return x.Sel
				}
			}
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		default:
			return nil
		}
	}
}
