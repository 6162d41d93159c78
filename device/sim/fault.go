package sim

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/openpathways/pathways/core/status"
)

// FailRun makes the nth computation that starts on a device after this call, 1 being
// the next, fail with err after its cost. A gang whose devices wait for each
// other fails on all of them.
func (d *Driver) FailRun(local, n int, err error) error {
	return d.script(local, n, err, func(v *dev) *script { return &v.runs })
}

// FailAlloc makes the nth allocation of an array on a device after this call, 1 being the
// next, fail: the call that would make the array returns err.
func (d *Driver) FailAlloc(local, n int, err error) error {
	return d.script(local, n, err, func(v *dev) *script { return &v.allocs })
}

// FailPiece makes the nth piece of an array that is read from a device or written to it after this call, 1 being the
// next, fail: the call returns err.
func (d *Driver) FailPiece(local, n int, err error) error {
	return d.script(local, n, err, func(v *dev) *script { return &v.pieces })
}

func (d *Driver) script(local, n int, err error, of func(*dev) *script) error {
	v, bad := d.dev(local)
	if bad != nil {
		return bad
	}
	if n < 1 || err == nil {
		return status.New(status.InvalidArgument, "fault %d with error %v: want a number from 1 and an error", n, err)
	}
	d.is.mu.Lock()
	defer d.is.mu.Unlock()
	of(v).fail(n, err)
	return nil
}

// Lose removes a device permanently: its work in flight, and that of gangs with a
// collective that includes it, fails with UNAVAILABLE and the reason, and so does every
// later use of the device and of its arrays.
func (d *Driver) Lose(local int, reason string) error {
	v, err := d.dev(local)
	if err != nil {
		return err
	}
	d.is.mu.Lock()
	defer d.is.unlock()
	if v.lost != nil {
		return nil
	}
	v.lost = status.New(status.Unavailable, "simulated device %d is lost: %s", v.id, reason)
	for _, g := range d.inOrder() {
		for _, s := range g.shards {
			if s == nil || s.on != v || s.over {
				continue
			}
			if g.prog.gang {
				g.abort(d.is, v.lost)
			} else {
				s.end(v.lost)
			}
			break
		}
	}
	d.miss(v, v.lost)
	return nil
}

// Abort implements device.Aborter.
func (d *Driver) Abort(launch int32, err error) {
	d.is.mu.Lock()
	defer d.is.unlock()
	for _, g := range d.inOrder() {
		if g.joins && g.id == launch {
			g.abort(d.is, err)
			return
		}
	}
}

// miss ends the gangs of several members that wait for a device that will never come. The
// caller holds the island's lock.
func (d *Driver) miss(v *dev, err error) {
	if d.member.Nodes <= 1 {
		return
	}
	epoch := d.member.Epoch
	d.is.losses[joint{epoch, v.id}] = err
	for _, g := range inOrder(maps.Values(d.is.launch)) {
		if g.key.epoch == epoch && slices.Contains(g.ids, v.id) {
			g.abort(d.is, err)
		}
	}
}

// inOrder returns the gangs of which shards here are not done, the oldest first: what has a seed repeats.
func (d *Driver) inOrder() []*gang { return inOrder(maps.Keys(d.gangs)) }

func inOrder(gangs iter.Seq[*gang]) []*gang {
	return slices.SortedFunc(gangs, func(a, b *gang) int { return cmp.Compare(a.seq, b.seq) })
}

// forget drops the state of an epoch after its last member has left. The caller holds the
// island's lock.
func (is *Island) forget(epoch uint64) {
	for d := range is.drivers {
		if d.member.Nodes > 1 && d.member.Epoch == epoch {
			return
		}
	}
	for key := range is.losses {
		if key.epoch == epoch {
			delete(is.losses, key)
		}
	}
}
