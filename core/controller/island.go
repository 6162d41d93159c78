package controller

import "github.com/openpathways/pathways/core/schedule"

// The order of gangs is core/schedule's. An island has one schedule. The controller passes events to it (feed) and
// carries out its actions: start for a run whose turn has come, refused for one that gets no turn. Both may tell the
// schedule something in turn. The feed that is under way carries out what follows from that too, so actions are carried
// out one after the other, in the order of the schedule.

// island is the order of an island's gangs.
type island struct {
	name     string
	index    int // in State.islands
	sched    *schedule.State
	held     map[uint64]*gang  // by ticket: submitted and not started
	acts     []schedule.Action // that have yet to be carried out
	draining bool              // a feed is carrying them out
}

// addIsland adds an island without devices, under placement's number for it. It keeps that number as long as the
// cluster lives, since slice_index of a device never changes.
func (st *State) addIsland(name string) {
	is := st.newIsland(name)
	st.islands = append(st.islands, is)
	st.keepIsland(is)
}

// newIsland makes an island without devices.
func (st *State) newIsland(name string) *island {
	var order schedule.Policy = &schedule.FIFO{Window: st.limits.Window, Share: max(1, st.limits.Window/2)}
	if !st.config.FirstCome {
		order = &schedule.Fair{Gangs: st.limits.Window}
	}
	return &island{name: name, index: len(st.islands), held: map[uint64]*gang{}, sched: schedule.New(schedule.Config{
		MaxQueued: st.limits.Sessions * st.lineUpTo(), Policy: order, OneByOne: !st.config.FirstCome})}
}

// resume continues schedules that stopped after they had placed one gang. It reports whether there were any.
func (st *State) resume() (some bool) {
	for _, is := range st.islands {
		if is.sched.More() {
			some = true
			st.feed(is, schedule.Event{Kind: schedule.Resume})
		}
	}
	return some
}

// feed passes an event to an island's schedule, and carries out the actions that follow.
func (st *State) feed(is *island, ev schedule.Event) {
	ev.Now = st.now
	is.acts = is.sched.Step(ev, is.acts)
	if is.draining {
		return
	}
	is.draining = true
	for i := 0; i < len(is.acts); i++ {
		a := is.acts[i]
		g := is.held[a.ID]
		if g == nil {
			continue
		}
		delete(is.held, a.ID)
		if a.Kind == schedule.Start {
			st.start(g)
		} else {
			st.refused(g, a.Err)
		}
	}
	clear(is.acts)
	is.acts = is.acts[:0]
	is.draining = false
}
