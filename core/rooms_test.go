package core_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/openpathways/pathways/core/status/statustest"
)

// A room is a package with all that its folder holds, C included.
type room struct {
	path  string
	users []string // who may import it, or call its C; "*" is every room below
}

// rooms lists every room of the library after those that it stands on, so that there
// is no cycle: an arrow may point only upwards in this table. A new arrow must be added
// here, so that a reviewer sees it.
var rooms = []room{
	// Ground: values, formats and their readers, and this machine. None of them acts by itself.
	{"core/status", []string{"*"}},
	{"core/shape", []string{"*"}},
	{"core/shape/strided", []string{"transport", "transport/uncached", "transport/match", "transport/inproc",
		"transport/bulk", "transport/transporttest", "core/worker"}},
	{"core/xla/protowalk", []string{"core/xla/aot", "core/xla/compileoptions", "core/xla/hlo", "core/xla/spmd",
		"device/pjrt", "capi/cluster"}},
	{"core/xla/compileoptions", []string{"core/xla/spmd", "core/controller", "device/pjrt", "device/sim", "core/worker",
		"core/sharded", "capi/partition", "capi/cluster"}},
	{"core/xla/hlo", []string{"core/xla/spmd", "device/pjrt", "core/worker", "capi/base", "capi/embedded"}},
	{"core/xla/spmd", []string{"device/pjrt", "device/sim", "transport/collective", "core/worker", "core/sharded",
		"capi/partition", "capi/cluster"}},
	{"core/xla/aot", []string{"device/pjrt"}},
	{"core/xla/xplane", []string{"core/observe", "capi/profile"}},
	{"core/status/system", []string{"*"}},
	{"core/status/statustest", []string{"core/wire/wiretest", "transport/pages/pagestest", "transport/transporttest",
		"device/devicetest",
		"core/cluster/clustertest"}},
	{"core/bubble", nil},
	{"core/series", []string{"core/controller", "core/controller/server"}},
	{"core/invariants", []string{"core/schedule", "core/ledger", "core/controller", "core/worker/devicequeue"}},
	{"core/graph", []string{"core/wire", "core/controller", "core/client", "core/worker", "core/sharded", "capi/cluster"}},
	{"core/wire", []string{
		"transport", "transport/resume", "transport/link", "transport/inproc", "transport/stream", "transport/bulk",
		"transport/transporttest",
		"core/chain",
		"core/controller", "core/controller/server", "core/client", "core/epoch", "core/watch", "core/worker",
		"core/cluster", "core/command",
		"core/sharded", "capi/ffi", "capi/embedded", "capi/cluster", "capi/python"}},
	{"core/wire/wiretest", nil},
	{"device/host", []string{"transport/shm", "device/pjrt", "core/worker", "capi/embedded", "capi/cluster"}},

	// Decides: state machines without clock, lock or goroutine.
	{"core/schedule", []string{"core/executor", "core/embedded", "core/controller", "core/worker"}},
	{"core/placement", []string{"core/embedded", "core/controller", "core/epoch", "core/grant", "core/client",
		"core/command", "capi/slices"}},
	{"core/reshard", []string{"core/sharded", "capi/export", "capi/embedded", "capi/cluster"}},
	{"core/ledger", []string{"core/embedded", "core/controller"}},
	{"core/tenant", []string{"core/controller", "core/controller/server", "core/cluster"}},
	{"core/chain", []string{"core/controller", "core/command"}},
	{"core/controller", []string{"core/controller/server", "core/cluster"}},
	{"core/worker/devicequeue", []string{"core/worker"}},
	{"core/worker/assembly", []string{"core/worker"}},
	{"core/tracetest", nil},

	// Links: between processes.
	{"transport", []string{
		"transport/match", "transport/link", "transport/inproc", "transport/stream", "transport/bulk", "transport/collective",
		"transport/arrowmem", "transport/content",
		"transport/transporttest", "core/controller/server", "core/client", "core/epoch", "core/worker", "core/cluster",
		"core/sharded",
		"core/arrowio", "capi/cluster"}},
	{"transport/pages", []string{"transport/pages/pagestest", "transport/shm", "transport/collective"}},
	{"transport/pages/pagestest", nil},
	{"transport/shm", []string{"transport/inproc", "transport/bulk", "transport/arrowmem", "transport/collective",
		"core/cluster", "core/sharded"}},
	{"transport/uncached", []string{"transport/bulk", "transport/collective"}},
	{"transport/match", []string{"transport/inproc", "transport/bulk", "transport/collective"}},
	{"transport/resume", []string{"transport/link", "transport/bulk"}},
	{"transport/link", []string{"core/controller/server", "core/client", "core/cluster"}},
	{"transport/inproc", []string{"core/cluster"}},
	{"transport/stream", []string{"transport/bulk", "core/cluster"}},
	{"transport/bulk", []string{"core/cluster", "capi/cluster"}},
	{"transport/collective", []string{"core/worker", "core/cluster"}},
	{"transport/content", []string{"core/client", "core/worker"}},
	{"transport/arrowmem", []string{"core/arrowio"}},
	{"transport/transporttest", nil},

	// Drivers: of devices.
	{"device", []string{
		"device/pjrt", "device/sim", "device/devicetest", "capi/base/shortage", "core/epoch", "core/worker", "core/cluster",
		"core/cluster/clustertest",
		"core/command", "capi/drivers", "capi/python", "capi/cluster", "capi/cmd/pathways"}},
	{"device/pjrt/abi", []string{"device/pjrt", "capi/python"}},
	{"device/pjrt/ffi", []string{"device/pjrt", "capi/ffi"}},
	{"device/pjrt", []string{"capi/drivers", "capi/ffi", "capi/embedded", "capi/cluster", "capi/python"}},
	{"device/sim", []string{"device/devicetest", "capi/drivers", "capi/cluster"}},
	{"device/devicetest", []string{"capi/base/shortage"}},

	// Acts: shells around the deciders.
	{"core/observe", []string{"core/worker", "core/client", "capi/profile", "capi/embedded"}},
	{"core/executor", []string{"core/embedded", "core/worker", "capi/embedded"}},
	{"core/grant", []string{"core/client", "core/embedded", "capi/slices", "capi/embedded", "capi/cluster"}},
	{"core/controller/durable", []string{"core/controller/server", "core/cluster", "core/command"}},
	{"core/controller/server", []string{"core/cluster"}},
	{"core/client", []string{"core/cluster", "core/cluster/clustertest", "core/sharded", "capi/cluster", "capi/python"}},
	{"core/epoch", []string{"core/cluster"}},
	{"core/watch", []string{"core/cluster", "core/command"}},
	{"core/worker", []string{"core/cluster"}},
	{"core/embedded", []string{"capi/embedded"}},

	// Assembles: processes made of the parts.
	{"core/cluster", []string{"core/command", "core/sharded", "capi/cluster"}},
	{"core/cluster/clustertest", nil},
	{"core/command", []string{"capi/cluster", "capi/python", "capi/cmd/pathways"}},
	{"core/sharded", []string{"core/arrowio"}},
	{"core/arrowio", nil},

	// Ways in: clients of C and Python call in here.
	{"capi/base", []string{
		"capi/base/shortage", "capi/drivers", "capi/ffi", "capi/export", "capi/capture", "capi/profile", "capi/partition",
		"capi/embedded",
		"capi/cluster", "capi/slices", "capi/python", "capi/public"}},
	{"capi/base/shortage", nil},
	{"capi/drivers", []string{"capi/embedded", "capi/cluster", "capi/python", "capi/cmd/pathways"}},
	{"capi/ffi", []string{"capi/embedded", "capi/cluster", "capi/python", "capi/lib"}},
	{"capi/export", []string{"capi/capture", "capi/profile", "capi/embedded", "capi/cluster", "capi/python"}},
	{"capi/capture", []string{"capi/embedded", "capi/cluster", "capi/python", "capi/public"}},
	{"capi/profile", []string{"capi/embedded", "capi/cluster", "capi/python"}},
	{"capi/partition", []string{"capi/embedded", "capi/cluster"}},
	{"capi/embedded", []string{"capi/slices", "capi/python", "capi/public", "capi/lib"}},
	{"capi/cluster", []string{"capi/slices", "capi/python", "capi/public"}},
	{"capi/slices", []string{"capi/python", "capi/public"}},
	{"capi/python", []string{"capi/lib"}},
	{"capi/public", []string{"capi/lib"}},
	{"capi/lib", nil},
	{"capi/cmd/pathways", nil},
}

