package controller

import (
	"strings"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// A worker's unix sockets can be dialed only from its host, and its loopback addresses only from its network namespace.
// A process that cannot dial a worker at any address is told so when it joins, or when the worker does, and not when
// the first array moves. The controller dials addresses of other kinds before a worker joins: see core/cluster.

// spot is where a process runs, as it says itself.
type spot struct{ host, network string }

func spotOf(h *wire.Hello) spot { return spot{h.Host, h.Network} }

// reaches reports whether a process here can dial one at there that has these addresses. In case of doubt it can, for
// example if a network is not known.
func (here spot) reaches(there spot, addresses []string) bool {
	for _, a := range addresses {
		switch wire.WhereFrom(a) {
		case wire.FromItsHost:
			if here.host == there.host {
				return true
			}
		case wire.FromItsNetwork:
			if here.network == there.network || here.network == "" || there.network == "" {
				return true
			}
		default:
			return true
		}
	}
	return len(addresses) == 0 // within one process
}

// reachesWorker reports whether a process here can dial a worker.
func (here spot) reachesWorker(w *worker) bool {
	return w.anywhere || here.reaches(w.spot, w.offer.Addresses)
}

// apartFrom returns why a worker that joins and one of the present workers cannot both dial each other, or nil.
//
// Errors: INVALID_ARGUMENT for addresses of the one that joins, FAILED_PRECONDITION for
// those of the other.
func (st *State) apartFrom(h *wire.Hello) error {
	at, addresses := spotOf(h), h.Worker.Addresses
	for _, o := range st.present {
		switch {
		case !o.spot.reaches(at, addresses):
			return status.New(status.InvalidArgument,
				"worker %s is refused, since worker %s, on another machine or in another container, cannot reach it at %s: "+
					"start it with --listen and an address of its machine that others reach", h.Name, o.name,
				strings.Join(addresses, " or "))
		case !at.reachesWorker(o):
			return unreached(h.Name, o)
		}
	}
	return nil
}

// countConfined counts a worker that not every process can dial when it comes, or goes, by 1 or -1.
func (st *State) countConfined(w *worker, by int) {
	if !w.anywhere {
		st.confined += by
	}
}

// unreached is the error of a process that cannot dial a worker which is there.
func unreached(who string, w *worker) error {
	return status.New(status.FailedPrecondition,
		"%s cannot reach worker %s, on another machine or in another container, which listens at %s: "+
			"start that worker again with --listen and an address of its machine that others reach", who, w.name,
		strings.Join(w.offer.Addresses, " and "))
}
