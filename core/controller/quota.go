package controller

import (
	"fmt"
	"strings"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Quotas of tenants. A tenant's quota of device memory is for its sessions what a device's size is for all: a gang that
// would exceed it is held until others of the tenant have freed enough, or fails, as admission.go says for devices.
// Only gangs of its own tenant wait behind it. A slice beyond its tenant's quota waits in the queue of slices
// (core/placement), unless it needs more than the quota by itself. Sessions beyond a quota are refused, since a client
// may ask again.

// namesOf lists sessions for messages.
func namesOf(all []*session) string {
	const most = 4 // that a message names
	var names []string
	for _, s := range all[:min(len(all), most)] {
		names = append(names, s.owner())
	}
	if more := len(all) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, "; ")
}

// maySession returns why a tenant may not have another session, nil if it may.
func (st *State) maySession(t *tenancy) error {
	if most := t.terms.Sessions; most > 0 && len(t.sessions) >= most {
		return status.New(status.ResourceExhausted, "tenant %s has %s, which is its quota: %s; end one, or ask the "+
			"cluster's operator for more", t.terms.Name, status.Count(len(t.sessions), "session"), namesOf(t.sessions))
	}
	return nil
}

// sliceHolders returns the sessions whose slices use a tenant's quota, by number of devices, largest first.
func (st *State) sliceHolders(t *tenancy) (holders []*wire.Report_Holder) {
	for _, s := range t.sessions {
		alone, shared := 0, 0
		for _, slice := range st.layout.Slices(s.id) {
			if slice.Want.Exclusive {
				alone += len(slice.Devices)
			} else {
				shared += len(slice.Devices)
			}
		}
		if alone > 0 {
			holders = append(holders, s.holds(alone, wire.HasExclusive))
		}
		if shared > 0 {
			holders = append(holders, s.holds(shared, wire.HasSlice))
		}
	}
	byDevices(holders)
	return holders
}

// beyondQuota returns the device on which a gang exceeds its tenant's quota most, with the bytes that the tenant has
// there and those that the gang needs; the device is -1 if there is none. With donated, bytes that the gang will take
// over are deducted; with later, bytes that will be freed by themselves.
func (st *State) beyondQuota(g *gang, donated, later bool) (device int, has, need int64) {
	t := g.s.tenant
	if t.terms.DeviceMemory == 0 || g.bytes == 0 {
		return -1, 0, 0
	}
	specs := st.needOf(g, donated)
	specs[0].ShardBytes = g.bytes // the quota is of arrays
	return st.ledger.Beyond(&t.memory, specs, t.terms.DeviceMemory, later)
}

// isInQuota reports whether a gang fits into its tenant's quota.
func (st *State) isInQuota(g *gang) bool {
	on, _, _ := st.beyondQuota(g, false, false)
	if on >= 0 && g.donates() {
		on, _, _ = st.beyondQuota(g, true, false)
	}
	return on < 0
}

// quotaProspect is prospectOf for a gang that is held for its tenant's quota.
func (st *State) quotaProspect(g *gang) ([]*session, prospect) {
	on, _, need := st.beyondQuota(g, true, true)
	switch {
	case on < 0: // what leaves is enough
		return nil, hopeful
	case need > g.s.tenant.terms.DeviceMemory:
		st.giveUp(g, st.noRoom(g, "that is more than the tenant may have"))
		return nil, changed
	}
	return st.prospectWith(g, st.inTheWay(g, on))
}

// inTheWay returns the other sessions of a gang's tenant that have memory on a device.
func (st *State) inTheWay(g *gang, device int) (all []*session) {
	for _, s := range g.s.tenant.sessions {
		if s != g.s && st.ledger.On(ledger.Owner(s.id), device) > 0 {
			all = append(all, s)
		}
	}
	return all
}

// quotaText returns the need of a gang that is held for its tenant's quota, and the sessions that use the quota.
func (st *State) quotaText(g *gang) (text string, device int) {
	t := g.s.tenant
	on, has, need := st.beyondQuota(g, true, false)
	if on < 0 {
		return "", on
	}
	var parts []string
	for _, s := range t.sessions {
		if bytes := st.ledger.On(ledger.Owner(s.id), on); bytes > 0 {
			parts = append(parts, fmt.Sprintf("%s of %s", shape.BytesText(bytes), s.owner()))
		}
	}
	text = fmt.Sprintf("%s makes %s, and the arrays of tenant %s may have %s on a device, of which %s are in use",
		g.name(), shape.BytesText(need), t.terms.Name, shape.BytesText(t.terms.DeviceMemory), shape.BytesText(has))
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text, on
}
