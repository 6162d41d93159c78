// Package epoch joins the drivers of several workers: drivers whose devices have
// an interconnect of their own and must find each other before a client of them is
// created (device.Kind.Join).
//
// A member names its island and the number of members that the island has. When that
// many have joined, an epoch begins: each member gets a number, its node, in the order
// of names, and all of them share a store of keys and values. The members of an epoch
// do not change. When one leaves or is lost, the epoch is over for all of them and its
// store is dropped; each joins again, over a new connection, to be in the next epoch. An
// island has one epoch at a time: further members wait for the next one.
//
// State makes all decisions: it is a state machine that takes one event at a time and
// appends the actions that follow. It has no goroutine, lock, clock or socket, so the
// same events always produce the same actions. Server runs it on the controller's
// connections; Member is the worker's end, and its access to the store.
//
// # What it guarantees
//
// Each request is answered exactly once, unless the epoch ends or the member drops the
// request first. A key is written at most once, so a value that was read stays true.
// Everything that a member can make grow has a bound, and exceeding it fails only that
// member.
//
// # Concurrency
//
// The caller serializes calls of State. All methods of Server and Member may be
// called from any goroutine. core/cluster assembles them.
package epoch

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
)

// Limits bounds what members can make the controller keep. Zero fields take the defaults.
type Limits struct {
	Members int   // at one time; 4096
	Keys    int   // of an epoch; 64 Ki
	Bytes   int64 // of an epoch's keys and values; 63 MiB, so that a message has room for each value
	Key     int   // bytes of a key; 4 KiB
	Waits   int   // pending Gets of a member; 1024
}

func (l Limits) filled() Limits {
	l.Members = cmp.Or(l.Members, 4096)
	l.Keys = cmp.Or(l.Keys, 64<<10)
	l.Bytes = cmp.Or(l.Bytes, 63<<20)
	l.Key = cmp.Or(l.Key, 4<<10)
	l.Waits = cmp.Or(l.Waits, 1024)
	return l
}

// EventKind says what happened.
type EventKind uint8

// The kinds of events.
const (
	Join  EventKind = iota // Member asks to be one of the Nodes members of Island
	Put                    // Member stores Value under Key
	Get                    // Member asks for Key's value, and waits until there is one
	Try                    // Member asks for Key's value if there is one
	Drop                   // Member no longer waits for the answer to its Get of this ID
	Leave                  // Member has left or is lost; Err says why
)

// Event is one input of Step.
type Event struct {
	Kind   EventKind
	Member uint64 // number of the member's connection, never reused
	Name   string // of Join: for people, and for the order of nodes
	Island string
	Nodes  int
	ID     uint64 // of a request, chosen by the member
	Key    string
	Value  []byte // State keeps it; the caller must not change it
	Err    error
}

// ActionKind says what to do.
type ActionKind uint8

// The kinds of actions.
const (
	Welcome ActionKind = iota // accept To: it waits for its epoch
	Refuse                    // refuse To, because of Err
	Begin                     // tell To that Epoch has begun
	Answer                    // answer To's request ID with Value or Err
	Over                      // tell To that its epoch is over because of Err, and end its connection
)

// Action is one output of Step.
type Action struct {
	Kind        ActionKind
	To          uint64
	Epoch       uint64 // of Begin and Over
	Node, Nodes int
	ID          uint64
	Value       []byte
	Err         error
}

// State holds the members of all islands. Use New to make one.
type State struct {
	limits  Limits
	members map[uint64]*member
	islands map[string]*island
	last    uint64 // epoch
	out     []Action
}

type island struct {
	name    string
	nodes   int // number of members of an epoch, as its members say
	waiting []*member
	epoch   *epoch // nil between epochs
}

type member struct {
	number uint64
	name   string
	island *island
	epoch  *epoch            // nil while it waits for one
	waits  map[uint64]string // keys, by request
}

