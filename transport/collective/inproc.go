package collective

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/transport/pages"
)

// InprocBoard is a board all of whose members are in this process, for tests and simulation. They share one mapping of
// its memory, and sleep on channels instead of in the system: so in a bubble of testing/synctest time goes on while
// they do. The members are the same code as those in processes of their own.
type InprocBoard struct {
	data  []byte
	unmap sync.Once
	bells channels
}

// NewInprocBoard makes a board with so many places. The caller closes it, after its members.
func NewInprocBoard(places int) (*InprocBoard, error) {
	f, err := CreateBoard(places)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping stays
	data, err := mapBoard(f)
	if err != nil {
		return nil, err
	}
	return &InprocBoard{data: data}, nil
}

// Open makes the member at a place, which no other one ever has.
//
// Errors: INVALID_ARGUMENT where the board has no such place.
func (b *InprocBoard) Open(place int) (*Board, error) { return newBoard(b.data, place, &b.bells) }

// Close unmaps the memory. A second Close does nothing: other memory may be in its place.
func (b *InprocBoard) Close() {
	b.unmap.Do(func() { _ = pages.Unmap(b.data) })
}

// channels are the bells of members in one process.
type channels struct {
	mu     sync.Mutex
	asleep map[*atomic.Uint32]chan struct{} // closed by the next wake
}

func (c *channels) sleep(word *atomic.Uint32, n uint32, most time.Duration) {
	c.mu.Lock()
	if word.Load() != n { // under mu: a wake that comes behind the change finds the channel
		c.mu.Unlock()
		return
	}
	woken := c.asleep[word]
	if woken == nil {
		if c.asleep == nil {
			c.asleep = map[*atomic.Uint32]chan struct{}{}
		}
		woken = make(chan struct{})
		c.asleep[word] = woken
	}
	c.mu.Unlock()
	if most <= 0 {
		<-woken
		return
	}
	over := time.NewTimer(most)
	defer over.Stop()
	select {
	case <-woken:
	case <-over.C:
	}
}

func (c *channels) wake(word *atomic.Uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if woken := c.asleep[word]; woken != nil {
		close(woken)
		delete(c.asleep, word)
	}
}
