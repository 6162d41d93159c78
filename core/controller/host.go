package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Quotas of host memory. Bytes that a client sends or fetches, and those of a transfer, are in the memory of a worker's
// machine while their operation is under way. A tenant's quota bounds these bytes on each worker. An operation that
// would exceed it is held until earlier ones have ended, or fails if it exceeds the quota by itself. Clients know the
// quota, so that they do not gather puts into one that fails though each of them would not.
//
// # Why nothing waits without end
//
// The operations in the way are under way and have their memory: they wait only for their clients, or for other
// operations under way. If they belong to another session of the tenant, whose client may have stopped, the wait takes
// at most Config.MemoryWait.
//
// # Who waits
//
// Only operations of the same tenant wait, in the order in which they came, if they have a worker in common: see
// precedes. If a CPU device reads an array where its bytes have arrived, these count as that device's memory from then
// on, for which a tenant has another quota.

// hostUse is the memory that an operation takes on the machine of a worker.
type hostUse struct {
	slot  int // the worker's
	bytes int64
}

// hostUses returns the memory that a gang takes on workers' machines, nil if its tenant has no quota for that. Message
// is its operation, or the node of its play.
func (g *gang) hostUses(message any) []hostUse {
	if g.s.tenant.terms.HostMemory == 0 {
		return nil
	}
	takes := hostTakes{}
	switch m := message.(type) {
	case *wire.Put:
		takes.makes(g.place, shapeOf(m.Array).HostBytes())
	case *wire.Fetch:
		if o := g.s.objects[m.Object]; o != nil {
			takes.add(o.place.in, m.Device, o.bytes)
		}
	case *wire.Transfer:
		takes.transfer(g, m)
	case *node:
		if m.program == nil {
			takes.node(g, m)
		}
	}
	return takes.sorted()
}

// rowsOn returns how many rows of what a gang makes are on a worker.
func (g *gang) rowsOn(slot int) (n int) {
	for _, d := range g.place.rows {
		if g.place.in.slot(d) == slot {
			n++
		}
	}
	return n
}

// hostTakes is bytes by worker's slot.
type hostTakes map[int]int64

// add counts bytes of a virtual device.
func (h hostTakes) add(in *binding, device uint32, bytes int64) { h[in.slot(device)] += bytes }

// makes counts an array that is made, with so many bytes on each device.
func (h hostTakes) makes(at *place, bytes int64) {
	for _, d := range at.rows {
		h.add(at.in, d, bytes)
	}
}

// transfer counts the shards that a Transfer makes and reads, each once, unless the driver copies them.
func (h hostTakes) transfer(g *gang, m *wire.Transfer) {
	in := g.place.in
	made := map[uint32]bool{}
	read := map[[2]uint64]bool{}
	for _, v := range m.Moves {
		o, isWhole := g.s.objects[v.Source], len(v.Start)+len(v.Size) == 0
		if isWhole && in.slot(v.From) == in.slot(v.To) {
			continue // the driver copies it
		}
		if !made[v.To] {
			made[v.To] = true
			h.add(in, v.To, shapeOf(m.Array).HostBytes())
		}
		if key := [2]uint64{v.Source, uint64(v.From)}; o != nil && !read[key] {
			read[key] = true
			h.add(in, v.From, o.bytes)
		}
	}
}

// node counts the shards that a transfer of a graph makes and reads. The controller keeps only the devices of its
// moves, so those that the driver copies count, too.
func (h hostTakes) node(g *gang, n *node) {
	h.makes(n.at, n.sizes[0])
	for i := range n.reads {
		if o := g.s.objects[g.play.object(n.reads[i].object)]; o != nil {
			n.reads[i].on.each(func(d int) { h.add(n.at.in, uint32(d), o.bytes) })
		}
	}
}

// sorted returns the uses by slot.
func (h hostTakes) sorted() (all []hostUse) {
	for slot, n := range h {
		all = append(all, hostUse{slot, n})
	}
	slices.SortFunc(all, func(a, b hostUse) int { return cmp.Compare(a.slot, b.slot) })
	return all
}

