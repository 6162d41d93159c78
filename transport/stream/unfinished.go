package stream

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
)

const (
	// longFrame is the payload from which on a frame is kept outside of Go's heap until all of it has come.
	longFrame = 256 << 10
	// maxUnfinished is how much the connections of a listener hold of long frames before most of them wait.
	maxUnfinished = 256 << 20
	// slowTime is how often frames are looked at while others wait, and slowBytes what must have come of each.
	slowTime  = time.Second
	slowBytes = 1 << 20
)

// An arrival is the memory of a long payload on its way. It is mapped, not allocated: it takes memory as bytes come,
// not as many as were announced, and is given back to the system at once where the frame never ends.
type arrival struct {
	conn   *Conn
	memory []byte

	// Guarded by unfinished.mu.
	came  int64
	seen  int64 // came, when it was looked at last
	waits bool  // for room, and not for its peer
	fresh bool  // it began, or ceased to wait, after that
}

// unfinished are the long frames on their way over the connections of a listener. Where they hold too much together,
// the one that began first goes on and the others are not read, so that all end one after the other and the sum stays
// below maxUnfinished, a frame, and a read of each. Meanwhile a connection whose peer is slow ends: others wait for it.
// A nil one does not count.
type unfinished struct {
	mu   sync.Mutex
	room sync.Cond
	all  []*arrival    // as they began
	sum  int64         // of came
	most int64         // that do not wait; maxUnfinished, where it is 0
	slow time.Duration // slowTime, where it is 0
	look *time.Timer   // runs while some wait
}

// begin makes the memory of a frame. The caller calls end.
//
// Errors: RESOURCE_EXHAUSTED.
func (u *unfinished) begin(c *Conn, size int) (*arrival, error) {
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, status.New(status.ResourceExhausted, "there is no memory for a message of %d bytes from %s: %w", size, c.peer, err)
	}
	f := &arrival{conn: c, memory: memory, fresh: true}
	if u != nil {
		u.mu.Lock()
		u.room.L = &u.mu
		u.all = append(u.all, f)
		u.mu.Unlock()
	}
	return f, nil
}

// grew counts bytes that have come, and waits for room for more.
func (u *unfinished) grew(f *arrival, bytes int) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	f.came += int64(bytes)
	u.sum += int64(bytes)
	if !u.full(f) {
		return
	}
	inside := &f.conn.reader.inside // the time that a frame may take begins anew
	inside.Store(false)
	for f.waits = true; u.full(f); u.room.Wait() {
		if u.look == nil {
			for _, other := range u.all {
				other.seen, other.fresh = other.came, false
			}
			u.look = time.AfterFunc(cmp.Or(u.slow, slowTime), u.endSlow)
		}
	}
	f.waits, f.fresh = false, true
	inside.Store(true)
}

// full reports whether a frame has to wait. Called with mu.
func (u *unfinished) full(f *arrival) bool {
	return u.sum > cmp.Or(u.most, maxUnfinished) && u.all[0] != f
}

// endSlow ends the connections that others wait for in vain.
func (u *unfinished) endSlow() {
	u.mu.Lock()
	u.look = nil
	var slow []*Conn
	for _, f := range u.all {
		if !f.waits && !f.fresh && f.came-f.seen < slowBytes {
			slow = append(slow, f.conn)
		}
		f.fresh = false
	}
	u.room.Broadcast() // one that still waits has the next look made
	u.mu.Unlock()
	for _, c := range slow { // their readers meet the error, and call end
		c.fail(status.New(status.ResourceExhausted, "%s sent less than %d bytes of a long message in %v, while others waited: more than %d bytes are on their way", c.peer, slowBytes, slowTime, maxUnfinished))
	}
}

// end gives a frame's memory back.
func (u *unfinished) end(f *arrival) {
	_ = unix.Munmap(f.memory) // it was mapped
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sum -= f.came
	u.all = slices.DeleteFunc(u.all, func(other *arrival) bool { return other == f })
	u.room.Broadcast()
}
