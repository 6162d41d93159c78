package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/openpathways/pathways/core/epoch"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/inproc"
	"github.com/openpathways/pathways/transport/stream"
)

// ServeMember runs a worker whose driver is one of nodes members of an epoch of its
// island: it waits for the others, lets kind make the driver, and serves like
// ServeWorker, until ctx ends, the epoch is over or the controller is gone. It does not
// use c.Driver.
//
// A call of the driver that involves members that are gone may never return, and then
// ServeMember does not return either. So it calls over, which may be nil, as soon as the
// worker's part in its epoch has ended, with the reason; over may end the process. next
// reports whether the worker may join the next epoch. over may be called twice.
//
// Errors: those of ServeWorker and of kind; ABORTED if the epoch is over and the worker
// may join the next one.
func ServeMember(ctx context.Context, c WorkerConfig, kind device.Kind, nodes int,
	over func(next bool, why error)) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	var pending *epoch.Pending
	err = c.reach(ctx, o, func(o stream.Options) (err error) {
		pending, err = epoch.Dial(ctx,
			epoch.Config{Dialer: o, Address: c.Address, Name: c.Name, Host: Host(), Island: c.Island, Nodes: nodes})
		return err
	})
	var member *epoch.Member
	if err == nil {
		c.Log.Info("the worker waits for the other members of its island", "nodes", nodes)
		member, err = pending.Wait(ctx)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer member.Close()
	within, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		select {
		case <-member.Done():
			if over != nil {
				over(member.Err())
			}
			cancel()
		case <-within.Done():
		}
	})
	err = c.join(within, o, kind, member)
	if next, why := member.Err(); next {
		if over != nil {
			over(next, why)
		}
		return why
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// join makes the driver and serves with it.
func (c WorkerConfig) join(ctx context.Context, o stream.Options, kind device.Kind, member *epoch.Member) error {
	driver, err := kind.Join(ctx, member.Membership())
	if err != nil {
		return err
	}
	defer driver.Close()
	c.Driver = driver
	in, err := meet(ctx, member, driver)
	if err != nil {
		return err
	}
	err = c.serve(ctx, o, in)
	if _, why := member.Err(); err == nil {
		err = why
	}
	member.Close() // before the driver's Close, which may wait for the others
	return err
}

// joined describes the epoch that a worker's driver is a member of.
type joined struct {
	member     *epoch.Member
	membership device.Membership

	mu    sync.Mutex     // guards the rest
	ids   [][]int        // numbers of the drivers' devices, by node and local device
	nodes map[uint64]int // of this epoch, by process
}

// meet exchanges the numbers of the drivers' devices with the other members.
func meet(ctx context.Context, member *epoch.Member, d device.Driver) (*joined, error) {
	m := member.Membership()
	in := &joined{member: member, membership: m, ids: make([][]int, m.Nodes), nodes: map[uint64]int{}}
	value, err := json.Marshal(idsOf(d))
	if err != nil {
		return nil, err
	}
	key := func(node int) string { return fmt.Sprintf("pathways/devices/%d", node) }
	if err := m.Store.Put(ctx, key(m.Node), value); err != nil {
		return nil, err
	}
	for node := range in.ids {
		value, err := m.Store.Get(ctx, key(node))
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(value, &in.ids[node]); err != nil {
			return nil, status.New(status.Internal, "node %d of epoch %d reports the devices %q: %w", node, m.Epoch, value, err)
		}
	}
	return in, nil
}

// idsOf returns the numbers of a driver's devices.
func idsOf(d device.Driver) (ids []int) {
	for _, v := range d.Devices() {
		ids = append(ids, v.ID)
	}
	return ids
}

// add makes a driver that this process has made the next node, and returns its number.
func (in *joined) add(d device.Driver) (node uint32) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ids = append(in.ids, idsOf(d))
	return uint32(len(in.ids) - 1)
}

// come records a worker that may be a member.
func (in *joined) come(p *wire.Process) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if p.Epoch == in.membership.Epoch && int(p.Node) < len(in.ids) {
		in.nodes[p.Number] = int(p.Node)
	}
}

// device implements worker.Config.DeviceID.
func (in *joined) device(process uint64, local int) (id int, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	node, ok := in.nodes[process]
	if !ok || local < 0 || local >= len(in.ids[node]) {
		return 0, false
	}
	return in.ids[node][local], true
}

// fellows is an exchange that reports the workers that are members of the same epoch.
type fellows struct {
	transport.Mover
	in *joined
}

// Peers implements transport.Exchange.
func (f fellows) Peers(come []*wire.Process, gone []uint64, why error) {
	for _, p := range come {
		f.in.come(p)
	}
	f.Mover.Peers(come, gone, why)
}

// Join makes one driver of each kind in this process, as the members of one epoch. The
// caller owns and closes the drivers; leave ends the epoch.
//
// Errors: the first error of a kind; there is nothing to close then.
func Join(ctx context.Context, kinds []device.Kind) (drivers []device.Driver, leave func(), err error) {
	network := inproc.NewNetwork(transport.Credentials{})
	l, err := network.Listen(inProcessName)
	if err != nil {
		return nil, nil, err
	}
	epochs := epoch.NewServer(epoch.Limits{}, nil)
	var running sync.WaitGroup
	running.Go(func() {
		for in, err := l.Accept(); err == nil; in, err = l.Accept() {
			epochs.Take(in)
		}
	})
	members := make([]*epoch.Member, len(kinds))
	leave = func() {
		for _, m := range members {
			if m != nil {
				m.Close()
			}
		}
		l.Close()
		running.Wait()
		epochs.Close()
	}
	drivers = make([]device.Driver, len(kinds))
	joining, failed := context.WithCancelCause(ctx) // if one fails, the others stop waiting for it
	defer failed(nil)
	var all sync.WaitGroup
	for i, kind := range kinds {
		all.Go(func() {
			pending, err := epoch.Dial(joining,
				epoch.Config{Dialer: network, Address: l.Address(), Name: fmt.Sprintf("w%d", i), Nodes: len(kinds)})
			if err == nil {
				members[i], err = pending.Wait(joining)
			}
			if err == nil {
				drivers[i], err = kind.Join(joining, members[i].Membership())
			}
			if err != nil {
				failed(err)
			}
		})
	}
	all.Wait()
	if err := context.Cause(joining); err != nil {
		for _, d := range drivers {
			if d != nil {
				_ = d.Close() // its error has reached the caller already
			}
		}
		leave()
		return nil, nil, err
	}
	return drivers, leave, nil
}
