package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/cluster"
)

func (p *program) token() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token ROLE",
		Short: "print the token of a cluster for a role, or a new one: tenant, worker, operator or new",
		Long: `Prints a token of a cluster on this machine, or of the cluster whose own token --token-file names.

  tenant    begins sessions and asks for the status, without the lines of others' code; for notebooks and scripts
  worker    adds devices; for the machines that have them
  operator  does everything, also stop the cluster; this is the cluster's own token
  new       a random one, for a tenant in the file of --tenants; it needs no cluster

The tokens of tenants and workers are made from the cluster's own, always the same ones, and open nothing else. Give each
person and machine only the one it needs, in a file that no other user can read.`,
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
