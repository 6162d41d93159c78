package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// meets is simulated devices that join as a plugin's do: over the store, from one
// process to the other. The driver "refused" cannot be made, and "crash" takes the
// process with it, the first time.
type meets struct {
	sim.Options
	name string
}

func (k meets) Join(ctx context.Context, m device.Membership) (device.Driver, error) {
	if k.name == "refused" {
		return nil, status.New(status.NotFound, "no such hardware")
	}
	if mark, ok := strings.CutPrefix(k.name, "crash:"); ok {
		if f, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			f.Close()
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	if m.Nodes > 1 {
		if err := m.Store.Put(ctx, fmt.Sprint("node ", m.Node), nil); err != nil {
			return nil, err
		}
		for node := range m.Nodes {
			if _, err := m.Store.Get(ctx, fmt.Sprint("node ", node)); err != nil {
				return nil, err
			}
		}
	}
	return sim.Open(k.Options)
}

// running is a process of a test.
type running struct {
	*exec.Cmd
	err   bytes.Buffer
	ended chan struct{}
}

func command(t *testing.T, dir string, args ...string) *running {
	t.Helper()
	self, err := os.Executable()
	statustest.OK(t, err)
	r := &running{Cmd: exec.Command(self, append(args, "--dir", dir, "--heartbeat", "100ms")...),
		ended: make(chan struct{})}
	r.Env = append(os.Environ(), asCommand+"=1")
	r.Stderr = &r.err
	statustest.OK(t, r.Start())
	go func() {
		_ = r.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() {
		_ = r.Process.Kill()
		if said := r.wait(t).errs; t.Failed() {
			t.Logf("%v said:\n%s", args, said)
		}
	})
	return r
}

// wait waits for the end.
func (r *running) wait(t *testing.T) outcome {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(time.Minute): // against a hang
		t.Fatalf("%v does not end", r.Args)
	}
	return outcome{args: r.Args, code: r.ProcessState.ExitCode(), errs: r.err.String()}
}

// children returns the processes that a process has started.
func children(parent int) (all []process) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		text := string(b)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if fields[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(text[:strings.IndexByte(text, ' ')])
			if at := started(pid); at != "" {
				all = append(all, process{Name: "child", PID: pid, Start: at})
			}
		}
	}
	return all
}

func TestMembersOfAnEpochStartAgainTogether(t *testing.T) {
	dir := shortDir(t)
	controller := command(t, dir, "controller")
	worker := func(name string, more ...string) *running {
		return command(t, dir, append([]string{"worker", "--nodes", "2", "--name", name}, more...)...)
	}
	var epoch uint64
	// next waits for an epoch after the last one whose workers are there, and no others.
	next := func(names ...string) {
		t.Helper()
		waitFor(t, "the next epoch of "+fmt.Sprint(names), func() bool {
			r, err := cluster.Ask(t.Context(), at(dir).address(), cluster.Secret{}, nil)
			if err != nil || len(r.Islands) != 1 || len(r.Islands[0].Workers) != len(names) {
				return false
			}
			first := r.Islands[0].Workers[0].Process
			for i, w := range r.Islands[0].Workers {
				if p := w.Process; p.Name != names[i] || p.Epoch <= epoch || p.Epoch != first.Epoch || int(p.Node) != i {
					return false
				}
			}
			epoch = first.Epoch
			return true
		})
	}
	a, b := worker("a"), worker("b")
	next("a", "b")

	// A child that is killed: all are in the next epoch, in new processes.
	was := [2][]process{children(a.Process.Pid), children(b.Process.Pid)}
	if len(was[0]) != 1 || len(was[1]) != 1 {
		t.Fatalf("the workers have the children %v", was)
	}
	was[0][0].signal(syscall.SIGKILL)
	next("a", "b")
	if was[0][0].isAlive() || was[1][0].isAlive() {
		t.Error("a process is in two epochs")
	}

	// A member that is told to stop exits with success, and so does its child; the other one waits for a new
	// member.
	old := children(a.Process.Pid)
	_ = a.Process.Signal(syscall.SIGTERM)
	a.wait(t).ends(t, ExitSuccess)
	for _, c := range old {
		if c.isAlive() {
			t.Error("the child lives on")
		}
	}
	mark := filepath.Join(dir, "crashed")
	c := worker("c", "--driver", "crash:"+mark)
	next("b", "c")
	statustest.Checkf(t, statustest.Of(os.Stat(mark)), "the driver did not crash")

	// A parent that is killed takes its child with it.
	old = children(c.Process.Pid)
	_ = c.Process.Kill()
	waitFor(t, "the child of a parent that was killed to end", func() bool { return !old[0].isAlive() })

	// What is wrong with a driver ends its worker, with its error.
	worker("d", "--driver", "refused").wait(t).ends(t, ExitFailed, "NOT_FOUND: no such hardware")
	e := worker("e") // so that the cluster always has a worker, even between two epochs of b
	next("b", "e")
	command(t, dir, "worker", "--nodes", "3", "--name", "f").wait(t).ends(t, ExitFailed, "--nodes")
	// The controller's end is a member's.
	_ = controller.Process.Signal(syscall.SIGTERM)
	controller.wait(t).ends(t, ExitSuccess)
	e.wait(t).ends(t, ExitSuccess)
	b.wait(t).ends(t, ExitSuccess, "ABORTED: epoch")
}

// A child that does not end by itself is killed.
func TestChildThatDoesNotEndIsKilled(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "child")
	text := "#!/bin/sh\ntrap '' TERM\ntouch " + dir + "/up\nexec sleep 60\n" // it ends if this test is killed
	statustest.OK(t, os.WriteFile(script, []byte(text), 0o700))
	ctx, cancel := context.WithCancel(t.Context())
	p := &program{Env: Env{Self: []string{script}}, out: os.Stdout, err: os.Stderr}
	var end error
	var running sync.WaitGroup
	running.Go(func() { end = p.child(ctx, nil) })
	waitFor(t, "the child", func() bool { _, err := os.Stat(filepath.Join(dir, "up")); return err == nil })
	cancel()
	running.Wait()
	var exit *exec.ExitError
	if !errors.As(end, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the child ended with %v", end)
	}
}
