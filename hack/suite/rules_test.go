package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// measures are the folders whose programs and tests measure time.
var measures = []string{"test/bench"}

// TestRules checks what CONTRIBUTING.md asks of every test in the tree and a program can see.
func TestRules(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(measures, func(folder string) bool { return strings.HasPrefix(name, folder+"/") }) {
			return nil
		}
		violations, err := check(path, nil)
		for _, v := range violations {
			t.Errorf("%s:%s, want none", name, v)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// check returns what a file of tests does against the rules, each as "LINE: what". src is as for parser.ParseFile.
func check(path string, src any) ([]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	simulated := slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
		return i.Path.Value == `"testing/synctest"`
	})
	var out []string
	report := func(at ast.Node, what string) {
		out = append(out, strconv.Itoa(files.Position(at.Pos()).Line)+": "+what)
	}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		var paced ast.Expr
		measured := map[string]bool{} // variables of this function that hold how long something took
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for i, right := range n.Rhs {
					if isSince(right) && i < len(n.Lhs) {
						if name, ok := n.Lhs[i].(*ast.Ident); ok {
							measured[name.Name] = true
						}
					}
				}
			case *ast.ForStmt:
				paced = n.Cond // how long a loop goes on is a pace, not an assertion
			case *ast.BinaryExpr:
				if n == paced {
					return false
				}
				if !simulated && isOrder(n.Op) && (tells(n.X, measured) || tells(n.Y, measured)) {
					report(n, "asserts how long something took; use a simulated clock, or make the wrong behaviour "+
						"never end")
				}
			case *ast.CallExpr:
				if isBare(n) {
					report(n, "prints a value without saying what it is and what was wanted")
				}
			}
			return true
		})
	}
	return out, nil
}

// isSince reports whether an expression is a call of time.Since.
func isSince(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "Since" {
		return false
	}
	pkg, ok := f.X.(*ast.Ident)
	return ok && pkg.Name == "time"
}

func isOrder(op token.Token) bool {
	return op == token.LSS || op == token.GTR || op == token.LEQ || op == token.GEQ
}

// tells reports whether an expression contains a duration that was measured.
func tells(e ast.Expr, measured map[string]bool) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			found = found || isSince(n)
		case *ast.Ident:
			found = found || measured[n.Name]
		case *ast.FuncLit:
			return false
		}
		return !found
	})
	return found
}

// isBare reports whether a call is t.Error(x) or t.Fatal(x) of a value: not of a text, nor of an error that was not
// expected, which is all that there is to say.
func isBare(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "Error" && f.Sel.Name != "Fatal" || len(call.Args) == 0 {
		return false
	}
	if x, ok := f.X.(*ast.Ident); !ok || x.Name != "t" && x.Name != "tb" && x.Name != "b" {
		return false
	}
	for _, arg := range call.Args {
		switch arg := arg.(type) {
		case *ast.BasicLit, *ast.CallExpr, *ast.BinaryExpr: // a text, or one that is composed
			return false
		case *ast.Ident:
			if isError(arg.Name) {
				return false
			}
		case *ast.SelectorExpr:
			if isError(arg.Sel.Name) {
				return false
			}
		}
	}
	return true
}

// isError reports whether a name is one that errors have.
func isError(name string) bool {
	name = strings.ToLower(name)
	return strings.HasPrefix(name, "err") || strings.HasSuffix(name, "err")
}

func TestCheck(t *testing.T) {
	const head = "package p\nimport (\n\"time\"\n\"testing\"\n)\n"
	for name, c := range map[string]struct {
		src  string
		want []string
	}{
		"duration": {head + "func TestA(t *testing.T) { took := time.Since(x); if took > time.Second { } }",
			[]string{"6"}},
		"call": {head + "func TestA(t *testing.T) { if time.Since(x) < time.Second { } }", []string{"6"}},
		"both ends": {
			head + "func TestA(t *testing.T) { took := time.Since(x); _ = took < a || took > b }", []string{"6", "6"},
		},
		"pace":   {head + "func TestA(t *testing.T) { for time.Since(x) < time.Second { } }", nil},
		"logged": {head + "func TestA(t *testing.T) { took := time.Since(x); t.Log(took) }", nil},
		"simulated": {"package p\nimport \"testing/synctest\"\nfunc TestA(t *testing.T) { _ = time.Since(x) < a }",
			nil},
		"bare":        {head + "func TestA(t *testing.T) { t.Error(got) }", []string{"6"}},
		"bare fatal":  {head + "func TestA(t *testing.T) { t.Fatal(got, diff) }", []string{"6"}},
		"error":       {head + "func TestA(t *testing.T) { t.Fatal(err); t.Error(closeErr); t.Error(x.err) }", nil},
		"with a text": {head + "func TestA(t *testing.T) { t.Error(\"got\", got); t.Error(fmt.Sprint(x)) }", nil},
	} {
		t.Run(name, func(t *testing.T) {
			violations, err := check("p_test.go", c.src)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, v := range violations {
				line, _, _ := strings.Cut(v, ":")
				lines = append(lines, line)
			}
			if diff := cmp.Diff(c.want, lines); diff != "" {
				t.Errorf("violations in lines (-want +got):\n%s", diff)
			}
		})
	}
}
