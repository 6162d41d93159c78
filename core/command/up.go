package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
	"github.com/openpathways/pathways/core/wire"
)

// childExit is the exit code of a command that was run in a cluster.
type childExit int

func (c childExit) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// upLease is the lease of a cluster that up starts, unless --lease says another: several times the two seconds or so
// that the supervisor takes to start a controller again. A lease does not delay what a dead process held: all processes
// are on this machine, where the controller sees them die. A controller that is started by hand may have clients on
// other machines, whose death it cannot see, so it has no lease unless it is given one.
const upLease = 10 * time.Second

func (p *program) up() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up [-- COMMAND [ARGUMENT…]]",
		Short: "start a cluster on this machine",
		Long: `Starts a controller and workers on this machine, waits until they are ready, and returns. A supervisor process in the
background restarts processes that die, unless --no-restart is set. ` + "`pathways status`" + ` shows it, and
` + "`pathways down`" + ` ends it with the other processes. If the cluster is up but its supervisor has died, the command
only starts a new supervisor, which restarts the processes that have died meanwhile with their original options.

A script survives a broken connection to the controller, and a restart of the controller, if the connection is restored
within --lease (ten seconds): its calls wait, and nothing is lost. With --lease 0 its session ends.

With a command after --, runs the command with PATHWAYS_ADDRESS set, and stops the cluster when the command ends. If
` + "`pathways up`" + ` itself is killed, command and cluster end by SIGTERM.`,
		Example: `  pathways up --workers 4 --devices 2
  pathways up --driver cuda,cpu=2x4  # all GPUs, and two workers with four CPU devices each
  pathways up --workers 2 -- python train.py`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
				return usage{fmt.Errorf("unexpected argument %q; put a command to run after --", args[0])}
			}
			return p.runUp(cmd.Context(), settings{cmd.Flags()}, args)
		},
	}
	take(cmd, "cluster", "dir", "workers", "devices", "memory-limit", "driver", "island", "import", "cache",
		"cache-bytes", "heartbeat", "silence", "lease", "stuck-after", "memory-wait", "order", "tenants", "evict-after",
		"no-restart", "dispatch", "wait", "http")
	lease := cmd.Flags().Lookup("lease")
	_ = lease.Value.Set(upLease.String()) // not what FlagSet.Set does, after which variables would no longer count
	lease.DefValue = upLease.String()
	return cmd
}

func (p *program) runUp(ctx context.Context, s settings, command []string) error {
	c, err := p.placeOf(s)
	if err != nil {
		return err
	}
	crews, err := p.crews(s)
	if err != nil {
		return err
	}
	if _, err := s.size("cache-bytes"); err != nil {
		return err
	}
	if _, err := s.size("memory-limit"); err != nil {
		return err
	}
	if _, port, _ := net.SplitHostPort(s.text("http")); port == "0" {
		return usage{status.New(status.InvalidArgument, "--http is %s, and nobody would know which port the page has; "+
			"expected one with a port, such as 127.0.0.1:8080", s.text("http"))}
	}
	if err := c.directory().Make(); err != nil {
		return err
	}
	if len(command) == 0 && !s.flag("no-restart") {
		if taken, err := p.takeOver(s, c); taken || err != nil {
			return err
		}
	}
	if err := c.isDown(); err != nil {
		return err
	}
	if was, err := c.listed(); err == nil && was != nil {
		p.say("all processes of the cluster %s have ended; starting others, with the options of this command", c.cluster)
	}
	if len(command) > 0 {
		runtime.LockOSThread() // the kernel sends endsWith when this thread ends
		defer runtime.UnlockOSThread()
		p.endsWith = syscall.SIGTERM
	}
	if _, err := c.directory().KeepToken(); err != nil {
		return err
	}
	report, err := p.start(ctx, s, c, crews)
	if err == nil && !s.flag("no-restart") {
		_, err = p.leave(s, c, true)
	}
	if err != nil {
		return p.failed(err, s, c)
	}
	if len(command) == 0 {
		devices := 0
		for _, w := range report.EachWorker() {
			devices += len(w.Devices)
		}
		fmt.Fprintf(p.out, "%s in %s. In a shell:\n\n  export PATHWAYS_ADDRESS=%s\n\n", status.Count(devices, "device"),
			status.Count(members(crews), "worker"), c.address())
		if page := s.text("http"); page != "" {
			fmt.Fprintf(p.out, "The cluster is shown at http://%s/\n\n", page)
		}
		return nil
	}
	err = run(ctx, command, c)
	if err != nil {
		return p.failed(err, s, c)
	}
	_, err = p.stop(c, s.time("wait"))
	return err
}

