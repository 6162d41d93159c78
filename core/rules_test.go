// Package core_test keeps the rules by which the packages of the module depend
// on each other.
package core_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/openpathways/pathways/core/status/statustest"
)

const (
	module    = "github.com/openpathways/pathways"
	arrow     = "github.com/apache/arrow"
	protowire = "google.golang.org/protobuf/encoding/protowire"
	// Only this makes bubbles of simulated time.
	bubbles = "core/bubble"
)

var (
	// Only these trees use cgo, and what builds without it imports none of them.
	cgoTrees  = []string{"capi", "device/pjrt"}
	pureTrees = []string{"core", "transport", "device", "device/sim", "device/devicetest"}
	// Only these use Arrow's library, and nothing imports them but programs that use
	// Arrow and their tests: what is linked into libpathways.so reads Arrow in C.
	arrowTrees = []string{"core/arrowio", "transport/arrowmem"}
	lean       = []string{"capi", "core", "device", "transport"}
	// Only these write and read messages by hand: ours, and XLA's.
	codecTrees = []string{"core/wire", "core/xla"}
	// These packages decide and never act: the same events give the same actions.
	// They import nothing of the module but each other.
	deciders = []string{"core/schedule", "core/placement", "core/ledger", "core/graph", "core/reshard", "core/shape",
		"core/shape/strided", "core/status", "core/invariants", "core/worker/devicequeue", "core/worker/assembly",
		"core/xla/protowalk", "core/xla/hlo", "core/xla/compileoptions", "core/xla/spmd", "core/xla/aot",
		"core/xla/xplane"}
	// Packages that decide and never act, but for these files, their shells. They may import what holds no more than
	// values.
	shells = map[string][]string{"core/chain": nil, "core/tenant": nil, "core/controller": nil,
		"core/epoch": {"member.go", "server.go"}}
	// Files that decide, of packages that act.
	decidingFiles = []string{"core/command/restarts.go"}
	// What a decider may not import, with all below it. Beside a shell, durations are values, and clocks are not.
	acting = []string{"context", "crypto/rand", "golang.org/x/sync", "golang.org/x/sys", "go.uber.org/atomic", "log",
		"math/rand", "net", "os", "runtime", "sync", "syscall", "time"}
	clocks = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}
)

// under reports whether a path is one of the trees or in one of them.
func under(p string, trees []string) bool {
	return slices.ContainsFunc(trees, func(tree string) bool { return p == tree || strings.HasPrefix(p, tree+"/") })
}

// selects reports whether an expression is one of the names of a package.
func selects(n *ast.SelectorExpr, pkg string, names ...string) bool {
	x, ok := n.X.(*ast.Ident)
	return ok && x.Name == pkg && slices.Contains(names, n.Sel.Name)
}

// rules reads all Go files of a module and reports each rule that is broken. It
// returns the packages it has seen.
func rules(tree fs.FS) (broken []string, packages map[string]bool, err error) {
	packages = map[string]bool{} // by directory: a comment was found
	err = fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d.IsDir() {
			if name != "." && (base[0] == '.' || base[0] == '_' || base == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" || base[0] == '.' || base[0] == '_' {
			return nil
		}
		code, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, name, code, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, test := path.Dir(name), strings.HasSuffix(name, "_test.go")
		tell := func(at token.Pos, format string, args ...any) {
			broken = append(broken, fmt.Sprintf("%s:%d: ", name, files.Position(at).Line)+fmt.Sprintf(format, args...))
		}
		pure := !test && slices.Contains(deciders, dir)
		acts, mixed := shells[dir]
		beside := !test && mixed && !slices.Contains(acts, base) || slices.Contains(decidingFiles, name)
		decides := pure || beside
		who := dir
		if !pure {
			who = name
		}
		for _, spec := range f.Imports {
			p, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			own, ours := strings.CutPrefix(p, module+"/")
			switch {
			case p == "C" && !under(dir, cgoTrees):
				tell(spec.Pos(), "cgo is for %s alone", strings.Join(cgoTrees, " and "))
			case ours && under(own, cgoTrees) && under(dir, pureTrees) && !under(dir, cgoTrees):
				tell(spec.Pos(), "%s imports %s, which needs cgo", dir, own)
			case under(p, []string{arrow}) && under(dir, lean) && !under(dir, arrowTrees):
				tell(spec.Pos(), "Arrow's library is for %s alone", strings.Join(arrowTrees, " and "))
			case ours && under(own, arrowTrees) && under(dir, lean) && !under(dir, arrowTrees):
				tell(spec.Pos(), "%s imports %s, which brings Arrow's library along", dir, own)
			case p == protowire && !test && under(dir, lean) && !under(dir, codecTrees):
				tell(spec.Pos(), "messages are written and read by hand in %s alone", strings.Join(codecTrees, " and "))
			case pure && ours && !slices.Contains(deciders, own):
				tell(spec.Pos(), "%s decides and never acts: it may not import %s", dir, own)
			case decides && under(p, acting) && !(beside && p == "time"):
				tell(spec.Pos(), "%s decides and never acts: it may not import %q", who, p)
			}
		}
		if dir != bubbles {
			ast.Inspect(f, func(n ast.Node) bool {
				if n, ok := n.(*ast.SelectorExpr); ok && selects(n, "synctest", "Test") {
					tell(n.Pos(), "use %s's Test: under the race detector, synctest's ends the process", path.Base(bubbles))
				}
				return true
			})
		}
		if decides {
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					tell(n.Pos(), "%s decides and never acts: it may not have goroutines", who)
				case *ast.SelectorExpr:
					if selects(n, "time", clocks...) {
						tell(n.Pos(), "%s decides and never acts: it may not call time.%s", who, n.Sel.Name)
					}
				}
				return true
			})
		}
		if !test {
			packages[dir] = packages[dir] || f.Name.Name == "main" && f.Doc.Text() != "" ||
				strings.HasPrefix(f.Doc.Text(), "Package "+f.Name.Name+" ")
		}
		return nil
	})
	for dir, documented := range packages {
		if !documented {
			broken = append(broken, fmt.Sprintf("%s: no file has a package comment, which is the package's contract", dir))
		}
	}
	slices.Sort(broken)
	return broken, packages, err
}

