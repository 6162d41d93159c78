package command

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// If the controller alone has ended, commands say how it is started again, or who does that.
func TestAControllerThatIsMissingIsStartedAgain(t *testing.T) {
	dir := t.TempDir()
	c := at(dir)
	statustest.OK(t, c.directory().Make())
	socket := c.path(cluster.Socket) // one that was killed leaves it
	statustest.OK(t, os.WriteFile(socket, nil, 0o600))
	me := process{Name: "worker-0", PID: os.Getpid(), Start: started(os.Getpid())}
	dead := process{Name: controllerName, PID: me.PID, Start: "0",
		Args: []string{"controller", "--listen", c.address(), "--lease", "30s", "--tenants", "", "--log", "a b"}}
	supervisor := me
	supervisor.Name = supervisorName
	keep := func(all ...process) {
		t.Helper()
		statustest.OK(t, c.keep(all))
	}
	for _, k := range []struct {
		all  []process
		says string
	}{
		{[]process{dead, me}, "left 1 process behind, for 30s at most (its --lease); start it again with " +
			"`pathways controller --listen " + c.address() + " --lease 30s --log 'a b'`, or end what is left " +
			"with `pathways down --dir " + dir + " --cluster default`"},
		{[]process{dead, me, supervisor}, "its supervisor starts it again"},
	} {
		keep(k.all...)
		for _, command := range []string{"status", "up"} {
			call(t, nil, command, "--dir", dir).ends(t, ExitFailed, "UNAVAILABLE", k.says)
		}
	}
	keep(dead)
	statustest.Checkf(t, c.missing(), "of a cluster of which nothing is left")
	keep(dead, me)
	statustest.OK(t, os.Remove(socket))
	l := statustest.Value(net.Listen("unix", socket)).OK(t)
	defer l.Close()
	statustest.Fails(t, "of a cluster that is up", c.isDown(), status.AlreadyExists)
}

func TestCommandsSayThatTheyWait(t *testing.T) {
	for takes, want := range map[time.Duration]string{saysAfter / 2: "", saysAfter * 2: "pathways: it is late\n"} {
		bubble.Test(t, func(t *testing.T) {
			var errs bytes.Buffer
			p := &program{err: &errs}
			statustest.OK(t, p.waits("it is late", func() error {
				time.Sleep(takes)
				return nil
			}))
			statustest.Equal(t, errs.String(), want, "what is said of an answer after %v", takes)
		})
	}
}

// What a process says after its restart is read without what it said before.
func TestTailBeginsAfterARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	statustest.OK(t, os.WriteFile(path, []byte("before\none\ntwo\n"), 0o600))
	for first, want := range map[int64]string{0: "before\none\ntwo", 7: "one\ntwo", 11: "two", 15: "", 99: ""} {
		statustest.Equal(t, tail(path, first, 3), want, "behind byte %d", first)
	}
}
