package command

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/wire"
)

func (p *program) tenants() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tenants",
		Short: "list the tenants of a cluster, with their shares, quotas and use",
		Long: `Lists the tenants in the controller's file (--tenants of pathways controller and pathways up) with the use of their
sessions. PROMISED is the part of device time that a tenant gets while all tenants with sessions want more than theirs;
GOT is the part that it used in the last ten seconds.`,
		Example: `  pathways tenants
  pathways tenants --json | jq '.[] | .name'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.listTenants(cmd.Context(), settings{cmd.Flags()}, false)
		},
	}
	takeAsking(cmd, "json")
	apply := &cobra.Command{
		Use:   "apply",
		Short: "make the controller read its file of tenants again",
		Long: `Makes the controller read its file of tenants (--tenants) again, and lists them; for operators only. A file with an
error changes nothing, and the error is printed. Sessions continue with the new settings of their tenant, or with the
old ones if the file no longer names it.`,
		Example: `  pathways tenants apply`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.listTenants(cmd.Context(), settings{cmd.Flags()}, true)
		},
	}
	takeAsking(apply, "json")
	cmd.AddCommand(apply)
	return cmd
}

// listTenants prints the tenants of a cluster. With apply, the controller first reads its file of them again.
func (p *program) listTenants(ctx context.Context, s settings, apply bool) error {
	address, secret, err := p.controllerOf(s)
	if err != nil {
		return err
	}
	if apply {
		if _, err := p.ask(ctx, address, secret, &wire.Ask{ApplyTenants: true}); err != nil {
			return err
		}
	}
	r, err := p.ask(ctx, address, secret, nil)
	if err != nil {
		return err
	}
	if s.flag("json") {
		return p.printJSON(jsonOf(r.Tenants))
	}
	if len(r.Tenants) == 0 {
		fmt.Fprintln(p.out, "the controller has no file of tenants (--tenants); each session is a tenant of its own")
		return nil
	}
	w := p.table()
	showTenants(w, r)
	return w.Flush()
}

// showTenants prints the tenants of a cluster, if it has any.
func showTenants(w io.Writer, r *wire.Report) {
	if len(r.Tenants) == 0 {
		return
	}
	fmt.Fprintln(w, "TENANT\tCLASS\tWEIGHT\tBOUNDS\tPROMISED\tGOT\tSESSIONS\tIN SLICES\tMEMORY\tHOST MEMORY\tDEVICE TIME")
	for _, t := range r.Tenants {
		name := t.Name
		if t.Removed {
			name += " (removed)"
		}
		fmt.Fprintf(w, "%s\t%s\t%g\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%v\n", name, t.Class, t.Weight, boundsOf(t),
			part(t.Promised), part(t.Got), ofQuota(t.Sessions, t.MaxSessions), inSlices(t),
			ofEach(t.Bytes, t.MostBytes, t.DeviceMemory, "device"),
			ofEach(t.HostBytes, t.MostHostBytes, t.HostMemory, "worker"), deviceTime(t.DeviceNs))
	}
}

// boundsOf says which part of the devices' time a tenant has at least and at most.
func boundsOf(t *wire.Report_Tenant) string {
	if t.Guaranteed == 0 && t.AtMost == 1 {
		return "-"
	}
	return fmt.Sprintf("%.0f-%s", 100*t.Guaranteed, part(t.AtMost))
}

// ofQuota formats how many of something a tenant has, and of how many if there is a quota.
func ofQuota(has, most uint32) string {
	if most == 0 {
		return fmt.Sprint(has)
	}
	return fmt.Sprintf("%d of %d", has, most)
}

// inSlices formats how many devices the slices of a tenant have, which is counted where there is a quota of it.
func inSlices(t *wire.Report_Tenant) string {
	if t.MaxSliceDevices == 0 {
		return "-"
	}
	return ofQuota(t.SliceDevices, t.MaxSliceDevices)
}

// ofEach formats the bytes that a tenant has in all, and where it has most, of how many, if each has a quota.
func ofEach(all, most, quota int64, each string) string {
	if quota == 0 {
		return size(all)
	}
	return fmt.Sprintf("%s (%s of %s a %s)", size(all), size(most), size(quota), each)
}

// part formats a part of the whole for people.
func part(of float64) string { return fmt.Sprintf("%.0f %%", 100*of) }