// floors begin with these rooms of the table.
var floors = []struct{ name, first string }{
	{"Ground", "core/status"}, {"Decides", "core/schedule"}, {"Links", "transport"}, {"Drivers", "device"},
	{"Acts", "core/observe"}, {"Assembles", "core/cluster"}, {"Ways in", "capi/base"},
}

var (
	defined  = regexp.MustCompile(`(?m)^[a-zA-Z][^\n;{}()=]*?\b((?:pw|pr|pp|pc)_\w+)\([^;{}]*?\)\s*\{`)
	exported = regexp.MustCompile(`(?m)^//export (\w+)`)
	used     = regexp.MustCompile(`\b(?:(?:pw|pr|pp|pc)_|(?:pw|pr|pp|pc)Go)\w+`)
	prose    = regexp.MustCompile(`(?m)//.*$|"(?:\\.|[^"\\\n])*"`)
	static   = regexp.MustCompile(`^(?:static|typedef|extern)\b`)
)

// arrows returns which room uses which, with a file that does, from Go's imports and
// from the names of C, also those that headers declare: a function belongs to the room whose
// folder defines it.
func arrows(tree fs.FS) (map[[2]string]string, error) {
	found := map[[2]string]string{}
	owner := map[string]string{} // of a function of C
	code := map[string][]byte{}  // C, and Go that exports to it
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base, dir := path.Base(name), path.Dir(name)
		if d.IsDir() {
			if name != "." && (base[0] == '.' || base == "testdata" || base == "gen" || name == "tests" || name == "examples" ||
				name == "build") {
				return fs.SkipDir
			}
			return nil
		}
		ext := path.Ext(name)
		if strings.HasSuffix(name, "_test.go") || ext != ".go" && ext != ".c" && ext != ".h" {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		if ext != ".go" {
			text = prose.ReplaceAll(text, nil)
			code[name] = text
			for _, m := range defined.FindAllSubmatch(text, -1) {
				if !static.Match(m[0]) {
					owner[string(m[1])] = dir
				}
			}
			return nil
		}
		for _, m := range exported.FindAllSubmatch(text, -1) {
			owner[string(m[1])] = dir
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range f.Imports {
			p, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if own, ours := strings.CutPrefix(p, module+"/"); ours {
				found[[2]string{dir, own}] = name
			}
		}
		return nil
	})
	for name, text := range code {
		for _, m := range used.FindAll(text, -1) {
			if to := owner[string(m)]; to != "" && to != path.Dir(name) {
				found[[2]string{path.Dir(name), to}] = name
			}
		}
	}
	return found, err
}