func TestPackagesKeepTheRules(t *testing.T) {
	broken, packages, err := rules(os.DirFS(".."))
	statustest.OK(t, err)
	for _, b := range broken {
		t.Error(b)
	}
	found := slices.Collect(maps.Keys(packages))
	for _, tree := range slices.Concat(cgoTrees, pureTrees, arrowTrees, lean, codecTrees) {
		if !slices.ContainsFunc(found, func(dir string) bool { return under(dir, []string{tree}) }) {
			t.Errorf("no package was found in %s; a rule that is about it keeps nothing", tree)
		}
	}
	for _, dir := range deciders {
		if _, ok := packages[dir]; !ok {
			t.Errorf("package %s was not found; a rule that is about it keeps nothing", dir)
		}
	}
	named := slices.Clone(decidingFiles)
	for dir, files := range shells {
		named = append(named, dir)
		for _, name := range files {
			named = append(named, path.Join(dir, name))
		}
	}
	for _, name := range named {
		if _, err := os.Stat(path.Join("..", name)); err != nil {
			t.Errorf("%s was not found; a rule that is about it keeps nothing", name)
		}
	}
}

// If the Makefile picks tests by name, each of the packages it names has one: go test succeeds where it finds none.
func TestMakefilePicksTestsThatExist(t *testing.T) {
	makefile := statustest.Value(os.ReadFile("../Makefile")).OK(t)
	picks := regexp.MustCompile(`\$\(GO\) test .*-run (\S+)((?: \./\S+)+)`).FindAllSubmatch(makefile, -1)
	if len(picks) == 0 {
		t.Error("the Makefile picks no tests by name; this test checks nothing")
	}
	for _, pick := range picks {
		name := regexp.MustCompile(`(?m)^func Test\w*` + string(pick[1]))
		for _, dir := range strings.Fields(string(pick[2])) {
			files := statustest.Value(filepath.Glob(filepath.Join("..", dir, "*_test.go"))).OK(t)
			if !slices.ContainsFunc(files, func(file string) bool {
				code, err := os.ReadFile(file)
				return err == nil && name.Match(code)
			}) {
				t.Errorf("the Makefile runs tests named %s of %s, which has none", pick[1], dir)
			}
		}
	}
}

