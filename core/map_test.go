package core_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
)

// The page with the map of the code, for people.
const mapPage = "docs/design/architecture.md"

// TestMapShowsEveryRoomOnItsFloor compares the map with the table of rooms.
func TestMapShowsEveryRoomOnItsFloor(t *testing.T) {
	page := statustest.Value(os.ReadFile("../" + mapPage)).OK(t)
	shown := map[string]string{} // floor by room
	for _, row := range regexp.MustCompile(`(?m)^\| \*\*([^*]+)\*\*[^|]*\|(.*)\|$`).FindAllSubmatch(page, -1) {
		for _, room := range regexp.MustCompile("`([^`]+)`").FindAllSubmatch(row[2], -1) {
			if was := shown[string(room[1])]; was != "" {
				t.Errorf("%s: %s is on floor %s and on floor %s", mapPage, room[1], was, row[1])
			}
			shown[string(room[1])] = string(row[1])
		}
	}
	floor, next := "", floors
	for _, r := range rooms {
		if len(next) > 0 && next[0].first == r.path {
			floor, next = next[0].name, next[1:]
		}
		if got := shown[r.path]; got != floor {
			t.Errorf("%s: %s is on floor %q of the map, and on floor %q of the table in core/rooms_test.go",
				mapPage, r.path, got, floor)
		}
		delete(shown, r.path)
	}
	for path, floor := range shown {
		t.Errorf("%s: %s, on floor %s of the map, is not in the table in core/rooms_test.go", mapPage, path, floor)
	}
	if len(next) > 0 {
		t.Errorf("no room begins floor %s: %s is not in the table, or not in this order", next[0].name, next[0].first)
	}
}

// TestMapNamesWhatIsThere looks for each function of the map in the file that the map says.
func TestMapNamesWhatIsThere(t *testing.T) {
	page := statustest.Value(os.ReadFile("../" + mapPage)).OK(t)
	function := regexp.MustCompile("((?:`\\w+`(?:, | and )?)+) in `([\\w/]+\\.(?:c|go))`")
	named := function.FindAllStringSubmatch(string(page), -1)
	const least = 10 // that the map names
	if len(named) < least {
		t.Fatalf("%s names functions in %d files, want %d or more: the map is not read as it should be",
			mapPage, len(named), least)
	}
	for _, n := range named {
		code, err := os.ReadFile(filepath.Join("..", n[2]))
		if err != nil {
			t.Errorf("%s: %v", mapPage, err)
			continue
		}
		for _, name := range regexp.MustCompile(`\w+`).FindAllString(strings.ReplaceAll(n[1], " and ", " "), -1) {
			is := `(?m)^func (?:\([^)]*\) )?` + name + `\(`
			if strings.HasSuffix(n[2], ".c") {
				is = `(?m)^(?:__attribute__\(\(.*\)\)\) )?[a-zA-Z_][^\n;(]*\b` + name + `\([^;{]*\)\s*\{`
			}
			if !regexp.MustCompile(is).Match(code) {
				t.Errorf("%s: %s has no function %s", mapPage, n[2], name)
			}
		}
	}
	if !slices.ContainsFunc(named, func(n []string) bool { return n[2] == "core/schedule/schedule.go" }) {
		t.Errorf("%s does not say where a gang gets its place", mapPage)
	}
}
