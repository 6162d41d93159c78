package core_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/openpathways/pathways/core/status/statustest"
)

// declared calls found with each identifier that a file declares, but for fields and
// methods, which are always named with what they are of.
func declared(file *ast.File, found func(*ast.Ident)) {
	list := func(names []*ast.Ident) {
		for _, n := range names {
			found(n)
		}
	}
	fields := func(l *ast.FieldList) {
		if l != nil {
			for _, f := range l.List {
				list(f.Names)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			fields(n.Recv)
			if n.Recv == nil {
				found(n.Name)
			}
		case *ast.FuncType:
			fields(n.TypeParams)
			fields(n.Params)
			fields(n.Results)
		case *ast.TypeSpec:
			found(n.Name)
			fields(n.TypeParams)
		case *ast.ValueSpec:
			list(n.Names)
		case *ast.ImportSpec:
			if n.Name != nil {
				found(n.Name)
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, e := range n.Lhs {
					if name, ok := e.(*ast.Ident); ok {
						found(name)
					}
				}
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				for _, e := range []ast.Expr{n.Key, n.Value} {
					if name, ok := e.(*ast.Ident); ok {
						found(name)
					}
				}
			}
		}
		return true
	})
}

// shadowed returns where Go files of a tree give another meaning to a name of the language.
func shadowed(tree fs.FS) ([]string, error) {
	var places []string
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := path.Base(name); name != "." && (base[0] == '.' || base == "build" || base == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, ".pb.go") {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		declared(file, func(n *ast.Ident) {
			if n.Name != "_" && types.Universe.Lookup(n.Name) != nil {
				at := set.Position(n.Pos())
				places = append(places, fmt.Sprintf("%s:%d: %s is a name of the language: choose another", at.Filename, at.Line,
					n.Name))
			}
		})
		return nil
	})
	slices.Sort(places)
	return places, err
}

func TestNamesOfTheLanguageKeepTheirMeaning(t *testing.T) {
	places := statustest.Value(shadowed(os.DirFS(".."))).OK(t)
	for _, p := range places {
		t.Error(p)
	}
}

func TestNamesOfTheLanguageWithAnotherMeaningAreFound(t *testing.T) {
	tree := fstest.MapFS{"a.go": {Data: []byte(`package a
import copy "strings"
type s struct{ len int }
func (s) close() {}
func real(max int) (cap int) {
	var new = 1
	true := new
	for min, string := range []int{} { _, _ = min, string }
	f := func(any int) { _ = copy.Clone("") }
	f(2)
	_ = true
	return
}
type error[comparable any] int
`)}}
	places := statustest.Value(shadowed(tree)).OK(t)
	var names []string
	for _, p := range places {
		names = append(names, strings.Fields(p)[1])
	}
	slices.Sort(names)
	want := []string{"any", "cap", "comparable", "copy", "error", "max", "min", "new", "real", "string", "true"}
	statustest.EqualSlices(t, names, want, "found")
}
