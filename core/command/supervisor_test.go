package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// supervised is a cluster of processes that heals.
type supervised struct {
	t   *testing.T
	dir string
}

func newSupervised(t *testing.T, args ...string) *supervised {
	t.Helper()
	t.Setenv(asCommand, "1") // for what up starts
	dir := statustest.Value(os.MkdirTemp("/tmp", "pw")).OK(t)
	s := &supervised{t, dir}
	t.Cleanup(func() {
		all := s.list() // before down removes it
		s.run("down")
		s.end(all)
		os.RemoveAll(dir)
	})
	s.run("up", append([]string{"--workers", "2", "--heartbeat", "100ms"}, args...)...).ends(t, ExitSuccess)
	return s
}

func (s *supervised) run(command string, args ...string) outcome {
	s.t.Helper()
	return call(s.t, nil, append([]string{command, "--dir", s.dir}, args...)...)
}

func (s *supervised) list() map[string]process {
	s.t.Helper()
	listed := statustest.Value(at(s.dir).listed()).OK(s.t)
	all := map[string]process{}
	for _, q := range listed {
		all[q.Name] = q
	}
	return all
}

// end waits until processes have ended.
func (s *supervised) end(all map[string]process) {
	s.t.Helper()
	for _, q := range all {
		waitFor(s.t, q.Name+" to end", func() bool { return !q.isAlive() })
	}
}

// says waits until status says all of this.
func (s *supervised) says(parts ...string) {
	s.t.Helper()
	waitFor(s.t, "status to say "+strings.Join(parts, ", "), func() bool {
		out := s.run("status").out
		for _, part := range parts {
			if !strings.Contains(out, part) {
				return false
			}
		}
		return true
	})
}

// replaced waits for another process in the place of one that was there before.
func (s *supervised) replaced(before map[string]process, name string) {
	s.t.Helper()
	waitFor(s.t, "another process", func() bool {
		q := s.list()[name]
		return q.isAlive() && !q.isSame(before[name])
	})
}

// kept checks that processes are those that were there before, and returns all that there are.
func (s *supervised) kept(before map[string]process, names ...string) map[string]process {
	s.t.Helper()
	now := s.list()
	for _, name := range names {
		if !now[name].isSame(before[name]) {
			s.t.Errorf("%s was %v and is %v", name, before[name], now[name])
		}
	}
	return now
}

// A worker that dies under up is started again; down ends the supervisor first, and
// then all others.
func TestWorkerIsStartedAgain(t *testing.T) {
	s := newSupervised(t)
	before := s.list()
	if len(before) != 4 || !before[supervisorName].isAlive() {
		t.Fatalf("up started %v", before)
	}
	s.says("restarts processes that die", "(sim)  worker-0", "(sim)  worker-1")
	before["worker-1"].signal(syscall.SIGKILL)
	s.replaced(before, "worker-1")
	s.says("(sim)  worker-1", "once, ")
	now := s.kept(before, controllerName, "worker-0", supervisorName)
	// Only the supervisor needs it; down does not.
	now[supervisorName].signal(syscall.SIGKILL)
	s.says("no supervisor", "(sim)  worker-0")
	s.run("down").ends(t, ExitSuccess)
	s.end(now)
}

// Up leaves another supervisor where the first has died, which starts again what died meanwhile, and is the only one.
func TestUpTakesOverFromADeadSupervisor(t *testing.T) {
	s := newSupervised(t)
	before := s.list()
	before[supervisorName].signal(syscall.SIGKILL)
	s.end(map[string]process{supervisorName: before[supervisorName]})
	before[controllerName].signal(syscall.SIGKILL)
	s.end(map[string]process{controllerName: before[controllerName]})
	s.run("status").ends(t, ExitFailed, "start both again with `pathways up")
	s.run("up").ends(t, ExitSuccess, "had died")
	s.replaced(before, controllerName)
	s.says("restarts processes that die", "(sim)  worker-0", "(sim)  worker-1")
	waitFor(t, "the workers to come back", func() bool {
		return strings.Contains(s.run("events").out, "has its cluster back")
	})
	now := s.kept(before, "worker-0", "worker-1")
	s.run("up").ends(t, ExitFailed, "is already up (4 processes)")
	s.kept(now, supervisorName)
}

// A controller that dies under up is started again, and its workers come back. A process that follows its events goes
// on.
func TestControllerIsStartedAgain(t *testing.T) {
	s := newSupervised(t)
	before := s.list()
	shown := statustest.Value(os.Create(filepath.Join(s.dir, "shown"))).OK(t)
	defer shown.Close()
	shows := func(what string) {
		t.Helper()
		waitFor(t, "events to show "+what, func() bool {
			b, _ := os.ReadFile(shown.Name())
			return strings.Contains(string(b), what)
		})
	}
	follower := exec.Command(os.Args[0], "events", "--follow", "--dir", s.dir)
	follower.Stdout = shown
	statustest.OK(t, follower.Start())
	defer func() {
		_ = follower.Process.Kill()
		_ = follower.Wait()
	}()
	shows("joined")
	before[controllerName].signal(syscall.SIGKILL)
	s.replaced(before, controllerName)
	s.says("(sim)  worker-0", "(sim)  worker-1", "once, ")
	shows("waits for those that were there")
	shows("has its cluster back")
	s.kept(before, "worker-0", "worker-1", supervisorName)
}

// A supervisor ends with a controller that was told to stop, and so do the workers, for good.
func TestSupervisorEndsWithItsController(t *testing.T) {
	s := newSupervised(t)
	all := s.list()
	all[controllerName].signal(syscall.SIGTERM)
	s.end(all)
	s.end(s.list()) // it has started no other
}

// If the list of a cluster's processes is gone, only their supervisor can end them, and it
// does.
func TestSupervisorEndsAClusterWhoseDirectoryIsGone(t *testing.T) {
	s := newSupervised(t, "--log", "info")
	all := s.list()
	waitFor(t, "the supervisor to know the others", func() bool {
		return strings.Contains(tail(at(s.dir).path(supervisorName+".log"), 0, 9), "the supervisor watches")
	})
	statustest.OK(t, os.RemoveAll(s.dir))
	s.end(all)
}

func TestNoRestartLeavesNoSupervisor(t *testing.T) {
	s := newSupervised(t, "--no-restart")
	statustest.Equal(t, len(s.list()), 3, "processes that up started")
	s.says("no supervisor")
}

// Status names the processes that were started again, and those that are not any more.
func TestStatusShowsProcessesThatWereRestarted(t *testing.T) {
	p := new(program)
	var out strings.Builder
	p.out = &out
	statustest.OK(t, p.show(&wire.Report{Supervisor: &wire.Report_Supervisor{Pid: 7, Processes: []*wire.Report_Supervised{
		{Name: controllerName, Pid: 8}, {Name: "worker-0", Pid: 9, Restarts: 2, RestartedMs: 61_000},
		{Name: "worker-1", Restarts: 10, Failed: "it ended at once"},
	}}}, "unix:x"))
	for _, want := range []string{"process 7 restarts processes that die", "worker-0  9    2 times, last 1m1s ago\n",
		"worker-1  -    no longer: it ended at once\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), controllerName) {
		t.Errorf("a process that was never started again is in\n%s", out.String())
	}
}
