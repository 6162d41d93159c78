package cluster

import (
	"context"
	"strings"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/stream"
)

// A worker tells the controller at which addresses others reach it. Before the controller lets it in, it dials those of
// TCP, as another process would. An address that the worker's certificate is not for, one behind a firewall, and a
// loopback address of another machine are found when the worker joins, and not by the first array that is moved there.

// probeTime bounds how long a worker that joins waits for that. It is enough for the system to send a lost packet again
// twice. It is less than transport.HelloTime, after which the worker would give up.
const probeTime = 5 * time.Second

// maxProbed bounds the addresses that are dialled; the controller refuses a worker with more by itself.
const maxProbed = 16

// probed returns the addresses of a worker that the controller can dial. It returns none for all other processes, for
// workers of an older version, which know no probes, and where the form of an address is reason enough to refuse the
// worker.
func (d door) probed(h *wire.Hello) (addresses []string) {
	o := h.GetWorker()
	if h.Role != wire.Role_ROLE_WORKER || len(o.GetIdentity()) == 0 || len(o.GetAddresses()) > maxProbed {
		return nil
	}
	for _, a := range o.Addresses {
		if wire.CheckAddress(a) != nil {
			return nil
		}
		// Without certificates of its own a controller can say nothing about an address that needs them.
		if strings.HasPrefix(a, "tcp:") && (d.probe.TLS != nil || stream.Local(a)) {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// takeProbed lets a worker in that is reached at one of its addresses, and refuses it otherwise.
func (d door) takeProbed(ctx context.Context, in *transport.Incoming, addresses []string) {
	err := d.reach(ctx, in.Hello, addresses)
	switch {
	case err == nil:
		d.server.Take(in)
	case ctx.Err() != nil:
		in.Refuse(status.New(status.Unavailable, "the controller stops"))
	default:
		d.log.Warn("a worker was refused", "worker", in.Hello.Name, "from", in.Peer(), "reason", err)
		in.Refuse(err)
	}
}

// reach dials addresses of a worker, all at once, until the worker answers at one of them.
//
// Errors: INVALID_ARGUMENT, for the first of the addresses.
func (d door) reach(ctx context.Context, h *wire.Hello, addresses []string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	answers := make([]chan error, len(addresses))
	for i, a := range addresses {
		answers[i] = make(chan error, 1)
		go func() {
			err := d.ask(ctx, a, h.Worker.Identity)
			if err == nil {
				cancel() // the others
			}
			answers[i] <- err
		}()
	}
	var first error
	reached := false
	for i, a := range addresses {
		err := <-answers[i]
		switch {
		case err == nil:
			reached = true
		case first == nil:
			first = unreachable(a, h, err)
		}
	}
	if reached {
		return nil
	}
	return first
}

// ask asks at an address whether the worker of an identity listens there.
func (d door) ask(ctx context.Context, address string, identity []byte) error {
	conn, _, err := stream.Dial(ctx, address, &wire.Hello{Role: wire.Role_ROLE_PROBE, Identity: identity}, d.probe)
	switch {
	case stream.RefusedByPeer(err):
		return nil // its certificate is right, and the controller's own is not for connecting to others
	case err != nil:
		return err
	}
	conn.Close()
	return nil
}

// unreachable says why the controller cannot reach a worker at an address, which is in the reason, and what to do.
func unreachable(address string, h *wire.Hello, why error) error {
	what := "listen (--listen) at an address or a name of its machine that other processes reach and that its " +
		"certificate has (pathways certs --host), and open the port where a firewall closes it"
	if stream.Local(address) && h.Worker.Host != Host() {
		what = "a loopback address is reached from its own machine alone: listen (--listen) at an address or a name of the " +
			"worker's machine that others reach"
	}
	return status.New(status.InvalidArgument, "worker %s is refused, since the controller cannot reach it: %w; %s",
		h.Name, why, what)
}
