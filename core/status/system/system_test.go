package system_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/status/system"
)

// The errors are those of real calls.
func TestErrorsOfSystemCallsHaveCodes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	statustest.OK(t, os.WriteFile(file, nil, 0o600))
	open := func(path string, how int) error {
		f, err := os.OpenFile(path, how, 0o600)
		if err == nil {
			f.Close()
		}
		return err
	}
	for _, c := range []struct {
		name, path string
		err        error
		code       status.Code
	}{
		{"full", "/dev/full", os.WriteFile("/dev/full", []byte("x"), 0o600), status.ResourceExhausted},
		{"quota", "/q", &os.PathError{Op: "write", Path: "/q", Err: syscall.EDQUOT}, status.ResourceExhausted},
		{"too long a file", "/f", &os.PathError{Op: "write", Path: "/f", Err: syscall.EFBIG}, status.ResourceExhausted},
		{"missing", filepath.Join(dir, "none"), open(filepath.Join(dir, "none"), os.O_RDONLY), status.NotFound},
		{"there", file, open(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY), status.AlreadyExists},
		{"no directory", filepath.Join(file, "below"), open(filepath.Join(file, "below"), os.O_RDONLY),
			status.FailedPrecondition},
		{"other", "", errors.New("a surprise"), status.Internal},
		{"coded", "", status.New(status.DataLoss, "gone"), status.DataLoss},
	} {
		err := system.Error(c.err, "cannot do %d things", 2)
		if status.CodeOf(err) != c.code || !strings.HasPrefix(err.Error(), "cannot do 2 things: ") ||
			!strings.Contains(err.Error(), c.path) {
			t.Errorf("%s: %v (%v), expected %v with the path %s", c.name, err, status.CodeOf(err), c.code, c.path)
		}
		if !errors.Is(err, c.err) {
			t.Errorf("%s: the cause is lost", c.name)
		}
	}
	if system.Error(nil, "nothing") != nil {
		t.Error("nil became an error")
	}
}
