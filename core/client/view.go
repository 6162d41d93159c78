package client

import (
	"cmp"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// A session's devices outlive their workers. When another worker can take the place of one that was lost, the
// controller offers it, and the answer has its place among the session's operations: see core/controller/rebind.go.
// What is submitted after that exchanges its bytes with the new worker. That both change at the same point is why
// rebind holds order.

// view says which workers' devices a session's devices are. It does not change.
type view struct {
	devices []*wire.Device
	workers []*wire.Process // of the devices, also those that are lost
}

// Devices implements Cluster.
func (r *remote) Devices() []*wire.Device { return r.view.Load().devices }

// checkDevices returns an error if a controller describes devices that a session with so many devices and platforms
// cannot have: who uses the session relies on their numbers. All devices come in their order, as in a Welcome.
func checkDevices(devices []*wire.Device, all, platforms int) error {
	for i, d := range devices {
		number := d.GetNumber()
		switch {
		case int(number) >= all, len(devices) == all && int(number) != i:
			return status.New(status.Internal, "the controller describes device %d in the place of device %d of %d; install "+
				"the same version of openpathways on both sides", number, i, all)
		case int(d.GetPlatform()) >= platforms:
			return status.New(status.Internal, "the controller says that device %d is of platform %d, and names %s; install "+
				"the same version of openpathways on both sides", number, d.GetPlatform(), status.Count(platforms, "platform"))
		}
	}
	return nil
}

// Platforms implements Cluster.
func (r *remote) Platforms() []*wire.Platform { return r.platforms }

// platformOf returns the name of a device's platform.
func (r *remote) platformOf(d *wire.Device) string {
	return r.platforms[d.Platform].GetName()
}

// worker returns the process of the worker that a device is of.
func (r *remote) worker(device uint32) uint64 { return r.view.Load().worker(device) }

func (v *view) worker(device uint32) uint64 { return v.devices[device].Worker }

// WorkerName implements Cluster.
func (r *remote) WorkerName(process uint64) string {
	if slices.Contains(r.welcome.Vacant, process) {
		return ""
	}
	for _, w := range r.view.Load().workers {
		if w.Number == process && w.Name != "" {
			return w.Name
		}
	}
	return strconv.FormatUint(process, 10)
}

// Hosts implements Cluster.
func (r *remote) Hosts() map[uint64]string {
	workers := r.view.Load().workers
	hosts := make(map[uint64]string, len(workers))
	for _, w := range workers {
		hosts[w.Number] = w.Host
	}
	return hosts
}

// lostWorkers records processes that are lost, and why. Their numbers are never used again.
func (r *remote) lostWorkers(processes []uint64, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, process := range processes {
		r.gone[process] = true
	}
	for _, d := range r.view.Load().devices {
		if slices.Contains(processes, d.Worker) {
			r.losesUpTo(d.Number, why)
		}
	}
}

// losesUpTo records that a device has lost what was made until now, and why; nil means for the same reason as before.
// The caller holds mu.
func (r *remote) losesUpTo(device uint32, why error) {
	r.losses[device], r.lossWhy[device] = r.objects.Load(), cmp.Or(why, r.lossWhy[device])
}

// Losses implements Cluster.
func (r *remote) Losses() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.losses)
}

// isLost reports whether a worker is lost.
func (r *remote) isLost(process uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gone[process]
}

// offered takes in that other workers can take the place of lost ones.
func (r *remote) offered(payload []byte) error {
	m := new(wire.Rebind)
	if err := wire.Decode(wire.KindRebind, payload, m); err != nil {
		return err
	}
	if err := checkDevices(m.Devices, len(r.Devices()), len(r.platforms)); err != nil {
		return err
	}
	r.exchange.Peers(m.Workers, nil, nil)
	r.momentsOf(MomentCame, &view{devices: m.Devices, workers: m.Workers}, nil)
	r.running.Go(func() { r.rebind(m) }) // which may wait for a submission, and the reader must not
	return nil
}

// rebind accepts an offer of the controller.
func (r *remote) rebind(m *wire.Rebind) {
	answer, err := proto.Marshal(&wire.Rebind{Epoch: m.Epoch})
	if err != nil {
		panic(err) // a message of ours always encodes
	}
	r.order.Lock()
	defer r.order.Unlock()
	if r.Lost() != nil {
		return
	}
	r.sendPut(false) // its rows are on their way to where they were
	was := r.view.Load()
	next := &view{devices: slices.Clone(was.devices), workers: append(slices.Clone(was.workers), m.Workers...)}
	for _, d := range m.Devices {
		next.devices[d.GetNumber()] = d
	}
	has := map[uint64]bool{}
	for _, d := range next.devices {
		has[d.Worker] = true
	}
	next.workers = slices.DeleteFunc(next.workers, func(p *wire.Process) bool { return !has[p.GetNumber()] })
	r.mu.Lock()
	for _, d := range m.Devices {
		r.losesUpTo(d.GetNumber(), nil)
		r.rebound[d.GetNumber()] = r.op
	}
	r.mu.Unlock()
	r.view.Store(next)
	r.epoch = m.Epoch
	if r.conn.Send(wire.KindRebind, answer) != nil {
		return // the reader ends the session
	}
	bound := &view{devices: m.Devices, workers: m.Workers}
	r.momentsOf(MomentRebound, bound, nil)
}
