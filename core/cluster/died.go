package cluster

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// A connection that has broken says nothing about the process at its other end. That may come back, so its place is
// kept for the lease. Two facts show that it will not, and then its place is free at once:
//
//	on this machine    the process has ended: the kernel says so through a file that stands for the process (pidfd)
//	a worker elsewhere its machine answers that nothing listens at any of the worker's TCP addresses any more
//
// Nothing else counts: a machine that does not answer may answer later, and a loopback address of another machine or
// network namespace leads to another process. About a client on another machine nothing is known, so its place is kept
// for the whole lease. What a process says about itself is trusted here: one that lies ends its own link early, or
// late.

// askEvery is the pause between two questions to a worker's machine, and askTime bounds one of them.
const (
	askEvery = 500 * time.Millisecond
	askTime  = 2 * time.Second
)

// sayWho fills in the number of this process.
func sayWho(h *wire.Hello) {
	h.Pid, h.PidSpace = uint32(os.Getpid()), pidSpace()
}

// pidSpace names this machine and its namespace of process numbers; "" if the system does not say.
func pidSpace() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil || len(boot) == 0 {
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + space
}

// died implements link.Config.Died.
func (c ControllerConfig) died(ctx context.Context, h *wire.Hello) error {
	switch {
	case h.Pid != 0 && h.PidSpace != "" && h.PidSpace == pidSpace():
		err := ended(ctx, int(h.Pid))
		if err == nil || c.LastWords == nil {
			return err
		}
		if words := c.LastWords(int(h.Pid)); words != "" {
			return status.New(status.CodeOf(err), "%w; its last words: %s", err, words)
		}
		return err
	case h.Worker != nil:
		return refuses(ctx, asked(h.Worker.Addresses, h.Network != "" && h.Network == network()))
	}
	return nil
}

// errKilled is the end of a process that did not say goodbye.
var errKilled = status.New(status.Unavailable, "its process has ended without a goodbye: it was killed, or has crashed")

// ended waits for a process of this machine to end.
func ended(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return errKilled
	}
	if err != nil {
		return nil // an old kernel: the lease decides
	}
	f := os.NewFile(uintptr(fd), "a process")
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Now()) })() // a file of a process can be waited for
	over := false
	err = raw.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		over = err == nil && n == 1
		return over
	})
	if err != nil || !over {
		return nil
	}
	return errKilled
}

// asked returns the TCP addresses, as "host:port", that lead from here to the process which has them.
func asked(addresses []string, loopback bool) (all []string) {
	for _, a := range addresses {
		at, isTCP := strings.CutPrefix(a, "tcp:")
		if host, err := netip.ParseAddrPort(at); isTCP && (err != nil || loopback || !host.Addr().IsLoopback()) {
			all = append(all, at)
		}
	}
	return all
}

// refuses waits until a machine says that nothing listens at any of these addresses.
func refuses(ctx context.Context, addresses []string) error {
	if len(addresses) == 0 {
		return nil
	}
	for ctx.Err() == nil {
		refused := 0
		for _, at := range addresses {
			socket, err := (&net.Dialer{Timeout: askTime}).DialContext(ctx, "tcp", at)
			if err == nil {
				socket.Close()
			} else if errors.Is(err, syscall.ECONNREFUSED) {
				refused++
			}
		}
		if refused == len(addresses) {
			return status.New(status.Unavailable, "its process has ended: nothing listens at %s any more",
				strings.Join(addresses, " and "))
		}
		timer := time.NewTimer(askEvery)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return nil
}
