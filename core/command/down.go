package command

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

func (p *program) down() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "down",
		Short: "end a cluster on this machine",
		Long: `Ends the processes of a cluster that ` + "`pathways up`" + ` started, keeps their logs, and removes the cluster's
directory with its token. It also stops a controller that was started by hand and listens at the directory's socket,
with its workers, and keeps its token for the next one. End a controller that listens elsewhere with SIGTERM or
Ctrl-C.`,
		Example: `  pathways down
  pathways down --cluster two`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			s := settings{cmd.Flags()}
			c, err := p.placeOf(s)
			if err != nil {
				return err
			}
			if _, err := os.Stat(c.dir); os.IsNotExist(err) {
				return c.found()
			}
			// The list of the processes to end is in the directory.
			if err := c.directory().Check(); err != nil {
				return err
			}
			if _, err := os.Stat(c.path(listFile)); os.IsNotExist(err) {
				return p.stopUnlisted(c, s.time("wait"))
			}
			logs, err := p.stop(c, s.time("wait"))
			if logs != "" {
				fmt.Fprintf(p.out, "The cluster %s has ended. Its logs are in %s\n", c.cluster, logs)
			}
			return err
		},
	}
	take(cmd, "cluster", "dir", "wait")
	return cmd
}

// How long processes have to end after each way of stopping them. A worker whose driver
// hangs ends endGrace after it was asked to.
const (
	afterStop = 10 * time.Second
	afterTerm = 5 * time.Second
	afterKill = 5 * time.Second

	askEvery = 10 * time.Millisecond // whether they have
)

// stop ends all processes of a cluster, in the gentlest way that works, and removes its
// directory. It returns where the logs are kept, or "" if there are none.
func (p *program) stop(c place, wait time.Duration) (logs string, err error) {
	all, err := c.running()
	if err != nil {
		return "", err
	}
	for _, q := range all {
		q.signal(syscall.SIGCONT) // a process that is stopped handles no signals
	}
	retire(all)
	if all, err = c.running(); err != nil { // again, with those that the supervisor has started
		return "", err
	}
	if token, err := cluster.ReadToken(c.path(cluster.TokenFile)); err == nil && len(all) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), min(wait, afterStop))
		_, err := cluster.Ask(ctx, c.address(), cluster.Secret{Token: token}, &wire.Ask{Stop: true})
		cancel()
		if err == nil {
			all = gone(all, min(wait, afterStop))
		}
	}
	if all = end(all); len(all) > 0 {
		var names []string
		for _, q := range all {
			names = append(names, fmt.Sprintf("%s (%d)", q.Name, q.PID))
		}
		return "", status.New(status.DeadlineExceeded, "these processes did not end: %s; end them with kill -9",
			strings.Join(names, ", "))
	}
	return c.remove()
}

// stopUnlisted stops a controller that `pathways up` did not start, and blocks until it has ended. It removes nothing:
// a controller that does not listen at the directory's socket cannot be found, but may need the token in the directory.
//
// Errors: NOT_FOUND if no controller answers.
func (p *program) stopUnlisted(c place, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	ask := func(stop bool) error {
		_, err := cluster.Ask(ctx, c.address(), cluster.Secret{Directory: c.dir}, &wire.Ask{Stop: stop})
		return err
	}
	err := ask(true)
	if status.CodeOf(err) == status.Unavailable {
		what := "remove that directory if you do not need its token"
		if c.directory().IsTokenHeld() {
			what = "a controller that was started by hand and listens elsewhere uses its token: end that with SIGTERM"
		}
		return status.New(status.NotFound, "no controller listens at %s, and no processes are listed in %s; %s", c.address(),
			c.dir, what)
	}
	for ; err == nil; time.Sleep(askEvery) {
		err = ask(false)
	}
	if status.CodeOf(err) == status.Unavailable {
		fmt.Fprintf(p.out, "The controller at %s has ended\n", c.address())
		return nil
	}
	return err
}

// gone blocks until the processes have ended, and returns those that have not ended in time.
func gone(all []process, wait time.Duration) []process {
	for end := time.Now().Add(wait); len(all) > 0; time.Sleep(askEvery) {
		var left []process
		for _, q := range all {
			if q.isAlive() {
				left = append(left, q)
			}
		}
		if all = left; time.Now().After(end) {
			break
		}
	}
	return all
}