// Each rule finds what breaks it, and nothing else.
func TestRulesFindWhatBreaksThem(t *testing.T) {
	const doc = "// Package x is here.\npackage x\n"
	imports := func(p string) string { return doc + "import _ " + strconv.Quote(p) + "\n" }
	for _, c := range []struct {
		name, file, code string
		want             string // "" where nothing is broken
	}{
		{"cgo in core", "core/ledger/x.go", doc + "import \"C\"\n", "core/ledger/x.go:3: cgo"},
		{"cgo in a test", "transport/x/x_test.go", doc + "import \"C\"\n", "cgo is for capi and device/pjrt alone"},
		{"cgo beside a tree", "capital/x.go", doc + "import \"C\"\n", "cgo"},
		{"cgo in capi", "capi/lib/x.go", doc + "import \"C\"\n", ""},
		{"cgo in the driver", "device/pjrt/x.go", doc + "import \"C\"\n", ""},
		{"capi in core", "core/client/x.go", imports(module + "/capi/embedded"), "core/client imports capi/embedded"},
		{"the driver in a test of core", "core/client/x_test.go", imports(module + "/device/pjrt"),
			"core/client imports device/pjrt"},
		{"the driver's constants in sim", "device/sim/x.go", imports(module + "/device/pjrt/abi"),
			"device/sim imports device/pjrt/abi"},
		{"the driver in capi", "capi/embedded/x.go", imports(module + "/device/pjrt"), ""},
		{"the contract in core", "core/executor/x.go", imports(module + "/device"), ""},
		{"Arrow in core", "core/client/x.go", imports(arrow + "/go/v15/arrow"),
			"core/client/x.go:3: Arrow's library is for core/arrowio and transport/arrowmem alone"},
		{"Arrow in what is linked", "capi/lib/x.go", imports(arrow + "/go/v15/arrow/memory"), "Arrow's library"},
		{"Arrow in a test", "device/sim/x_test.go", imports(arrow + "/go/v15/arrow/memory"), "Arrow's library"},
		{"what uses Arrow", "core/cluster/x.go", imports(module + "/transport/arrowmem"),
			"core/cluster imports transport/arrowmem, which brings Arrow's library along"},
		{"Arrow in its place", "core/arrowio/x.go", imports(arrow + "/go/v15/arrow"), ""},
		{"Arrow in an example", "tests/clients/x.go", imports(module + "/core/arrowio"), ""},
		{"a message by hand", "core/worker/x.go", imports(protowire),
			"messages are written and read by hand in core/wire and core/xla alone"},
		{"a message by hand in its place", "core/wire/x.go", imports(protowire), ""},
		{"a lock", "core/schedule/x.go", imports("sync"), `core/schedule decides and never acts: it may not import "sync"`},
		{"an atomic", "core/placement/x.go", imports("sync/atomic"), `"sync/atomic"`},
		{"a clock", "core/graph/x.go", imports("time"), `"time"`},
		{"a socket", "core/shape/x.go", imports("net/http"), `"net/http"`},
		{"a file", "core/status/x.go", imports("os"), `"os"`},
		{"chance", "core/schedule/x.go", imports("math/rand/v2"), `"math/rand/v2"`},
		{"chance in a test", "core/schedule/x_test.go", imports("math/rand/v2"), ""},
		{"arithmetic", "core/schedule/x.go", imports("math/bits"), ""},
		{"a lock elsewhere", "core/executor/x.go", imports("sync"), ""},
		{"a lock beside a shell", "core/controller/state.go", imports("sync"),
			`core/controller/state.go decides and never acts: it may not import "sync"`},
		{"a goroutine beside a shell", "core/controller/session.go", doc + "func f() { go f() }\n",
			"core/controller/session.go:3: core/controller/session.go decides and never acts: it may not have goroutines"},
		{"a lock in a shell", "core/epoch/server.go", imports("sync"), ""},
		{"a lock in a file that is new", "core/chain/x.go", imports("sync"), "core/chain/x.go decides and never acts"},
		{"a clock beside a shell", "core/controller/state.go", imports("time") + "var now = time.Now()\n",
			"core/controller/state.go:4: core/controller/state.go decides and never acts: it may not call time.Now"},
		{"a duration beside a shell", "core/controller/state.go", imports("time") + "var long = time.Hour\n", ""},
		{"messages beside a shell", "core/controller/state.go", imports(module + "/core/wire"), ""},
		{"what acts", "core/schedule/x.go", imports(module + "/core/executor"), "may not import core/executor"},
		{"what decides", "core/schedule/x.go", imports(module + "/core/status"), ""},
		{"a goroutine", "core/schedule/x.go", doc + "func f() { go f() }\n",
			"core/schedule/x.go:3: core/schedule decides and never acts: it may not have goroutines"},
		{"a bubble that is not ours", "core/worker/x_test.go", doc + "var f = synctest.Test\n", "use bubble's Test"},
		{"a bubble of ours", "core/bubble/x.go", doc + "var f = synctest.Test\n", ""},
		{"no comment", "core/ledger/x.go", "package x\n", "core/ledger: no file has a package comment"},
		{"another comment", "core/ledger/x.go", "// Copyright\npackage x\n", "core/ledger: no file has a package comment"},
		{"a command without a comment", "capi/lib/x.go", "package main\n", "capi/lib: no file has a package comment"},
		{"a command", "capi/lib/x.go", "// Command lib is here.\npackage main\n", ""},
		{"a test without a comment", "core/ledger/x_test.go", "package x\n", ""},
		{"what is not of the module", ".venv/x.go", "package x\nimport \"C\"\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			broken, _, err := rules(fstest.MapFS{c.file: &fstest.MapFile{Data: []byte(c.code)}})
			statustest.OK(t, err)
			if c.want == "" && len(broken) > 0 || c.want != "" && (len(broken) != 1 || !strings.Contains(broken[0], c.want)) {
				t.Errorf("got %q, want %q", broken, c.want)
			}
		})
	}
}
