package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/controller/durable"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// A supervisor is a process that `pathways up` leaves behind, and that restarts the
// cluster's controller and workers when they die (restarts decides when). It has no state that the cluster
// needs: it finds the processes in the cluster's list, and if it is killed, all others
// continue, and the next `pathways up` leaves another one (takeOver).
//
// It ends
//   - at SIGTERM, which `pathways down` sends before it ends the others;
//   - with a controller that was told to stop, or dies too often: without one there is no cluster, so it ends the
//     workers first;
//   - if the list no longer names it, or is gone with the cluster's directory. In the
//     latter case no command could find the processes again, so it ends them.

const (
	controllerName = "controller" // of the process in the list and of its log
	supervisorName = "supervisor"
	stateDirectory = "state" // of the controller, in the cluster's
	// supervision is the command of a supervisor's process.
	supervision = "supervise"
	// lookEvery is how often a supervisor checks that processes are alive, which reads a
	// file of /proc for each.
	lookEvery = 250 * time.Millisecond
	// listedWithin is how long a supervisor waits for `pathways up` to add it to the list.
	listedWithin = 10 * time.Second
)

func (p *program) supervisor() *cobra.Command {
	cmd := &cobra.Command{
		Use: supervision, Hidden: true, Args: cobra.NoArgs,
		Short: "restart the processes of a cluster when they die, until it ends",
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

// leave starts the supervisor of a cluster whose processes run. First distinguishes it from one that replaces another.
func (p *program) leave(s settings, c place, first bool) (process, error) {
	q, err := p.launch(c, supervisorName,
		[]string{supervision, "--dir", filepath.Dir(c.dir), "--cluster", c.cluster, "--log", s.text("log")}, first)
	if err != nil {
		return process{}, err
	}
	all, err := c.listed()
	if err != nil {
		return process{}, err
	}
	all = slices.DeleteFunc(all, func(q process) bool { return q.Name == supervisorName })
	return q, c.keep(append(all, q))
}

// vigil is a supervisor at work.
type vigil struct {
	program *program
	place   place
	log     *slog.Logger
	me      process
	begun   time.Time
	all     []process // that the cluster had when the supervisor came, as they are now
	rules   restarts
}

// watch runs the supervisor.
func (p *program) watch(ctx context.Context, c place, log *slog.Logger) error {
	w := &vigil{program: p, place: c, log: log, begun: time.Now(),
		me: process{Name: supervisorName, PID: os.Getpid(), Start: started(os.Getpid())}}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if over, err := w.look(); over || err != nil {
			return err
		}
	}
}

func (w *vigil) clock() int64 { return int64(time.Since(w.begun)) }

// look checks the processes once, and reports whether there is nothing left to supervise.
func (w *vigil) look() (over bool, err error) {
	listed, err := w.place.listed()
	switch {
	case err != nil:
		return false, err
	case listed == nil:
		w.log.Error("the cluster's list of processes is gone; ending them", "directory", w.place.dir)
		end(others(w.all, w.me))
		return true, nil
	case !slices.ContainsFunc(listed, w.me.isSame):
		if w.all == nil && time.Since(w.begun) < listedWithin {
			return false, nil // `pathways up` is about to write
		}
		return false, status.New(status.Aborted, "process %d is not the supervisor of the cluster in %s", w.me.PID,
			w.place.dir)
	}
	if w.all == nil {
		w.log.Info("the supervisor watches the cluster's processes", "directory", w.place.dir)
		for _, q := range listed {
			if w.all = append(w.all, q); q.Name != supervisorName {
				w.rules.add(q.Name, w.clock())
			}
		}
	}
	changed, over := w.findDead()
	if over {
		return true, nil
	}
	if w.restart() || changed {
		if err := w.place.keep(w.all); err != nil {
			w.log.Error("the cluster's list of processes cannot be written", "reason", err)
		}
	}
	return false, nil
}

// findDead passes processes that have died to the rules, and does what they say. It reports whether the list of
// processes has changed, and whether the cluster has ended.
func (w *vigil) findDead() (changed, over bool) {
	for i := range w.all {
		q := &w.all[i]
		if q.Name == supervisorName || w.rules.isDown(q.Name) || q.isAlive() {
			continue
		}
		path := w.place.path(q.Name + ".log")
		words := slog.String("last words", lastWords(path, q.LogBegins))
		switch v, in := w.rules.died(q.Name, w.clock()); {
		case q.Name == controllerName && (v == givenUp || w.hasStopped()):
			w.log.Warn("the controller has ended; ending the cluster", words)
			gone(others(w.all, w.me), 2*endGrace) // by themselves
			end(others(w.all, w.me))
			return changed, true
		case v == givenUp:
			changed, q.Failed = true,
				fmt.Sprintf("it died %s in a row soon after its start; see %s", status.Count(mostRestarts+1, "time"), path)
			w.log.Error("a process is no longer restarted", "name", q.Name, "reason", q.Failed, words)
		default:
			w.log.Warn("a process has ended; restarting it", "name", q.Name, "in", time.Duration(in), words)
		}
	}
	return changed, false
}

// hasStopped reports whether the controller, which has ended, was told to: then it has left nothing for its next start.
func (w *vigil) hasStopped() bool {
	_, err := os.Stat(filepath.Join(w.place.path(stateDirectory), durable.File))
	return errors.Is(err, os.ErrNotExist)
}

// restart starts the processes whose time has come, and reports whether there were any.
func (w *vigil) restart() (changed bool) {
	for _, name := range w.rules.due(w.clock()) {
		i := slices.IndexFunc(w.all, func(q process) bool { return q.Name == name })
		q, err := w.program.launch(w.place, name, w.all[i].Args, false)
		w.rules.started(name, w.clock())
		if err != nil {
			w.log.Error("a process cannot be restarted", "name", name, "reason", err)
			q = process{Name: name, Args: w.all[i].Args} // dead: the next check handles it
		}
		q.Restarts, q.Restarted = w.all[i].Restarts+1, time.Now().UnixMilli()
		w.all[i], changed = q, true
	}
	return changed
}

// others returns all processes except one.
func others(all []process, but process) []process {
	return slices.DeleteFunc(slices.Clone(all), but.isSame)
}

// retire ends the supervisor among these processes, if there is one, before it can restart
// others.
func retire(all []process) {
	for _, q := range all {
		if q.Name == supervisorName {
			end([]process{q})
		}
	}
}

// report describes the supervision of a cluster; it is nil for a cluster that `pathways up`
// did not start.
func (c place) report() *wire.Report_Supervisor {
	all, err := c.listed()
	if err != nil || all == nil {
		return nil
	}
	r := new(wire.Report_Supervisor)
	for _, q := range all {
		pid := int64(0)
		if q.isAlive() {
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

// showSupervisor prints which processes were restarted, if any.
func showSupervisor(w *tabwriter.Writer, r *wire.Report_Supervisor) {
	switch {
	case r == nil:
		return
	case r.Pid == 0:
		fmt.Fprintln(w, "\nno supervisor: processes that die are not restarted")
	default:
		fmt.Fprintf(w, "\nsupervisor: process %d restarts processes that die\n", r.Pid)
	}
	rows := section{w, "\nPROCESS\tPID\tRESTARTED\n"}
	for _, q := range r.Processes {
		if q.Restarts == 0 && q.Failed == "" {
			continue
		}
		pid, times := fmt.Sprint(q.Pid), fmt.Sprintf("%s, last %v ago", status.Count(q.Restarts, "time"),
			wire.Age(q.RestartedMs))
		if q.Restarts == 1 {
			times = fmt.Sprintf("once, %v ago", wire.Age(q.RestartedMs))
		}
		if q.Pid == 0 {
			pid = "-"
		}
		if q.Failed != "" {
			times = "no longer: " + q.Failed
		}
		rows.printf("%s\t%s\t%s\n", q.Name, pid, times)
	}
}

// end ends processes, by SIGTERM and then by SIGKILL, and returns those that did not end.
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