// misplaced reports each arrow that the table does not have, or has the wrong way
// round, and each entry of the table that nothing uses.
func misplaced(found map[[2]string]string, table []room) (broken []string) {
	place := map[string]int{}
	for i, r := range table {
		place[r.path] = i
	}
	used := map[[2]string]bool{}
	for arrow, file := range found {
		from, to := arrow[0], arrow[1]
		i, known := place[to]
		j, user := place[from]
		switch {
		case !known || !user:
			missing := to
			if known {
				missing = from
			}
			broken = append(broken, fmt.Sprintf("%s: %s is not in the table of rooms", file, missing))
			continue
		case j < i:
			broken = append(broken, fmt.Sprintf("%s: %s uses %s, which stands on it", file, from, to))
		case !slices.Contains(table[i].users, from) && !slices.Contains(table[i].users, "*"):
			broken = append(broken,
				fmt.Sprintf("%s: %s uses %s, which is for %s", file, from, to, strings.Join(table[i].users, ", ")))
		}
		used[arrow] = true
	}
	for _, r := range table {
		for _, user := range r.users {
			if user != "*" && !used[[2]string{user, r.path}] {
				broken = append(broken, fmt.Sprintf("%s may use %s, and does not: take it out of the table", user, r.path))
			}
		}
	}
	slices.Sort(broken)
	return broken
}

