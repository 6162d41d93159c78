package stream

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/transporttest"
)

// A message that the peer reads does not wake the process that has sent it: nothing here asks for room on the socket,
// also after a write that had to wait for it.
func TestQuietSocket(t *testing.T) {
	o := Options{Credentials: cred()}
	a, b := transporttest.Greeted(t, listen(t, "unix:"+filepath.Join(t.TempDir(), "s"), o), o)
	asked := func(c transport.Conn) (events uint64) {
		statustest.OK(t, c.(*Conn).quiet.Control(func(socket uintptr) { events = polled(t, socket) }))
		return events & (unix.EPOLLIN | unix.EPOLLOUT)
	}
	for _, c := range []transport.Conn{a, b} {
		defer c.Close()
		statustest.Equal(t, asked(c), unix.EPOLLIN, "what a new socket is polled for")
	}
	long := make([]byte, 8<<20)
	sent := make(chan error, 1)
	go func() { sent <- a.Send(wire.KindRun, long) }()
	_, got, err := b.Recv()
	statustest.OK(t, err)
	statustest.OK(t, <-sent)
	statustest.Equal(t, len(got), len(long), "bytes that came")
	statustest.Soon(t, func() uint64 { return asked(a) }, unix.EPOLLIN, "what is polled for behind a long write")
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
