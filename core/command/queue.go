package command

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

func (p *program) queue() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "list the requests that wait for slices, in order, and who has the devices",
		Long: `Prints the requests for slices that wait for devices, the next one first. The first request of each tenant or
user comes before anyone's second. Of those, tenants of a higher class come first, then the ones with the fewest
devices in exclusive slices, then the oldest; after ten minutes of waiting, only age counts. Priorities order the
requests of one tenant or user, and every minute of waiting raises them by one. The last column names the sessions that
have the devices, or for whose earlier requests they are reserved. A request beyond its tenant's quota of devices in
slices waits behind all others.`,
		Example: `  pathways queue
  pathways queue --json | jq '.[] | .session'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := p.report(cmd)
			if err != nil {
				return err
			}
			if (settings{cmd.Flags()}).flag("json") {
				return p.printJSON(jsonOf(r.SliceWaits))
			}
			if len(r.SliceWaits) == 0 {
				fmt.Fprintln(p.out, "no request for a slice waits")
				return nil
			}
			w := p.table()
			showQueue(w, r, "")
			return w.Flush()
		},
	}
	takeAsking(cmd, "json")
	return cmd
}

// showQueue prints the requests for slices that wait, if any, with something before them.
func showQueue(w io.Writer, r *wire.Report, before string) {
	if len(r.SliceWaits) == 0 {
		return
	}
	head, tenant := tenantsColumn(r)
	names := map[uint32]string{}
	for _, s := range r.Sessions {
		names[s.Session] = ownerText(s) + tenant(s)
	}
	fmt.Fprintf(w, "%sPLACE\tWAITS FOR A SLICE%s\tOF\tPRIORITY\tSINCE\tAT MOST\tDEVICES\n", before, head)
	for i, q := range r.SliceWaits {
		what := status.Count(q.Devices, "device")
		if q.Exclusive {
			what += ", exclusive"
		}
		if q.Island != "" {
			what += ", island " + q.Island
		}
		if q.Kind != "" {
			what += ", " + q.Kind
		}
		left := "no limit"
		if q.LeftMs >= 0 {
			left = fmt.Sprint(wire.Age(q.SinceMs + q.LeftMs))
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%v\t%s\t%s\n", i+1, names[q.Session], what, q.Priority, wire.Age(q.SinceMs), left,
			wire.LacksText(q))
	}
}