type epoch struct {
	number  uint64
	members []*member // by node
	values  map[string][]byte
	bytes   int64 // of keys and values
	waiting map[string][]wait
}

type wait struct {
	by *member
	id uint64
}

// New returns a State without members.
func New(l Limits) *State {
	return &State{limits: l.filled(), members: map[uint64]*member{}, islands: map[string]*island{}}
}

// Step applies one event, appends the actions that follow to out, in order, and returns
// out.
func (st *State) Step(ev Event, out []Action) []Action {
	st.out = out
	m := st.members[ev.Member]
	switch {
	case ev.Kind == Join:
		st.join(&ev, m)
	case m == nil: // its epoch is over; Over was sent
	case ev.Kind == Leave:
		st.leave(m, ev.Err)
	case ev.Kind == Drop:
		st.drop(m, ev.ID)
	default:
		if value, waits, err := st.ask(m, &ev); !waits {
			st.answer(m, ev.ID, value, err)
		}
	}
	out, st.out = st.out, nil
	return out
}

func (st *State) answer(m *member, id uint64, value []byte, err error) {
	st.out = append(st.out, Action{Kind: Answer, To: m.number, ID: id, Value: value, Err: err})
}

const (
	maxNodes = 1 << 12 // members of an epoch; the default of Limits.Members
	maxName  = 1 << 10 // bytes of a name
)

func (st *State) join(ev *Event, known *member) {
	is := st.islands[ev.Island]
	var err error
	switch {
	case known != nil:
		err = status.New(status.AlreadyExists, "member %s has joined already", ev.Name)
	case ev.Nodes < 1 || ev.Nodes > maxNodes || len(ev.Name) > maxName || len(ev.Island) > maxName:
		err = status.New(status.InvalidArgument,
			"member %.100s asks for an epoch of %d nodes; expected 1 to %d, and names of at most %d bytes", ev.Name, ev.Nodes,
			maxNodes, maxName)
	case len(st.members) >= st.limits.Members:
		err = status.New(status.ResourceExhausted, "%d workers wait for an epoch or are in one, which is the limit",
			len(st.members))
	case is != nil && is.nodes != ev.Nodes:
		err = status.New(status.FailedPrecondition, "worker %s says that island %q has %d nodes, and worker %s says %d; "+
			"start all of them with the same --nodes", ev.Name, ev.Island, ev.Nodes, is.someone().name, is.nodes)
	}
	if err != nil {
		st.out = append(st.out, Action{Kind: Refuse, To: ev.Member, Err: err})
		return
	}
	if is == nil {
		is = &island{name: ev.Island, nodes: ev.Nodes}
		st.islands[is.name] = is
	}
	m := &member{number: ev.Member, name: ev.Name, island: is, waits: map[uint64]string{}}
	st.members[m.number] = m
	is.waiting = append(is.waiting, m)
	st.out = append(st.out, Action{Kind: Welcome, To: m.number})
	st.gather(is)
}

// someone returns one of an island's members.
func (is *island) someone() *member {
	if is.epoch != nil {
		return is.epoch.members[0]
	}
	return is.waiting[0]
}

// gather begins an epoch if enough members wait: with those that came first, numbered
// in the order of names, like their devices in the island.
func (st *State) gather(is *island) {
	if is.epoch != nil || len(is.waiting) < is.nodes {
		return
	}
	st.last++
	e := &epoch{number: st.last, members: slices.Clone(is.waiting[:is.nodes]), values: map[string][]byte{},
		waiting: map[string][]wait{}}
	is.waiting = slices.Delete(is.waiting, 0, is.nodes)
	is.epoch = e
	slices.SortFunc(e.members, func(a, b *member) int {
		return cmp.Or(placement.CompareNames(a.name, b.name), cmp.Compare(a.number, b.number))
	})
	for node, m := range e.members {
		m.epoch = e
		st.out = append(st.out, Action{Kind: Begin, To: m.number, Epoch: e.number, Node: node, Nodes: is.nodes})
	}
}