// takeOver starts another supervisor for a cluster that is up and whose supervisor has died, and reports whether it
// did. A list without any supervisor may be that of an `up` at work, or of one that was to leave none.
func (p *program) takeOver(s settings, c place) (taken bool, err error) {
	all, err := c.listed()
	if err != nil {
		return false, err
	}
	was := slices.IndexFunc(all, func(q process) bool { return q.Name == supervisorName })
	if was < 0 || all[was].isAlive() || !slices.ContainsFunc(all, process.isAlive) {
		return false, nil
	}
	q, err := p.leave(s, c, false)
	if err != nil {
		return false, err
	}
	fmt.Fprintf(p.out, "The supervisor of the cluster %s had died. Process %d is the new one; it restarts the processes "+
		"that have died meanwhile, with their original options.\n", c.cluster, q.PID)
	return true, nil
}

// isDown returns an error if processes of the cluster are there.
//
// Errors: ALREADY_EXISTS; UNAVAILABLE if the controller alone has ended; those of running.
func (c place) isDown() error {
	switch alive, err := c.running(); {
	case err != nil:
		return err
	case len(alive) > 0:
		if err := c.missing(); err != nil && !c.isServed() {
			return err
		}
		return status.New(status.AlreadyExists,
			"cluster %q is already up (%s); end it with `pathways down`, or name another one with --cluster", c.cluster,
			status.Count(len(alive), "process"))
	}
	if c.isServed() {
		return status.New(status.AlreadyExists,
			"a controller that was started by hand listens at %s; `pathways down` ends it, or "+
				"name another cluster with --cluster", c.address())
	}
	return nil
}

// crew is the workers of one driver.
type crew struct {
	driver, island   string
	workers, devices int // devices of each; 0 is the driver's default
}

func members(crews []crew) (n int) {
	for _, c := range crews {
		n += c.workers
	}
	return n
}

// counted matches a driver with its number of workers, and that of the devices of each.
var counted = regexp.MustCompile(`^(.+)=([1-9][0-9]{0,4})(?:x([1-9][0-9]{0,4}))?$`)

