package command

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

func (p *program) events() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "show the events of a cluster: workers, sessions and slices, with reasons",
		Long: `Prints the events of a cluster, oldest first, one line each, with the reason, if any, below. The controller remembers
the newest 1,024 events. Lines that may need attention begin with an exclamation mark.

With a tenant's credential, the reasons of other sessions' events and of lost workers are left out, since they may name
lines of code.`,
		Example: `  pathways events --last 20
  pathways events --follow --json | jq 'select(.warn)'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			s := settings{cmd.Flags()}
			last := s.number("last")
			if last < 0 {
				return usage{status.New(status.InvalidArgument, "--last is %d; expected 0 or more", last)}
			}
			address, secret, err := p.controllerOf(s)
			if err != nil {
				return err
			}
			err = p.follow(cmd.Context(), s, address, secret, last)
			if s.flag("follow") && cmd.Context().Err() != nil {
				return nil // it was told to stop
			}
			return err
		},
	}
	takeAsking(cmd, "last", "follow", "json")
	return cmd
}

// followEvery is how often a command that follows a cluster asks the controller.
const followEvery = time.Second

// followPatience is how long a command that follows a cluster waits for a controller that has gone: as long as leases
// mostly are.
const followPatience = 30 * time.Second

// follow prints the newest events, and with --follow those that come, until the context ends or the controller stops
// for good. A controller that starts again numbers its events anew.
func (p *program) follow(ctx context.Context, s settings, address string, secret cluster.Secret, last int) error {
	ask := &wire.Ask{Events: uint32(last), OnlyEvents: true}
	term, gone := uint64(0), time.Time{} // the controller's, and since when there is none
	for tick := time.NewTicker(followEvery); ; {
		wait := p.ask
		if !gone.IsZero() { // it has said that it waits
			wait = askAt
		}
		r, err := wait(ctx, address, secret, ask)
		switch {
		case err == nil && term != 0 && r.Term != term:
			fmt.Fprintln(p.err, "pathways: the controller has started again, and its events begin anew")
			ask.After, term = 0, r.Term
			continue
		case err == nil:
			term, gone = r.Term, time.Time{}
		case term == 0 || !s.flag("follow") || status.CodeOf(err) != status.Unavailable || ctx.Err() != nil:
			return err
		case gone.IsZero():
			gone = time.Now()
			fmt.Fprintf(p.err, "pathways: %v; waiting for it for %v at most\n", err, followPatience)
		case time.Since(gone) > followPatience:
			return err
		}
		if err != nil {
			r = &wire.Report{NewestEvent: ask.After}
		}
		for _, e := range r.Events {
			if missed := e.Number - ask.After - 1; ask.Events == maxEvents && missed > 0 {
				fmt.Fprintf(p.err, "pathways: %s came faster than they could be read\n", status.Count(missed, "more event"))
			}
			if err := p.showEvent(e, s.flag("json")); err != nil {
				return err
			}
			ask.After = e.Number
		}
		if !s.flag("follow") {
			return nil
		}
		ask.Events, ask.After = maxEvents, r.NewestEvent
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// maxEvents is more than a controller remembers.
const maxEvents = 1 << 20

// showEvent prints an event as a line of text, with its reason below, or as a line of JSON.
func (p *program) showEvent(e *wire.Report_Event, asJSON bool) error {
	at := time.Now().Add(-time.Duration(e.AgeMs) * time.Millisecond)
	if asJSON {
		var all map[string]json.RawMessage
		err := json.Unmarshal(wire.AppendJSON(nil, e), &all)
		delete(all, "age_ms")
		all["time"] = at.UTC().AppendFormat(nil, `"2006-01-02T15:04:05.000Z07:00"`)
		var b []byte
		if err == nil {
			b, err = json.Marshal(all)
		}
		if err != nil {
			return status.New(status.Internal, "an event could not be encoded: %w", err)
		}
		_, err = fmt.Fprintln(p.out, string(b))
		return err
	}
	mark := " "
	if e.Warn {
		mark = "!"
	}
	_, err := fmt.Fprintf(p.out, "%s %s %-8s %s\n", mark, at.Format("2006-01-02 15:04:05"), e.Kind, wire.Clean(e.Text))
	if e.Reason == "" {
		return err
	}
	for line := range strings.SplitSeq(e.Reason, "\n") { // such as what a computation that stood still waited for
		if err == nil {
			_, err = fmt.Fprintf(p.out, "%33s%s\n", "", wire.Clean(line))
		}
	}
	return err
}