// leave removes a member and ends its epoch.
func (st *State) leave(m *member, why error) {
	delete(st.members, m.number)
	is, e := m.island, m.epoch
	if e == nil {
		is.waiting = slices.DeleteFunc(is.waiting, func(o *member) bool { return o == m })
	} else {
		is.epoch = nil
		err := status.New(status.Aborted, "epoch %d of island %q is over: worker %s is gone", e.number, is.name, m.name)
		if why != nil {
			err = status.New(status.Aborted, "%w: %w", err, why)
		}
		for _, o := range e.members {
			if o != m {
				delete(st.members, o.number)
				st.out = append(st.out, Action{Kind: Over, To: o.number, Epoch: e.number, Err: err})
			}
		}
	}
	if is.epoch == nil && len(is.waiting) == 0 {
		delete(st.islands, is.name)
		return
	}
	st.gather(is)
}

// ask carries out a request; waits reports whether it has to wait for its key.
func (st *State) ask(m *member, ev *Event) (value []byte, waits bool, err error) {
	e := m.epoch
	if e == nil {
		return nil, false, status.New(status.FailedPrecondition,
			"the epoch of worker %s has not begun; it has no keys before that", m.name)
	}
	if len(ev.Key) > st.limits.Key {
		return nil, false, status.New(status.InvalidArgument, "the key has %d bytes; expected at most %d", len(ev.Key),
			st.limits.Key)
	}
	value, there := e.values[ev.Key]
	switch {
	case ev.Kind == Put:
		return nil, false, st.put(e, ev)
	case there:
		return value, false, nil
	case ev.Kind == Try:
		return nil, false, status.New(status.NotFound, "there is no key %q in epoch %d", ev.Key, e.number)
	case len(m.waits) >= st.limits.Waits:
		return nil, false, status.New(status.ResourceExhausted, "worker %s waits for %d keys, which is the limit", m.name,
			len(m.waits))
	}
	if _, twice := m.waits[ev.ID]; twice {
		return nil, false, status.New(status.InvalidArgument,
			"request %d of worker %s is pending already; its ID must be new", ev.ID, m.name)
	}
	m.waits[ev.ID] = ev.Key
	e.waiting[ev.Key] = append(e.waiting[ev.Key], wait{m, ev.ID})
	return nil, true, nil
}

func (st *State) put(e *epoch, ev *Event) error {
	if old, there := e.values[ev.Key]; there {
		if bytes.Equal(old, ev.Value) {
			return nil
		}
		return status.New(status.AlreadyExists, "key %q already has another value in epoch %d", ev.Key, e.number)
	}
	size := int64(len(ev.Key)) + int64(len(ev.Value))
	if len(e.values) >= st.limits.Keys || e.bytes+size > st.limits.Bytes {
		return status.New(status.ResourceExhausted, "epoch %d has %d keys of %d bytes; another one of %d bytes would "+
			"exceed the limit of %d keys and %d bytes", e.number, len(e.values), e.bytes, size, st.limits.Keys, st.limits.Bytes)
	}
	e.values[ev.Key] = ev.Value
	e.bytes += size
	for _, w := range e.waiting[ev.Key] {
		delete(w.by.waits, w.id)
		st.answer(w.by, w.id, ev.Value, nil)
	}
	delete(e.waiting, ev.Key)
	return nil
}

// drop removes a pending Get; it does nothing if the Get has been answered.
func (st *State) drop(m *member, id uint64) {
	key, ok := m.waits[id]
	if !ok {
		return
	}
	delete(m.waits, id)
	left := slices.DeleteFunc(m.epoch.waiting[key], func(w wait) bool { return w == wait{m, id} })
	if m.epoch.waiting[key] = left; len(left) == 0 {
		delete(m.epoch.waiting, key)
	}
}
