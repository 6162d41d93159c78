// Package match matches blocks that are offered under a key with processes that expect them, whichever comes first. It
// is the one table of an exchange.
//
// The table is bounded by the code that fills it: an expectation is its own process's, an offer a peer's, which the
// exchange bounds. Operations that have failed and peers that were lost are remembered, so that blocks that come for
// them later do not stay; the oldest are forgotten, when nothing speaks of them any more. It may be used from any
// goroutine and makes no call.
package match

import (
	"cmp"
	"slices"
	"sync"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
)

// Expected says what a process wants done with a block. See transport.Exchange.Expect.
type Expected struct {
	Peer    uint64
	Key     transport.Key
	Size    int64
	Into    []byte         // memory for the bytes, where they have a place
	At      strided.Layout // of the bytes in it
	Arrived func(transport.Block, error)
}

// ExpectBlock returns what Exchange.Expect expects.
func ExpectBlock(peer uint64, key transport.Key, size int64, into []byte,
	arrived func(transport.Block, error)) *Expected {
	return &Expected{Peer: peer, Key: key, Size: size, Into: into, At: strided.Dense(int64(len(into))), Arrived: arrived}
}

// ExpectPart returns what is expected by Exchange.ExpectPart.
func ExpectPart(peer uint64, key transport.Key, part transport.Part, arrived func(error)) *Expected {
	return &Expected{Peer: peer, Key: key, Size: part.At.Bytes(), Into: part.Data, At: part.At,
		Arrived: func(_ transport.Block, err error) { arrived(err) }}
}

type slot struct {
	peer uint64
	key  transport.Key
}

type group struct{ space, id uint64 }

// Table holds offers of type O and expectations that have not met.
type Table[O any] struct {
	mu       sync.Mutex
	offers   map[slot]O
	expected map[slot]*Expected
	failed   Recent[group]
	lost     Recent[uint64]
	away     map[uint64]error // peers that cannot be reached for now
	dropped  Recent[slot]     // that were expected of such, and are not any more
	closed   error
}

// New makes an empty table.
func New[O any]() *Table[O] {
	return &Table[O]{offers: map[slot]O{}, expected: map[slot]*Expected{}, away: map[uint64]error{}}
}

// Offer looks for who expects a key. If none does, and there is no error, the offer is kept.
//
// Errors: that of the operation, of the peer or of the table; ALREADY_EXISTS where
// the key was offered before.
func (t *Table[O]) Offer(peer uint64, key transport.Key, offer O) (*Expected, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.refused(peer, key); err != nil {
		return nil, err
	}
	s := slot{peer, key}
	if e := t.expected[s]; e != nil {
		delete(t.expected, s)
		return e, nil
	}
	if err := t.dropped.Why(s); err != nil {
		return nil, err
	}
	if _, ok := t.offers[s]; ok {
		return nil, status.New(status.AlreadyExists, "process %d offers a block twice under the key %v", peer, key)
	}
	t.offers[s] = offer
	return nil, nil
}

// Expect looks for the offer of a key. If there is none, and no error is given, the expectation is kept.
func (t *Table[O]) Expect(e *Expected) (offer O, found bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := slot{e.Peer, e.Key}
	if offer, found = t.offers[s]; found {
		delete(t.offers, s)
		return offer, true, nil
	}
	if err := t.refused(e.Peer, e.Key); err != nil {
		return offer, false, err
	}
	if err := t.away[e.Peer]; err != nil {
		t.dropped.Add(s, err)
		return offer, false, err
	}
	if t.expected[s] != nil {
		return offer, false, status.New(status.AlreadyExists, "a block from process %d is expected twice under the key %v",
			e.Peer, e.Key)
	}
	t.expected[s] = e
	return offer, false, nil
}

// Refused is the error for an operation or peer that has ended, or nil.
func (t *Table[O]) Refused(peer uint64, key transport.Key) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refused(peer, key)
}

func (t *Table[O]) refused(peer uint64, key transport.Key) error {
	if t.closed != nil {
		return t.closed
	}
	if err := t.lost.Why(peer); err != nil {
		return err
	}
	return t.failed.Why(group{key.Space, key.ID})
}

// Withdraw takes an offer out, if it is there.
func (t *Table[O]) Withdraw(peer uint64, key transport.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.offers, slot{peer, key})
}

// Fail takes out what there is of an operation, and remembers it.
func (t *Table[O]) Fail(space, id uint64, err error) ([]O, []*Expected) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed.Add(group{space, id}, err)
	return t.take(func(s slot) bool { return s.key.Space == space && s.key.ID == id })
}

// Lose takes out what there is from a peer, and remembers it.
func (t *Table[O]) Lose(peer uint64, err error) ([]O, []*Expected) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost.Add(peer, err)
	delete(t.away, peer)
	return t.take(func(s slot) bool { return s.peer == peer })
}

// Forsake takes out what is expected from a peer that cannot be reached, and refuses
// what will be, until Regain. Offers stay: they have come.
func (t *Table[O]) Forsake(peer uint64, err error) []*Expected {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.away[peer] = err
	var expected []*Expected
	for _, s := range some(t.expected, func(s slot) bool { return s.peer == peer }) {
		expected = append(expected, t.expected[s])
		delete(t.expected, s)
		t.dropped.Add(s, err)
	}
	return expected
}

// Away is why a peer cannot be reached, or nil.
func (t *Table[O]) Away(peer uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.away[peer]
}

// Regain ends Forsake. Blocks that were expected meanwhile stay refused.
func (t *Table[O]) Regain(peer uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.away, peer)
}

// Close takes out all. Nothing is kept any more.
func (t *Table[O]) Close(err error) ([]O, []*Expected) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed == nil {
		t.closed = err
	}
	return t.take(func(slot) bool { return true })
}

func (t *Table[O]) take(of func(slot) bool) (offers []O, expected []*Expected) {
	for _, s := range some(t.offers, of) {
		offers = append(offers, t.offers[s])
		delete(t.offers, s)
	}
	for _, s := range some(t.expected, of) {
		expected = append(expected, t.expected[s])
		delete(t.expected, s)
	}
	return offers, expected
}

// some returns those of the keys that which is true of, in an order that does not depend on the map's.
func some[V any](all map[slot]V, which func(slot) bool) (some []slot) {
	for s := range all {
		if which(s) {
			some = append(some, s)
		}
	}
	slices.SortFunc(some, func(a, b slot) int {
		return cmp.Or(cmp.Compare(a.peer, b.peer), cmp.Compare(a.key.Space, b.key.Space), cmp.Compare(a.key.ID, b.key.ID),
			cmp.Compare(a.key.Part, b.key.Part))
	})
	return some
}

// Len returns how many offers and expectations wait.
func (t *Table[O]) Len() (offers, expected int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.offers), len(t.expected)
}
