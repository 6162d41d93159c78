package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/cluster"
)

func (p *program) token() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token ROLE",
		Short: "print a cluster's token for a role (tenant, worker, operator), or a new token",
		Long: `Prints a token of a cluster on this machine, or of the cluster whose own token --token-file names.

  tenant    to begin sessions and see the status, without lines of others' code; for notebooks and scripts
  worker    to add devices; for the machines that have them
  operator  to do everything, including stopping the cluster; this is the cluster's own token
  new       a random token, for a tenant in the file of --tenants; needs no cluster

The tokens of tenants and workers are derived from the cluster's own and are the same each time. Give each person and
machine only the token that it needs, in a file that no other user can read.`,
		Example: `  pathways token tenant > team.token
  pathways token worker --token-file /etc/pathways/token
  (umask 077; pathways token new > research.token)`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "new" {
				fmt.Fprintln(p.out, cluster.NewToken())
				return nil
			}
			own, err := p.ownToken(settings{cmd.Flags()})
			if err != nil {
				return err
			}
			token, err := cluster.RoleToken(own, args[0])
			if err != nil {
				return usage{err}
			}
			fmt.Fprintln(p.out, token)
			return nil
		},
	}
	take(cmd, "cluster", "dir", "token-file")
	return cmd
}

// ownToken returns the own token of the cluster that the options name.
//
// Errors: NOT_FOUND.
func (p *program) ownToken(s settings) (string, error) {
	path := s.text("token-file")
	if path == "" {
		c, err := p.placeOf(s)
		if err != nil {
			return "", err
		}
		if err := c.found(); err != nil {
			return "", err
		}
		path = c.path(cluster.TokenFile)
	}
	return cluster.ReadToken(path)
}