// bookHost counts a gang's memory on workers' machines, until leaveHost.
func (st *State) bookHost(g *gang) {
	if g.hosts == nil {
		return
	}
	t := g.s.tenant
	if t.hosts == nil {
		t.hosts = map[int]map[*session]int64{}
	}
	for _, u := range g.hosts {
		if t.hosts[u.slot] == nil {
			t.hosts[u.slot] = map[*session]int64{}
		}
		t.hosts[u.slot][g.s] += u.bytes
	}
	g.onHosts = true
}

func (st *State) leaveHost(g *gang) {
	if !g.onHosts {
		return
	}
	for _, u := range g.hosts {
		of := g.s.tenant.hosts[u.slot]
		if of[g.s] -= u.bytes; of[g.s] == 0 {
			delete(of, g.s)
		}
	}
	g.onHosts = false
}

// hostBytes returns the memory that a tenant's operations under way take on a worker's machine.
func (t *tenancy) hostBytes(slot int) (sum int64) {
	for _, bytes := range t.hosts[slot] {
		sum += bytes
	}
	return sum
}

// beyondHost returns the worker on whose machine a gang exceeds its tenant's quota most, with the bytes that the tenant
// has there and those that the gang needs; the slot is -1 if there is none.
func (st *State) beyondHost(g *gang) (slot int, has, need int64) {
	t := g.s.tenant
	if t.terms.HostMemory == 0 {
		return -1, 0, 0
	}
	slot, most := -1, t.terms.HostMemory
	for _, u := range g.hosts {
		if now := t.hostBytes(u.slot); now+u.bytes > most {
			slot, has, need, most = u.slot, now, u.bytes, now+u.bytes
		}
	}
	return slot, has, need
}

// isInHostQuota reports whether a gang fits into its tenant's quota.
func (st *State) isInHostQuota(g *gang) bool {
	slot, _, _ := st.beyondHost(g)
	return slot < 0
}

// hostProspect is prospectOf for a gang that is held for its tenant's quota of host memory.
func (st *State) hostProspect(g *gang) prospect {
	slot, _, need := st.beyondHost(g)
	switch {
	case slot < 0:
		return hopeful
	case need > g.s.tenant.terms.HostMemory:
		st.giveUp(g, st.noRoom(g, "that is more than the tenant may have"))
		return changed
	case len(st.onHost(g, slot)) == 0: // its own client's operations are in the way
		return hopeful
	}
	return st.untilPatient(g)
}

// onHost returns the other sessions of a gang's tenant whose operations under way take memory of a worker's machine.
func (st *State) onHost(g *gang, slot int) (all []*session) {
	for s := range g.s.tenant.hosts[slot] {
		if s != g.s {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *session) int { return cmp.Compare(a.id, b.id) })
	return all
}

// hostShortage is the error of a gang that is held for its tenant's quota of host memory, nil if it is within that.
func (st *State) hostShortage(g *gang, why string) error {
	slot, has, need := st.beyondHost(g)
	if slot < 0 {
		return nil
	}
	t, name := g.s.tenant, st.workers[slot].name // a gang whose worker is lost is not held
	var parts []string
	for _, s := range append([]*session{g.s}, st.onHost(g, slot)...) {
		if bytes := t.hosts[slot][s]; bytes > 0 {
			parts = append(parts, fmt.Sprintf("%s of %s", shape.BytesText(bytes), s.owner()))
		}
	}
	takes := shape.BytesText(need)
	if n := g.rowsOn(slot); g.kind == wire.KindPut && n > 1 {
		takes += fmt.Sprintf(" (%d shards of %s)", n, shape.BytesText(need/int64(n)))
	}
	use := shape.BytesText(has) + " are in use"
	if len(parts) > 0 {
		use += ": " + strings.Join(parts, ", ")
	}
	return status.New(status.ResourceExhausted, "%s takes %s of the memory of worker %s's machine, and operations of "+
		"tenant %s may take %s there at a time, of which %s; %s; move less at a time, or ask the cluster's operator for a "+
		"larger quota (host-memory) [%s, on worker %s]", g.name(), takes, name, t.terms.Name,
		shape.BytesText(t.terms.HostMemory), use, why, g.name(), name)
}
