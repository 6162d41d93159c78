package capi_test

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
)

// Tests of single C files, which need neither Go nor a plugin, written in C: testdata/ROOM.c with the C of its room,
// built with sanitizers and with allocations that fail on demand.
func TestUnitsInC(t *testing.T) {
	for _, c := range []struct {
		sanitize string
		rooms    map[string][]string // the files that a room's tests need, beside those of capi/base
	}{
		{"address,undefined", map[string][]string{
			"base":     nil,
			"embedded": {"embedded/devicetime.c"},
			"export":   {"export/*.c"},
			"capture":  {"capture/*.c", "export/*.c"},
			"public":   {"public/handle.c", "public/error.c"},
		}},
		{"thread", map[string][]string{"base": nil, "embedded": {"embedded/devicetime.c"}}},
	} {
		t.Run(c.sanitize, func(t *testing.T) {
			t.Parallel()
			base := t.TempDir()
			if !canSanitize(t, c.sanitize) {
				t.Skipf("the compiler has no sanitizer of %s", c.sanitize)
			}
			if out, err := compile(c.sanitize, base, "-c", "base/*.c"); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for room, files := range c.rooms {
				t.Run(room, func(t *testing.T) {
					files = append(files, "testdata/"+room+".c", base+"/*.o")
					dir := t.TempDir()
					if out, err := compile(c.sanitize, dir, "-ldl", files...); err != nil {
						t.Fatalf("%v\n%s", err, out)
					}
					if out, err := exec.Command(filepath.Join(dir, "a.out")).CombinedOutput(); err != nil {
						t.Fatalf("%v\n%s", err, out)
					}
				})
			}
		})
	}
}

// compile runs the compiler in a directory, with one more option, and returns what it says.
func compile(sanitize, dir, option string, patterns ...string) ([]byte, error) {
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	args := []string{"-std=gnu11", "-g", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-DPW_INVARIANTS", "-pthread",
		"-fsanitize=" + sanitize, "-fno-sanitize-recover=all"}
	for _, include := range []string{
		"testdata", "base", "embedded", "export", "capture", "public", "../device/pjrt/abi", "../python/pathways/include"} {
		args = append(args, "-I"+filepath.Join(here, include))
	}
	for _, pattern := range patterns {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(here, pattern)
		}
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		args = append(args, files...)
	}
	cmd := exec.Command(cmp.Or(os.Getenv("CC"), "gcc"), append(args, option)...)
	cmd.Dir = dir
	return cmd.CombinedOutput()
}

// canSanitize reports whether the compiler has a sanitizer, whose library may be a package of its own.
func canSanitize(t *testing.T, sanitize string) bool {
	dir := t.TempDir()
	source := filepath.Join(dir, "empty.c")
	statustest.OK(t, os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o644))
	_, err := compile(sanitize, dir, "-ldl", source)
	return err == nil
}
