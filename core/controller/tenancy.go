package controller

import (
	"cmp"
	"maps"
	"slices"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/tenant"
	"github.com/openpathways/pathways/core/wire"
)

// tenancy is a tenant that is in the file of tenants, or still has sessions. Without such a file each session has one
// of its own.
type tenancy struct {
	terms    tenant.Tenant
	removed  bool         // it is no longer in the file
	sessions []*session   // by number
	memory   ledger.Group // what they have; of no use without a file
	// The memory that their operations under way take on workers' machines, by slot; counted only if there was a quota.
	hosts  map[int]map[*session]int64
	share  *schedule.Tenant // nil: as the schedule takes a session without a tenant
	spent  uint64           // device time of gangs that have ended, in nanoseconds
	recent lately           // the same, of the last seconds
}

// owner is the owner of its sessions' slices, for core/placement.
func (t *tenancy) owner() string { return "tenant " + t.terms.Name }

// errNoTable is the answer to an operator who asks to read a file of tenants when there is none.
var errNoTable = status.New(status.FailedPrecondition,
	"the controller has no file of tenants; start it with --tenants FILE (pathways controller, pathways up)")

// setTable handles the new contents of the file of tenants. It answers the operator who asked for that; asked is 0 if a
// signal did. An invalid file changes nothing.
func (st *State) setTable(table *tenant.Table, err error, asked uint64) {
	if err != nil {
		st.warn(about{kind: wire.EventTenants}, "the file of tenants cannot be used; what it said before holds", err)
	} else {
		st.apply(table)
		st.note(about{kind: wire.EventTenants}, "the file of tenants was read: "+
			status.Count(len(table.All()), "tenant"), nil)
	}
	c := st.conns.Get(asked)
	switch {
	case c == nil:
	case err != nil:
		st.send([]uint64{asked}, wire.KindGoodbye, &wire.Goodbye{Status: wire.Of(err)})
	default:
		st.send([]uint64{asked}, wire.KindReport, st.Answer(&wire.Ask{OnlyEvents: true}))
	}
}

// apply applies a table of tenants. Sessions stay with their tenants, on the new terms; those of tenants that are no
// longer named keep the old terms.
func (st *State) apply(table *tenant.Table) {
	st.table = table
	for name, t := range st.tenants {
		if _, named := table.Named(name); !named {
			if t.removed = true; len(t.sessions) == 0 {
				delete(st.tenants, name)
			}
		}
	}
	for _, terms := range table.All() {
		t := st.tenants[terms.Name]
		if t == nil {
			st.tenant++
			t = &tenancy{share: &schedule.Tenant{ID: st.tenant}}
			st.tenants[terms.Name] = t
		}
		if t.terms.HostMemory != terms.HostMemory {
			for _, s := range t.sessions {
				st.markDirty(s) // its client keeps to the quota
			}
		}
		t.terms, t.removed = terms, false
		t.share = &schedule.Tenant{ID: t.share.ID, Weight: terms.Weight, Class: int(terms.Class),
			AtLeast: terms.Guaranteed}
		if terms.AtMost < 1 {
			t.share.AtMost = terms.AtMost
		}
		for _, is := range st.islands {
			st.feed(is, schedule.Event{Kind: schedule.Terms, Gang: schedule.Gang{Tenant: t.share}})
		}
		st.layout.SetQuota(t.owner(), terms.SliceDevices)
	}
	st.serve = true
	st.stir()
}

// tenantOf returns the tenant of a session by the name that its credential has.
//
// Errors: PERMISSION_DENIED for a credential of no tenant.
func (st *State) tenantOf(name string) (*tenancy, error) {
	if st.table == nil {
		return new(tenancy), nil
	}
	t := st.tenants[cmp.Or(name, tenant.Default)]
	switch {
	case (t == nil || t.removed) && name != "":
		return nil, status.New(status.PermissionDenied,
			"the credential is that of tenant %s, which the cluster's file of tenants does not name; ask its operator", name)
	case t == nil || t.removed:
		return nil, status.New(status.PermissionDenied, "the sessions of this cluster belong to tenants, and the credential "+
			"names none; name the file with your tenant's token by PATHWAYS_TOKEN_FILE, or a certificate with the URI "+
			"pathways://tenant/NAME by PATHWAYS_TLS_CERT and PATHWAYS_TLS_KEY")
	}
	return t, nil
}

