package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// checkRange reports loops over channels, and loops over maps whose order matters,
// because they make recorded calls or build a list.
func (c *checker) checkRange(body ast.Node, loop *ast.RangeStmt) {
	t := c.pass.TypesInfo.TypeOf(loop.X)
	if t == nil {
		return
	}
	if _, ok := t.Underlying().(*types.Chan); ok {
		c.report(loop.X, "channel in a workflow: %s; use a Future or a hook", concurrency)
		return
	}
	if _, ok := t.Underlying().(*types.Map); !ok && !c.isUnordered(loop.X) {
		return
	}
	if c.asks(loop.Body, map[*ast.FuncLit]bool{}) {
		c.report(loop.X, "a workflow goes through a map and asks for something durable: %s; %s", order, useSorted)
		return
	}
	// Lists collected from the map must be sorted afterwards.
	ast.Inspect(loop.Body, func(n ast.Node) bool {
		assign, ok := n.(*ast.AssignStmt)
		if !ok || assign.Tok == token.DEFINE {
			return true
		}
		for i, lhs := range assign.Lhs {
			id := c.root(lhs)
			if id == nil {
				continue
			}
			v, ok := c.pass.TypesInfo.Uses[id].(*types.Var)
			if !ok || within(v.Pos(), loop) || c.isSorted(body, v, loop.End()) {
				continue
			}
			if c.isAppend(assign, i) || assign.Tok == token.ADD_ASSIGN && isString(v.Type()) {
				c.report(lhs, "%s gets the order of a map: %s; sort it, or %s", id.Name, order, useSorted)
			}
		}
		return true
	})
}

func within(p token.Pos, n ast.Node) bool { return n.Pos() <= p && p < n.End() }

func isString(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsString != 0
}

func (c *checker) isAppend(assign *ast.AssignStmt, i int) bool {
	if len(assign.Lhs) != len(assign.Rhs) {
		return false
	}
	call, ok := ast.Unparen(assign.Rhs[i]).(*ast.CallExpr)
	if !ok {
		return false
	}
	id, ok := ast.Unparen(call.Fun).(*ast.Ident)
	return ok && id.Name == "append"
}

// checkCollect reports slices of a map's keys that are not sorted.
func (c *checker) checkCollect(body ast.Node, assign *ast.AssignStmt) {
	if len(assign.Lhs) != len(assign.Rhs) {
		return
	}
	for i, rhs := range assign.Rhs {
		call, ok := ast.Unparen(rhs).(*ast.CallExpr)
		if !ok || len(call.Args) != 1 || c.callee(call) != "slices.Collect" || !c.isUnordered(call.Args[0]) {
			continue
		}
		id, ok := assign.Lhs[i].(*ast.Ident)
		if !ok {
			continue
		}
		if v, ok := c.pass.TypesInfo.ObjectOf(id).(*types.Var); ok && !c.isSorted(body, v, assign.End()) {
			c.report(rhs, "%s gets the order of a map: %s; %s", id.Name, order, useSorted)
		}
	}
}

// isUnordered reports whether an expression is an iterator that package maps makes from a
// map.
func (c *checker) isUnordered(e ast.Expr) bool {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	if !ok {
		return false
	}
	switch name := c.callee(call); name {
	case "maps.Keys", "maps.Values", "maps.All":
		return true
	case "slices.Collect":
		return len(call.Args) == 1 && c.isUnordered(call.Args[0])
	}
	return false
}

// callee returns the name of the called function of the standard library, or "".
func (c *checker) callee(call *ast.CallExpr) string {
	id := calleeName(call)
	if id == nil {
		return ""
	}
	fn, ok := c.pass.TypesInfo.Uses[id].(*types.Func)
	if !ok || fn.Pkg() == nil || fn.Signature().Recv() != nil {
		return ""
	}
	return fn.Pkg().Path() + "." + fn.Name()
}

// isSorted reports whether a variable is sorted after a position.
func (c *checker) isSorted(body ast.Node, v *types.Var, after token.Pos) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || call.Pos() < after || len(call.Args) == 0 {
			return true
		}
		name := c.callee(call)
		if !strings.HasPrefix(name, "slices.Sort") && !strings.HasPrefix(name, "sort.") {
			return true
		}
		ast.Inspect(call.Args[0], func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && c.pass.TypesInfo.Uses[id] == v {
				found = true
			}
			return true
		})
		return true
	})
	return found
}

// asks reports whether code makes recorded calls: it uses a Context, or a method or
// function of the SDK, directly or through a local function.
func (c *checker) asks(n ast.Node, seen map[*ast.FuncLit]bool) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && harmless[sel.Sel.Name] {
			if x, ok := sel.X.(*ast.Ident); ok && isNamed(c.pass.TypesInfo.TypeOf(x), sdk, "Context") {
				return false
			}
		}
		id, ok := n.(*ast.Ident)
		if !ok || found {
			return !found
		}
		obj := c.pass.TypesInfo.Uses[id]
		if v, ok := obj.(*types.Var); ok && isNamed(v.Type(), sdk, "Context") {
			found = true
		}
		if lit := c.literals[obj]; obj != nil && lit != nil && !seen[lit] {
			seen[lit] = true
			found = found || c.asks(lit.Body, seen)
		}
		return !found
	})
	return found
}

// harmless are the methods of a Context that may be called in any order.
var harmless = map[string]bool{"Now": true, "Info": true, "Logger": true, "Err": true}
