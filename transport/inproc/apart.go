package inproc

import (
	"cmp"
	"slices"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
)

// Pairs of processes that do not reach each other, for simulation.

// pair is two processes, the lower number first.
type pair struct{ a, b uint64 }

func pairOf(a, b uint64) pair { return pair{min(a, b), max(a, b)} }

// apart is a pair whose processes do not reach each other.
type apart struct {
	since  time.Time
	why    error
	timers []*time.Timer // of their patience
}

// Part cuts two processes apart, until Meet: neither hears of the other's blocks. After
// Patience, and a little later at the second, they give up what is under way between
// them. It is for hubs that have a Delay.
func (h *Hub) Part(a, b uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := pairOf(a, b)
	if h.apart[p] != nil {
		return
	}
	cut := &apart{since: time.Now(), why: status.New(status.Unavailable, "the network between them is cut")}
	h.apart[p] = cut
	for i, ends := range [][2]uint64{{a, b}, {b, a}} {
		cut.timers = append(cut.timers,
			time.AfterFunc(h.Patience+time.Duration(i)*h.Delay(a, b), func() { h.giveUp(p, cut, ends[0], ends[1]) }))
	}
}

// giveUp fails what an end of a pair has under way with the other.
func (h *Hub) giveUp(p pair, cut *apart, at, other uint64) {
	h.mu.Lock()
	x, there := h.exchanges[at], h.exchanges[other]
	if h.apart[p] != cut || x == nil || there == nil {
		h.mu.Unlock()
		return
	}
	err := status.New(status.Unavailable, "%s and %s cannot reach each other, and try again: %w", x.name(at),
		there.name(other), cut.why) // as each calls itself: neither need have heard of the other
	expected := x.table.Forsake(other, err) // with the lock: Meet comes before, or after
	h.mu.Unlock()
	x.failAll(nil, expected, err, func(t *transfer) bool { return t.from.self == other || t.to.self == other })
}

// Meet undoes Part.
func (h *Hub) Meet(a, b uint64) {
	h.mu.Lock()
	cut := h.apart[pairOf(a, b)]
	if cut == nil {
		h.mu.Unlock()
		return
	}
	delete(h.apart, pairOf(a, b))
	for i, x := range []*Exchange{h.exchanges[a], h.exchanges[b]} {
		cut.timers[i].Stop()
		if x != nil {
			x.table.Regain(a + b - x.self)
		}
	}
	h.release()
}

// Apart lists the processes that this one does not reach.
func (x *Exchange) Apart() (all []transport.Apart) {
	x.hub.mu.Lock()
	defer x.hub.mu.Unlock()
	for p, cut := range x.hub.apart {
		if other := p.a + p.b - x.self; p == pairOf(x.self, other) && x.hub.exchanges[other] != nil {
			all = append(all, transport.Apart{Peer: other, Since: cut.since, Why: cut.why})
		}
	}
	slices.SortFunc(all, func(a, b transport.Apart) int { return cmp.Compare(a.Peer, b.Peer) })
	return all
}
