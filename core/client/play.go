package client

import (
	"github.com/openpathways/pathways/core/program"
	"github.com/openpathways/pathways/core/status"
)

var errNoGraphs = status.New(status.Unimplemented, "this version plays no graphs yet")

// Define implements Cluster.
func (r *remote) Define(g *program.Graph) (uint64, error) { return 0, errNoGraphs }

// Play implements Cluster.
func (r *remote) Play(p *PlaySpec) error { return errNoGraphs }

// ForgetGraph implements Cluster.
func (r *remote) ForgetGraph(graph uint64) {}
