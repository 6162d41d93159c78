package schedule

import "fmt"

// checkedGangs is the number of known gangs up to which State is checked after every event. A check costs time in
// proportion to the gangs, so this many bound the cost of one event.
const checkedGangs = 128

// checkOften calls check after every event while State knows few gangs, and less often the more it knows: the cost per
// event stays that of checkedGangs gangs. The tests of this package call check itself after every event.
func (s *State) checkOften() {
	if s.sinceCheck++; s.sinceCheck*checkedGangs >= len(s.gangs) {
		s.sinceCheck = 0
		s.check()
	}
}

// check panics if one of State's invariants does not hold. It costs time in proportion
// to the gangs that State knows, and runs only with the build tag invariants.
func (s *State) check() {
	lane, dead := s.checkLanes()
	if queued := dead + s.checkGangs(lane); queued != s.queued {
		panic(fmt.Sprintf("schedule: %d gangs are counted as queued, there are %d", s.queued, queued))
	}
}

// checkLanes checks the list of gangs that hold lanes or wait for them. It returns the list as a set, and how many of
// it are dead.
func (s *State) checkLanes() (lane map[*record]bool, deadGangs int) {
	var busy, lanes mask
	lane = make(map[*record]bool)
	waits := make(map[*record]int32)
	for p := s.first; p != nil; p = p.next {
		switch {
		case !p.multi:
			panic(fmt.Sprintf("schedule: gang %d of one device is in the list of lanes", p.gang.ID))
		case p.next == nil && s.last != p:
			panic("schedule: the list of lanes does not end at its last gang")
		case p.phase == started && lanes.overlaps(&p.gang.Devices.mask):
			panic(fmt.Sprintf("schedule: gang %d started while another gang held one of its lanes", p.gang.ID))
		case p.phase == started && p.lanes != 0:
			panic(fmt.Sprintf("schedule: gang %d has started and waits for a lane", p.gang.ID))
		case p.phase == dead:
			deadGangs++
		}
		lanes.add(&p.gang.Devices.mask)
		busy.add(&p.gang.Devices.mask)
		lane[p] = true
		for _, e := range p.succ {
			if e.lane {
				waits[e.to]++
			}
		}
	}
	for p := s.first; p != nil; p = p.next {
		if waits[p] != p.lanes {
			panic(fmt.Sprintf("schedule: gang %d waits for %d lanes by its own count; there are %d", p.gang.ID, p.lanes,
				waits[p]))
		}
	}
	if busy.remove(&s.busy) || func() bool { b := mask{}; b.add(&s.busy); return b.remove(&lanes) }() {
		panic("schedule: busy is not the union of the lanes")
	}
	return lane, deadGangs
}

// checkGangs checks each gang that can be named, and what it reads of others. It returns how many have not started.
func (s *State) checkGangs(lane map[*record]bool) (queued int) {
	data := make(map[*record]int32)
	for id, r := range s.gangs {
		if r.gang.ID != id || r.gang.of != r || r.failing {
			panic(fmt.Sprintf("schedule: gang %d has a wrong record", id))
		}
		if r.phase < started {
			queued++
		}
		if want := r.multi && (r.phase == placed || r.phase == started); want != lane[r] {
			panic(fmt.Sprintf("schedule: gang %d is in the list of lanes: %t, want %t", id, lane[r], want))
		}
		if r.phase == launched && len(r.succ) > 0 {
			panic(fmt.Sprintf("schedule: gang %d has launched and other gangs still wait for it", id))
		}
		for _, e := range r.succ {
			if e.lane || e.to.gen != e.gen {
				continue
			}
			data[e.to]++
			if r.phase == pending && e.to.phase != pending && e.to.phase != dead {
				panic(fmt.Sprintf("schedule: the policy placed gang %d before gang %d, whose outputs it reads", e.to.gang.ID, id))
			}
		}
	}
	for id, r := range s.gangs {
		if data[r] != r.data {
			panic(fmt.Sprintf("schedule: gang %d waits for %d producers by its own count; there are %d", id, r.data, data[r]))
		}
		if r.phase == placed && r.data == 0 && r.lanes == 0 {
			panic(fmt.Sprintf("schedule: gang %d waits for nothing and has not started", id))
		}
	}
	return queued
}
