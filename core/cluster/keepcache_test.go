package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
)

// Compiled programs are loaded as code: a worker keeps them only where no other user can put any.
func TestKeepCacheRefusesUnsafePlaces(t *testing.T) {
	for _, c := range []struct {
		name    string
		root    bool // acts for another user
		prepare func(t *testing.T, base string)
		says    string
	}{
		{"new", false, func(*testing.T, string) {}, ""},
		{"own", false, func(t *testing.T, base string) { makeDir(t, filepath.Join(base, "cache"), 0o755) }, ""},
		{"own link", false, func(t *testing.T, base string) {
			makeDir(t, filepath.Join(base, "real"), 0o700)
			linkTo(t, filepath.Join(base, "real"), filepath.Join(base, "cache"))
		}, ""},
		{"writable", false, func(t *testing.T, base string) { makeDir(t, filepath.Join(base, "cache"), 0o777) }, "chmod 700"},
		{"sticky", false, func(t *testing.T, base string) { makeDir(t, filepath.Join(base, "cache"), 0o777|os.ModeSticky) },
			"chmod 700"},
		{"writable above", false, func(t *testing.T, base string) { chmod(t, base, 0o777) }, "chmod go-w"},
		{"file", false, func(t *testing.T, base string) { write(t, filepath.Join(base, "cache"), 0o600) }, "cache"},
		{"another's", true, func(t *testing.T, base string) {
			makeDir(t, filepath.Join(base, "cache"), 0o755)
			chown(t, filepath.Join(base, "cache"))
		}, "belongs to user 65534"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.root {
				needsRoot(t)
			}
			base := t.TempDir()
			c.prepare(t, base)
			path, err := keepCache(filepath.Join(base, "cache"))
			if c.says == "" {
				if info, e := os.Lstat(path); err != nil || e != nil || !info.IsDir() {
					t.Errorf("%q, %v, %v", path, err, e)
				}
				return
			}
			code := status.CodeOf(err)
			if code != status.PermissionDenied && code != status.FailedPrecondition || !strings.Contains(err.Error(), c.says) ||
				!strings.Contains(err.Error(), "--cache") {
				t.Errorf("%v (%v), want an error with %q and what to do", err, code, c.says)
			}
		})
	}
}