// crews returns which workers to start. An island has devices of one platform, so each driver but the first has an
// island of its name.
func (p *program) crews(s settings) (all []crew, err error) {
	hasGPUs := "" // the driver of the GPUs
	for i, text := range strings.Split(s.text("driver"), ",") {
		c := crew{driver: text, island: s.text("island"), workers: s.number("workers"), devices: s.number("devices")}
		chosen := s.Changed("workers")
		if m := counted.FindStringSubmatch(text); m != nil {
			c.driver, chosen = m[1], true
			c.workers, _ = strconv.Atoi(m[2]) // matched
			if m[3] != "" {
				c.devices, _ = strconv.Atoi(m[3])
			}
		} else if text == "" || strings.Contains(text, "=") && !strings.ContainsRune(text, filepath.Separator) {
			return nil, usage{status.New(status.InvalidArgument, "--driver has %q; expected the name of a driver, with or "+
				"without its numbers of workers and of devices each, such as cpu, cpu=2 or cpu=2x4", text)}
		}
		if i > 0 {
			c.island = filepath.Base(c.driver)
		}
		gpus := 0
		if p.GPUs != nil {
			gpus = p.GPUs(c.driver)
		}
		if gpus > 0 && hasGPUs != "" {
			return nil, usage{status.New(status.InvalidArgument, "--driver has %s and %s, and both are the GPUs of this "+
				"machine; name them once, such as cuda=2x4 for two workers of four GPUs", hasGPUs, c.driver)}
		}
		if gpus > 0 {
			hasGPUs = c.driver
		}
		if err := c.divide(gpus, chosen); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// divide divides the GPUs of this machine, if its driver has some, among a crew. Without a chosen number of workers one
// has all of them.
func (c *crew) divide(gpus int, chosen bool) error {
	if c.workers < 1 {
		return usage{status.New(status.InvalidArgument, "--workers is %d; expected at least 1", c.workers)}
	}
	if c.devices < 0 {
		return usage{status.New(status.InvalidArgument, "--devices is %d; expected at least 1", c.devices)}
	}
	if gpus == 0 {
		return nil
	}
	if !chosen {
		c.workers = 1
	}
	if c.devices == 0 && gpus%c.workers == 0 {
		c.devices = gpus / c.workers
	}
	if c.devices == 0 || c.workers*c.devices > gpus {
		return usage{status.New(status.InvalidArgument,
			"%s cannot be divided among %s with --devices %d; expected --workers times --devices to be at most %d",
			status.Count(gpus, "GPU"), status.Count(c.workers, "worker"), c.devices, gpus)}
	}
	return nil
}

// failed takes a cluster down after an error, and prints where its logs are.
func (p *program) failed(why error, s settings, c place) error {
	logs, err := p.stop(c, s.time("wait"))
	if logs != "" {
		fmt.Fprintf(p.err, "pathways: the logs of the cluster are in %s\n", logs)
	}
	return errors.Join(why, err)
}

// run runs a user's command with the address of the cluster.
func run(ctx context.Context, command []string, c place) error {
	cmd := exec.Command(command[0], command[1:]...)
	// The token is found beside the controller's socket, and those of other clusters that the command uses beside theirs.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return name == "PATHWAYS_TOKEN" || name == "PATHWAYS_TOKEN_FILE"
	})
	cmd.Env = append(cmd.Env, "PATHWAYS_ADDRESS="+c.address())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // see program.endsWith
	if err := cmd.Start(); err != nil {
		return status.New(status.NotFound, "cannot run %s: %w", command[0], err)
	}
	// Ctrl-C also reaches the command, which is in the terminal's process group; SIGTERM is passed on.
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	var exit *exec.ExitError
	if err := cmd.Wait(); errors.As(err, &exit) {
		if code := exit.ExitCode(); code >= 0 {
			return childExit(code)
		}
		return childExit(128 + int(exit.Sys().(syscall.WaitStatus).Signal()))
	} else if err != nil {
		return err
	}
	return nil
}

// readyEvery is how often `pathways up` asks whether all processes are ready.
const readyEvery = 50 * time.Millisecond

// start starts the processes and blocks until the controller has all workers.
func (p *program) start(ctx context.Context, s settings, c place, crews []crew) (*wire.Report, error) {
	workers := members(crews)
	all, err := p.launchAll(c, s, crews)
	if err != nil {
		return nil, err
	}
	token, err := cluster.ReadToken(c.path(cluster.TokenFile))
	if err != nil {
		return nil, err
	}
	told := ctx
	ctx, cancel := context.WithTimeout(ctx, s.time("wait"))
	defer cancel()
	show := newProgress(p.err, workers)
	defer show.end()
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for {
		for _, q := range all {
			if !q.isAlive() {
				return nil, status.New(status.Unavailable, "%s ended before it was ready; the last lines of %s:\n%s", q.Name,
					c.path(q.Name+".log"), tail(c.path(q.Name+".log"), q.LogBegins, 12))
			}
		}
		report, err := cluster.Ask(ctx, c.address(), cluster.Secret{Token: token}, nil)
		have := 0
		if err == nil {
			for _, i := range report.Islands {
				have += len(i.Workers)
			}
		}
		show.at(have)
		if have >= workers {
			return report, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if told.Err() != nil {
				return nil, status.New(status.Cancelled, "stopped with %d of %s ready", have, status.Count(workers, "worker"))
			}
			return nil, status.New(status.DeadlineExceeded, "%d of %s ready after %v; the logs are in %s", have,
				status.Count(workers, "worker"), s.time("wait"), c.dir)
		}
	}
}