// joins records that a session of a tenant begins, which has nothing in the ledger yet. It is the one with the
// highest number.
//
// Errors: those of ledger.Join.
func (st *State) joins(t *tenancy, s *session) error {
	t.sessions = append(t.sessions, s)
	if st.table == nil {
		return nil
	}
	return st.ledger.Join(ledger.Owner(s.id), &t.memory)
}

// leaves records that a session of a tenant has ended. What it has in the ledger counts until its gangs have ended.
func (st *State) leaves(t *tenancy, s *session) {
	t.sessions = slices.DeleteFunc(t.sessions, func(other *session) bool { return other == s })
	if t.removed && len(t.sessions) == 0 {
		delete(st.tenants, t.terms.Name)
	}
}

// spend counts the device time of a gang of some devices that has ended.
func (st *State) spend(s *session, time uint64, devices int) {
	st.spent += time
	s.spent += time
	s.tenant.spent += time
	s.tenant.recent.add(st.now, time, uint64(devices))
}

// recentSeconds is the time over which the views show what tenants got: long enough that a few long computations do not
// dominate it, and short enough that a person sees a change.
const recentSeconds = 10

// lately sums the device time of the last seconds.
type lately struct {
	by   [recentSeconds]uint64 // by second, modulo their number
	last int64                 // the second of the newest
}

func (r *lately) pass(now int64) (second int64) {
	second = now / 1e9
	for r.last = max(r.last, second-recentSeconds); r.last < second; {
		r.last++
		r.by[r.last%recentSeconds] = 0
	}
	return second
}

// add counts the time that some devices have computed until now, in the seconds in which they can have done so: a gang
// that took longer than all of them does not make more of a device's time than there is.
func (r *lately) add(now int64, time, devices uint64) {
	newest, room := r.pass(now), uint64(now%1e9)*devices
	for second := newest; time > 0 && second > newest-recentSeconds; second-- {
		part := min(time, room)
		r.by[(second+recentSeconds)%recentSeconds] += part
		time, room = time-part, 1e9*devices
	}
}

func (r *lately) sum(now int64) (sum uint64) {
	r.pass(now)
	for _, n := range r.by {
		sum += n
	}
	return sum
}

// tenantReports returns what tenants may have, and how much device time they had.
func (st *State) tenantReports() (all []*wire.Report_Tenant) {
	names := slices.Sorted(maps.Keys(st.tenants))
	var present []*schedule.Tenant
	for _, name := range names {
		if t := st.tenants[name]; len(t.sessions) > 0 {
			present = append(present, t.share)
		}
	}
	promised := schedule.Shares(present)
	for _, name := range names {
		t := st.tenants[name]
		recent := t.recent.sum(st.now)
		r := &wire.Report_Tenant{Name: name, Weight: t.terms.Weight, Class: t.terms.Class.String(),
			Guaranteed: t.terms.Guaranteed, AtMost: t.terms.AtMost, Removed: t.removed, Sessions: uint32(len(t.sessions)),
			MaxSessions: uint32(t.terms.Sessions), DeviceNs: int64(t.spent), RecentNs: int64(recent),
			DeviceMemory: t.terms.DeviceMemory, HostMemory: t.terms.HostMemory,
			MaxSliceDevices: uint32(t.terms.SliceDevices)}
		if t.terms.SliceDevices > 0 {
			r.SliceDevices = uint32(st.layout.Owned(t.owner()))
		}
		if t.terms.DeviceMemory > 0 {
			r.MostBytes = st.ledger.MostOf(&t.memory)
		}
		if t.terms.HostMemory > 0 {
			for slot := range t.hosts {
				r.MostHostBytes = max(r.MostHostBytes, t.hostBytes(slot))
			}
		}
		if len(t.sessions) > 0 {
			r.Promised, promised = promised[0], promised[1:]
		}
		if st.devices > 0 {
			r.Got = float64(recent) / (recentSeconds * 1e9 * float64(st.devices))
		}
		all = append(all, r)
	}
	return all
}

// sumTenants adds up what the sessions in a report have, by tenant.
func sumTenants(r *wire.Report) {
	by := map[string]*wire.Report_Tenant{}
	for _, t := range r.Tenants {
		by[t.Name] = t
	}
	for _, s := range r.Sessions {
		t := by[s.Tenant]
		if t == nil {
			continue
		}
		t.HostBytes += s.HostBytes
		for _, bytes := range s.Bytes {
			t.Bytes += bytes
		}
	}
}