func TestRoomsStandOnEachOtherAsTheTableSays(t *testing.T) {
	found := statustest.Value(arrows(os.DirFS(".."))).OK(t)
	for _, arrow := range [][2]string{{"core/executor", "core/schedule"}, {"capi/public", "capi/embedded"},
		{"capi/ffi", "device/pjrt"}} {
		if found[arrow] == "" {
			t.Errorf("no arrow from %s to %s was found: the arrows are not read as they should be", arrow[0], arrow[1])
		}
	}
	for _, b := range misplaced(found, rooms) {
		t.Error(b)
	}
}

func TestArrowsThatTheTableForbidsAreFound(t *testing.T) {
	table := []room{{"core/a", []string{"core/b"}}, {"core/b", nil}, {"core/c", nil}}
	goFile := func(dir, imports string) string {
		return fmt.Sprintf("package %s\n\nimport _ %q\n", path.Base(dir), module+"/"+imports)
	}
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"allowed", map[string]string{"core/b/b.go": goFile("core/b", "core/a")}, ""},
		{"another user", map[string]string{
			"core/b/b.go": goFile("core/b", "core/a"), "core/c/c.go": goFile("core/c", "core/a")},
			"core/c uses core/a, which is for core/b"},
		{"the wrong way", map[string]string{
			"core/b/b.go": goFile("core/b", "core/a"), "core/a/a.go": goFile("core/a", "core/b")},
			"core/a uses core/b, which stands on it"},
		{"unknown", map[string]string{"core/b/b.go": goFile("core/b", "core/a"), "core/d/d.go": goFile("core/d", "core/a")},
			"core/d is not in the table"},
		{"unused", nil, "core/b may use core/a, and does not"},
		{"C", map[string]string{
			"core/b/b.go": goFile("core/b", "core/a"), "core/a/a.c": "int pw_one(void) { return 1; }\n",
			"core/c/c.c": "int pw_two(void) { return pw_one(); }\n",
		}, "core/c uses core/a, which is for core/b"},
		{"a header of C", map[string]string{
			"core/b/b.go": goFile("core/b", "core/a"), "core/a/a.h": "int pw_one(void);\n",
			"core/b/b.c": "int pw_one(void) { return 1; }\n",
		}, "core/a uses core/b, which stands on it"},
		{"a name in a comment of C", map[string]string{
			"core/b/b.go": goFile("core/b", "core/a"), "core/a/a.c": "int pw_one(void) { return 1; }\n",
			"core/c/c.c": "// as pw_one\nint pw_two(void) { return 2; }\n",
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree := fstest.MapFS{}
			for name, text := range c.files {
				tree[name] = &fstest.MapFile{Data: []byte(text)}
			}
			found := statustest.Value(arrows(tree)).OK(t)
			broken := misplaced(found, table)
			if (c.want == "") != (len(broken) == 0) || c.want != "" &&
				!slices.ContainsFunc(broken, func(b string) bool { return strings.Contains(b, c.want) }) {
				t.Errorf("got %q, want %q", broken, c.want)
			}
		})
	}
}
