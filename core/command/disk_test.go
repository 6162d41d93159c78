package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
)

// A process of the tests with this variable has a disk of that many bytes as its home; see mountSmallDisk.
const (
	onSmallDisk = "PATHWAYS_TEST_DISK"
	noSmallDisk = 99 // its exit code where it may not have one
)

// mountSmallDisk puts a disk of so many bytes at a directory. A size with "full" behind it leaves no room.
func mountSmallDisk(at, size string) error {
	size, full := strings.CutSuffix(size, "full")
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", at, "tmpfs", 0, "size="+size); err != nil {
		return err
	}
	if full {
		return os.WriteFile(filepath.Join(at, "full"), []byte("x"), 0o600) // a page
	}
	return nil
}

// `up` on a full disk says so, and names the file, whichever it is.
func TestUpOnAFullDisk(t *testing.T) {
	for _, c := range []struct{ size, file string }{
		{"4kfull", "token"},
		{"4k", listFile}, // the token fits
	} {
		t.Run(c.file, func(t *testing.T) {
			home := shortDir(t)
			self := statustest.Value(os.Executable()).OK(t)
			cmd := exec.Command(self, "up", "--workers", "1")
			cmd.Env = append(os.Environ(), asCommand+"=1", onSmallDisk+"="+c.size, "HOME="+home, "XDG_RUNTIME_DIR=")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
			if os.Geteuid() != 0 {
				cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
				cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
				cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
			}
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() == noSmallDisk {
				t.Skipf("a process may have no disk of its own here: %v", err)
			}
			said := string(out)
			if code := cmd.ProcessState.ExitCode(); code != ExitFailed || !strings.Contains(said, "RESOURCE_EXHAUSTED") ||
				!strings.Contains(said, filepath.Join(home, ".pathways", "default", c.file)) &&
					!strings.Contains(said, filepath.Join(home, ".pathways", "default", "."+c.file)) {
				t.Errorf("exit code %d\n%s", code, said)
			}
		})
	}
}
