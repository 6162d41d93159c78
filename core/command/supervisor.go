package command

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// A supervisor is a process that `pathways up` leaves behind, and that starts the
// cluster's dead workers again (see restarts for when). It holds nothing that the
// cluster needs: it knows the processes by the cluster's list of them, whoever started
// them, and where it is killed all others go on.
//
// It ends
//   - at SIGTERM, which is how `pathways down` tells it that the others are about to end;
//   - with the controller, without which there is no cluster: it ends the workers first;
//   - where the list names it no more, or is gone with the cluster's directory. In the
//     latter case nobody could find the processes again, so it ends them.

const (
	controllerName = "controller" // of the process in the list and of its log
	supervisorName = "supervisor"
	// supervision is the command of a supervisor's process.
	supervision = "supervise"
	// How often a supervisor looks whether processes live. That reads a file of /proc each.
	lookEvery = 250 * time.Millisecond
	// How long a supervisor waits until `pathways up` has written it into the list.
	listedWithin = 10 * time.Second
	// How many lines of a dead process's log are repeated in the supervisor's.
	lastWords = 3
)

func (p *program) supervisor() *cobra.Command {
	cmd := &cobra.Command{
		Use: supervision, Hidden: true, Args: cobra.NoArgs,
		Short: "start the dead workers of a cluster again, until it ends",
		RunE: func(cmd *cobra.Command, args []string) error {
			s := settings{cmd.Flags()}
			c, err := p.placeOf(s)
			if err != nil {
				return err
			}
			log, err := p.logger(s)
			if err != nil {
				return err
			}
			return p.watch(cmd.Context(), c, log)
		},
	}
	take(cmd, "cluster", "dir")
	return cmd
}

// leave starts the supervisor of a cluster whose processes run.
func (p *program) leave(s settings, c place) error {
	q, err := p.launch(c, supervisorName, []string{supervision, "--dir", filepath.Dir(c.dir), "--cluster", c.cluster, "--log", s.text("log")}, true)
	if err != nil {
		return err
	}
	all, err := c.listed()
	if err != nil {
		return err
	}
	return c.keep(append(all, q))
}

// watch is the supervisor.
func (p *program) watch(ctx context.Context, c place, log *slog.Logger) error {
	me := process{Name: supervisorName, PID: os.Getpid(), Start: started(os.Getpid())}
	begun := time.Now()
	clock := func() int64 { return int64(time.Since(begun)) }
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var all []process
	rules := new(restarts)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		listed, err := c.listed()
		switch {
		case err != nil:
			return err
		case listed == nil:
			log.Error("the cluster's list of processes is gone; they are ended", "directory", c.dir)
			end(others(all, me))
			return nil
		case !slices.ContainsFunc(listed, me.same):
			if all == nil && time.Since(begun) < listedWithin {
				continue // `pathways up` is about to write
			}
			return status.New(status.Aborted, "process %d is not the supervisor of the cluster in %s", me.PID, c.dir)
		}
		if all == nil {
			log.Info("the supervisor watches the cluster's processes", "directory", c.dir)
			for _, q := range listed {
				if all = append(all, q); q.Name != supervisorName {
					rules.add(q.Name, q.Name != controllerName, clock())
				}
			}
		}
		changed := false
		for i := range all {
			q := &all[i]
			if q.Name == supervisorName || rules.isDown(q.Name) || q.alive() {
				continue
			}
			path := c.path(q.Name + ".log")
			words := slog.String("last words", tail(path, lastWords))
			switch v, in := rules.died(q.Name, clock()); v {
			case endsAll:
				log.Warn("the controller has ended, and with it the cluster", words)
				gone(others(all, me), 2*endGrace) // by themselves
				end(others(all, me))
				return nil
			case givenUp:
				changed, q.Failed = true, fmt.Sprintf("it ended %s in a row soon after it was started; %s says why", status.Count(mostRestarts+1, "time"), path)
				log.Error("a process is not started again any more", "name", q.Name, "reason", q.Failed, words)
			case startsAgain:
				log.Warn("a process has ended; it is started again", "name", q.Name, "in", time.Duration(in), words)
			}
		}
		for _, name := range rules.due(clock()) {
			i := slices.IndexFunc(all, func(q process) bool { return q.Name == name })
			q, err := p.launch(c, name, all[i].Args, false)
			rules.started(name, clock())
			if err != nil {
				log.Error("a process cannot be started again", "name", name, "reason", err)
				q = process{Name: name, Args: all[i].Args} // dead, as the next look finds
			}
			q.Restarts, q.Restarted = all[i].Restarts+1, time.Now().UnixMilli()
			all[i], changed = q, true
		}
		if changed {
			if err := c.keep(all); err != nil {
				log.Error("the cluster's list of processes cannot be written", "reason", err)
			}
		}
	}
}

// others are all processes but one.
func others(all []process, but process) []process {
	return slices.DeleteFunc(slices.Clone(all), but.same)
}

// retire ends the supervisor among these processes, if there is one, before it can
// start others again.
func retire(all []process) {
	for _, q := range all {
		if q.Name == supervisorName {
			end([]process{q})
		}
	}
}

// report is what the command line knows of a cluster that it has started, nil where it
// has not.
func (c place) report() *wire.Report_Supervisor {
	all, err := c.listed()
	if err != nil || all == nil {
		return nil
	}
	r := new(wire.Report_Supervisor)
	for _, q := range all {
		pid := int64(0)
		if q.alive() {
			pid = int64(q.PID)
		}
		if q.Name == supervisorName {
			r.Pid = pid
			continue
		}
		s := &wire.Report_Supervised{Name: q.Name, Pid: pid, Restarts: uint32(q.Restarts), Failed: q.Failed}
		if q.Restarted > 0 {
			s.RestartedMs = max(time.Since(time.UnixMilli(q.Restarted)).Milliseconds(), 1)
		}
		r.Processes = append(r.Processes, s)
	}
	return r
}

// showSupervisor writes which processes were started again, if any.
func showSupervisor(w *tabwriter.Writer, r *wire.Report_Supervisor) {
	switch {
	case r == nil:
		return
	case r.Pid == 0:
		fmt.Fprintln(w, "\nno supervisor: a worker that dies is not started again")
	default:
		fmt.Fprintf(w, "\nprocess %d starts workers that die again\n", r.Pid)
	}
	head := "\nPROCESS\tPID\tSTARTED AGAIN\n"
	for _, q := range r.Processes {
		if q.Restarts == 0 && q.Failed == "" {
			continue
		}
		pid, times := fmt.Sprint(q.Pid), fmt.Sprintf("%s, the last time %v ago", status.Count(q.Restarts, "time"), age(q.RestartedMs))
		if q.Restarts == 1 {
			times = fmt.Sprintf("once, %v ago", age(q.RestartedMs))
		}
		if q.Pid == 0 {
			pid = "-"
		}
		if q.Failed != "" {
			times = "not any more: " + q.Failed
		}
		fmt.Fprintf(w, "%s%s\t%s\t%s\n", head, q.Name, pid, times)
		head = ""
	}
}

// end ends processes, by SIGTERM and then by SIGKILL, and returns those that do not end.
func end(all []process) []process {
	for _, way := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGTERM, afterTerm}, {syscall.SIGKILL, afterKill}} {
		for _, q := range all {
			q.signal(way.signal)
		}
		all = gone(all, way.wait)
	}
	return all
}
