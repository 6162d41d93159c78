package controller

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
)

// A program that cannot be kept is told with the code and the folder, as a full disk's is.
func TestCacheThatCannotBeWritten(t *testing.T) {
	c := &cache{filepath.Join(t.TempDir(), "gone")}
	if err := c.write("key", []byte("program")); status.CodeOf(err) != status.NotFound ||
		!strings.Contains(err.Error(), c.folder) {
		t.Errorf("%v (%v), expected NOT_FOUND with the folder", err, status.CodeOf(err))
	}
}
