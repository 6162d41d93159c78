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

// A worker tells the controller the addresses at which other processes reach it. Before the controller admits the
// worker, it dials the TCP addresses, as another process would. So an address that the worker's certificate does not
// include, an address behind a firewall, and a loopback address of another machine are found when the worker joins, and
// not when the first array is moved there.

// probeTime bounds how long a worker that joins waits for that. In this time the system can resend a lost packet twice.
// It is less than transport.HelloTime, after which the worker would give up.
const probeTime = 5 * time.Second

// maxProbed bounds the addresses to dial; the controller refuses a worker with more addresses.
const maxProbed = 16

// probed returns the addresses of a worker that the controller can dial. It returns none for other processes, for
// workers that say no identity, and if an address is malformed, so that the worker is refused anyway.
func (adm admission) probed(h *wire.Hello) (addresses []string) {
	o := h.GetWorker()
	if h.Role != wire.Role_ROLE_WORKER || len(o.GetIdentity()) == 0 || len(o.GetAddresses()) > maxProbed {
		return nil
	}
	for _, a := range o.Addresses {
		if wire.CheckAddress(a) != nil {
			return nil
		}
		// Without certificates of its own, a controller cannot check an address that needs them.
		if strings.HasPrefix(a, "tcp:") && (adm.probe.TLS != nil || stream.Local(a)) {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// takeProbed admits a worker if it answers at one of its addresses, and refuses it otherwise.
func (adm admission) takeProbed(ctx context.Context, in *transport.Incoming, addresses []string) {
	err := adm.reach(ctx, in.Hello, addresses)
	switch {
	case err == nil:
		adm.server.Take(in)
	case ctx.Err() != nil:
		in.Refuse(status.New(status.Unavailable, "the controller stops"))
	default:
		adm.log.Warn("a worker was refused", "worker", in.Hello.Name, "from", in.Peer(), "reason", err)
		in.Refuse(err)
	}
}

// reach dials addresses of a worker, all at once, until the worker answers at one of them.
//
// Errors: INVALID_ARGUMENT, for the first address.
func (adm admission) reach(ctx context.Context, h *wire.Hello, addresses []string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	answers := make([]chan error, len(addresses))
	for i, a := range addresses {
		answers[i] = make(chan error, 1)
		go func() {
			err := adm.ask(ctx, a, h.Worker.Identity)
			if err == nil {
				cancel() // stops dialing the others
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

// ask asks whether the worker with an identity listens at an address.
func (adm admission) ask(ctx context.Context, address string, identity []byte) error {
	conn, _, err := stream.Dial(ctx, address, &wire.Hello{Role: wire.Role_ROLE_PROBE, Identity: identity}, adm.probe)
	switch {
	case stream.RefusedByPeer(err):
		return nil // the worker's certificate is valid, and the controller's own does not allow it to connect as a client
	case err != nil:
		return err
	}
	conn.Close()
	return nil
}

// unreachable returns the error for a worker that the controller cannot reach, with what to do. why names the address.
func unreachable(address string, h *wire.Hello, why error) error {
	what := "set --listen to an address or a name of its machine that other processes can reach and that its " +
		"certificate includes (pathways certs --host), and open the port in the firewall if there is one"
	if stream.Local(address) && h.Worker.Host != Host() {
		what = "a loopback address can be reached only from its own machine: set --listen to an address or a name of the " +
			"worker's machine that others can reach"
	}
	return status.New(status.InvalidArgument, "worker %s is refused, since the controller cannot reach it: %w; %s",
		h.Name, why, what)
}
