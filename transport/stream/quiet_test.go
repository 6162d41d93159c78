package stream

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport/transporttest"
)

// A message that the peer reads does not wake the process that has sent it: nothing here asks for room on the socket.
func TestQuietSocket(t *testing.T) {
	o := Options{Credentials: cred()}
	a, b := transporttest.Greeted(t, listen(t, "unix:"+filepath.Join(t.TempDir(), "s"), o), o)
	for _, c := range []*Conn{a.(*Conn), b.(*Conn)} {
		defer c.Close()
		statustest.OK(t, c.quiet.Control(func(socket uintptr) {
			if asked := polled(t, socket); asked&unix.EPOLLIN == 0 || asked&unix.EPOLLOUT != 0 {
				t.Errorf("the socket is polled for %#x, want EPOLLIN (%#x) and not EPOLLOUT (%#x)", asked, unix.EPOLLIN,
					unix.EPOLLOUT)
			}
		}))
	}
}

// polled returns what this process's epoll files ask of a file for, together.
func polled(t *testing.T, fd uintptr) (events uint64) {
	t.Helper()
	files := statustest.Value(os.ReadDir("/proc/self/fd")).OK(t)
	for _, f := range files {
		info, err := os.ReadFile("/proc/self/fdinfo/" + f.Name())
		if err != nil {
			continue // it was ReadDir's
		}
		for line := range strings.Lines(string(info)) {
			var of uintptr
			var asked uint64
			if _, err := fmt.Sscanf(line, "tfd: %d events: %x", &of, &asked); err == nil && of == fd {
				events |= asked
			}
		}
	}
	return events
}
