package ledger

// Group is a set of owners whose objects are counted together, by device: the sessions of a tenant that has a quota.
// The zero Group is empty; owners Join it. It belongs to one Ledger, and an owner that is dropped leaves it.
//
// Its sums are kept like those of all owners (space.go): used and leaves are exact as of the last fold, and no device
// of the group has gained more since than rise.
type Group struct {
	used   []int64 // by device
	leaves []int64 // of that, what leaves by itself
	rise   int64
	round  uint64 // folds that changed something
}

// addUsed adds bytes to each of these devices. The nil Group, of owners in none, counts nothing.
func (g *Group) addUsed(devices Devices, bytes int64) {
	if g != nil {
		g.used = grown(g.used, devices)
		addTo(g.used, devices, bytes)
	}
}

// addLeaves is addUsed for bytes that are leaving.
func (g *Group) addLeaves(devices Devices, bytes int64) {
	if g != nil {
		g.leaves = grown(g.leaves, devices)
		addTo(g.leaves, devices, bytes)
	}
}

// grown returns sums that have a place for each of these devices.
func grown(sums []int64, devices Devices) []int64 {
	for most := int(devices[len(devices)-1]); len(sums) <= most; {
		sums = append(sums, 0)
	}
	return sums
}

// folded records that the sums are exact again.
func (g *Group) folded() {
	if g != nil {
		g.rise = 0
		g.round++
	}
}

func at(sums []int64, d int32) int64 {
	if int(d) < len(sums) {
		return sums[d]
	}
	return 0
}

// mostOn returns the most that the placement's group had on one of its devices at the last fold.
func (g *Group) mostOn(e *extent) int64 {
	if e.mostAt != g.round+1 {
		e.mostAt, e.most = g.round+1, 0
		for _, d := range e.devices {
			e.most = max(e.most, at(g.used, d))
		}
	}
	return e.most
}

// MostOf returns the most that a group has on one device.
func (l *Ledger) MostOf(g *Group) (most int64) {
	l.space.fold()
	for _, used := range g.used {
		most = max(most, used)
	}
	return most
}

// Beyond returns the device on which a group would have most bytes if a request of one of its owners was granted, if
// that is more than limit; with the bytes there that the group has and those that the request needs. Otherwise the
// device is -1. With later, bytes that are leaving do not count. It takes constant time while the group is far from the
// limit; otherwise time in proportion to the devices of the request, and of placements that have changed.
func (l *Ledger) Beyond(g *Group, specs []Spec, limit int64, later bool) (device int, has, need int64) {
	device = -1
	if len(specs) == 0 {
		return device, 0, 0
	}
	first := specs[0].Placement.extent
	most, same := int64(0), true
	for i := range specs {
		most += max(0, specs[i].ShardBytes)
		same = same && (specs[i].ShardBytes <= 0 || specs[i].Placement.extent == first)
	}
	if same && most+g.rise+g.mostOn(first) <= limit {
		return device, 0, 0
	}
	l.space.fold()
	if same && most+g.mostOn(first) <= limit {
		return device, 0, 0
	}
	l.addNeeds(specs)
	most = limit
	for i := range specs {
		for _, d := range specs[i].Placement.devices {
			n, used := l.needs[d], at(g.used, d)
			l.needs[d] = 0 // each device once, and clean for the next call
			if later {
				used -= at(g.leaves, d)
			}
			if all := used + n; n > 0 && (all > most || all == most && device >= 0 && int(d) < device) {
				device, has, need, most = int(d), used, n, all
			}
		}
	}
	return device, has, need
}