// launchAll starts the controller and workers. Each is in the cluster's list of processes before the next one starts,
// so that `pathways down` finds them all if this process is killed.
func (p *program) launchAll(c place, s settings, crews []crew) (all []process, err error) {
	tenants := s.text("tenants")
	if tenants != "" { // the controller's directory may be another
		if tenants, err = filepath.Abs(tenants); err != nil {
			return nil, system.Error(err, "the file of tenants cannot be found")
		}
	}
	common := []string{"--token-file", c.path(cluster.TokenFile), "--heartbeat", s.time("heartbeat").String(),
		"--silence", s.time("silence").String(), "--dir", filepath.Dir(c.dir), "--cluster", c.cluster,
		"--log", s.text("log")}
	launch := func(name string, args ...string) error {
		q, err := p.launch(c, name, append(args, common...), true)
		if err != nil {
			return err
		}
		all = append(all, q)
		return c.keep(all)
	}
	err = launch(controllerName, "controller", "--listen", c.address(), "--lease", s.time("lease").String(),
		"--state", c.path(stateDirectory),
		"--stuck-after", s.time("stuck-after").String(), "--memory-wait", s.time("memory-wait").String(),
		"--order", s.text("order"), "--tenants", tenants,
		"--dispatch", s.text("dispatch"), "--http", s.text("http"))
	number := 0
	for _, crew := range crews {
		for i := 0; i < crew.workers && err == nil; i++ {
			name := fmt.Sprintf("worker-%d", number)
			number++
			err = launch(name, "worker", "--address", c.address(), "--listen", "unix:"+c.path(name+".sock"), "--name", name,
				"--driver", crew.driver, "--island", crew.island, "--devices", strconv.Itoa(crew.devices),
				"--first-device", strconv.Itoa(i*crew.devices), "--memory-limit", s.text("memory-limit"),
				"--import", s.text("import"), "--cache", s.text("cache"), "--cache-bytes", s.text("cache-bytes"),
				"--evict-after", s.time("evict-after").String(), "--wait", s.time("wait").String())
		}
	}
	return all, err
}

// launch starts a process like this one, which outlives it unless endsWith is set. If first is set, its log is a new
// one.
func (p *program) launch(c place, name string, args []string, first bool) (process, error) {
	how := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if first {
		how |= os.O_TRUNC
	}
	log, err := os.OpenFile(c.path(name+".log"), how, 0o600)
	if err != nil {
		return process{}, system.Error(err, "cannot write the log of %s", name)
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return process{}, system.Error(err, "cannot read the log of %s", name)
	}
	cmd := exec.Command(p.Self[0], append(p.Self[1:len(p.Self):len(p.Self)], args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: p.endsWith}
	if err := cmd.Start(); err != nil {
		return process{}, status.New(status.Unavailable, "cannot start %s: %w", name, err)
	}
	q := process{Name: name, PID: cmd.Process.Pid, Start: started(cmd.Process.Pid), Args: args,
		LogBegins: info.Size()}
	go func() { _ = cmd.Wait() }() // so that alive sees its end while this process lives
	return q, nil
}

// progress shows on a terminal how many workers are ready.
type progress struct {
	to   io.Writer
	all  int
	last int
}

func newProgress(w io.Writer, all int) *progress {
	if !isTerminal(w) {
		return &progress{all: all}
	}
	return &progress{to: w, all: all, last: -1}
}

// width is the width of the bar in columns.
const width = 30

func (p *progress) at(n int) {
	if p.to == nil || n == p.last {
		return
	}
	p.last = n
	bar := make([]rune, width)
	for i := range bar {
		if bar[i] = '░'; i < width*n/p.all {
			bar[i] = '█'
		}
	}
	fmt.Fprintf(p.to, "\rstarting workers %s %d of %d ", string(bar), n, p.all)
}

func (p *progress) end() {
	if p.to != nil {
		fmt.Fprintln(p.to)
	}
}
