package cluster

import (
	"context"
	"maps"
	"slices"
	"testing/synctest"

	"github.com/openpathways/pathways/core/controller/durable"
	"github.com/openpathways/pathways/core/controller/server"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/link"
)

// What simulations do to a cluster, and ask of it.

func (l *Local) process(name string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parts[name]
}

// Served is closed when a worker has ended, whatever the reason.
func (l *Local) Served(index int) <-chan struct{} { return l.workers[index].served }

// Cut cuts a worker or client off from all others, until Heal. It is, as Heal and
// Break, for clusters with a Network.
func (l *Local) Cut(name string) {
	l.hub.Cut(l.process(name))
	l.network.Cut(name)
}

// Heal undoes Cut.
func (l *Local) Heal(name string) {
	l.network.Heal(name)
	l.hub.Heal(l.process(name))
}

// Part cuts two workers, or a worker and a client, off from each other, until Meet, but
// not from the controller.
func (l *Local) Part(one, other string) { l.hub.Part(l.process(one), l.process(other)) }

// Meet undoes Part.
func (l *Local) Meet(one, other string) { l.hub.Meet(l.process(one), l.process(other)) }

// Break breaks the connection between a worker or client and the controller.
func (l *Local) Break(name string) { l.network.Break(name) }

// Enter has a worker enter the cluster, which does nothing there.
func (l *Local) Enter(ctx context.Context, name string, identity []byte) (transport.Conn, error) {
	conn, welcome, err := link.Dial(ctx, l.network, "inproc:"+inProcessName, &wire.Hello{Role: wire.Role_ROLE_WORKER,
		Name: name, Worker: &wire.WorkerOffer{Island: "another", Platform: &wire.Platform{Name: "sim"},
			Devices: []*wire.LocalDevice{{}}, Identity: identity}})
	if err == nil {
		l.part(name, welcome.Process)
	}
	return conn, err
}

// Restart ends the controller as if its process had died, and starts it again with what store returns: the same
// directory, opened again once the store that the controller had is closed. It returns the controller that has died,
// for the caller to close at the end.
func (l *Local) Restart(store func() *durable.Store) (dead *server.Server, err error) {
	dead = l.server.Load()
	l.config.Store.Close() // what it decides from now on is not kept
	l.listener.Close()
	l.accepting.Wait()
	l.mu.Lock()
	names := slices.Collect(maps.Keys(l.parts))
	l.mu.Unlock()
	for _, name := range names {
		l.network.Break(name)
	}
	synctest.Wait() // nothing else goes on beside what is read from the disk, which takes real time
	l.config.Store = store()
	server, err := l.config.controller()
	if err != nil {
		return dead, err
	}
	l.server.Store(server)
	if l.listener, err = l.network.Listen(inProcessName); err != nil {
		return dead, err
	}
	listener := l.listener
	l.accepting.Go(func() { _ = server.Accept(listener) })
	return dead, nil
}

// ReadTenants has the controller read its file of tenants again, as by SIGHUP.
func (l *Local) ReadTenants() { l.server.Load().ReadTenants() }

// Check says what in the controller does not fit together, or nil.
func (l *Local) Check() error { return l.server.Load().Check() }

// HostMemory is what a worker has, by its index.
func (l *Local) HostMemory(index int) *wire.HostMemory { return l.workers[index].worker.HostMemory() }
