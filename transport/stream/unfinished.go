package stream

import (
	"cmp"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
)

// longFrame is the payload from which on a frame is kept outside of Go's heap until all of it has come.
const longFrame = 256 << 10

// An arrival is the memory of a long payload on its way. It is mapped, not allocated: it takes memory as bytes come,
// not as many as were announced, and is given back to the system at once where the frame never ends.
type arrival struct {
	conn   *Conn
	memory []byte
	have   int           // bytes that have come; the reader's
	turn   chan struct{} // closed when the frame is granted room; nil: it needs none
	claim  claim         // guarded by unfinished.mu
}

// unfinished carries out what a pool decides for the connections of a listener: frames that have to wait are not read,
// and their senders meet full sockets. The time that a frame may take does not run meanwhile. A nil one lets all go on.
type unfinished struct {
	mu      sync.Mutex
	pool    pool
	of      map[*claim]*arrival // those that need room
	look    *time.Timer         // runs while some wait
	largest int64               // largestFrame, where it is 0
}

// begin makes the memory of a frame. The caller calls end.
//
// Errors: RESOURCE_EXHAUSTED.
func (u *unfinished) begin(c *Conn, size int) (*arrival, error) {
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, status.New(status.ResourceExhausted, "there is no memory for a message of %d bytes from %s: %w", size,
			c.peer, err)
	}
	return &arrival{conn: c, memory: memory}, nil
}

// next returns how much is read next of a frame. If that is more than the connection's allowance, it waits until the
// frame has its turn, or the connection has ended, which reading will tell.
func (u *unfinished) next(f *arrival) []byte {
	left := f.memory[f.have:]
	if u == nil || len(f.memory) <= allowance {
		return left[:min(len(left), longFrame)]
	}
	if f.have < allowance {
		return left[:min(len(left), longFrame, allowance-f.have)]
	}
	if f.turn == nil {
		u.wait(f)
	}
	return left[:min(len(left), longFrame)]
}

func (u *unfinished) wait(f *arrival) {
	f.turn = make(chan struct{})
	u.mu.Lock()
	if u.of == nil {
		u.of = map[*claim]*arrival{}
		u.pool.half = cmp.Or(u.largest, largestFrame)
	}
	f.claim.need = int64(len(f.memory)) - allowance
	u.of[&f.claim] = f
	u.let(u.pool.ask(&f.claim, time.Now()))
	if !f.claim.granted && u.look == nil {
		u.look = time.AfterFunc(lookTime, u.endStalled)
	}
	u.mu.Unlock()
	select {
	case <-f.turn:
		return
	default:
	}
	inside := &f.conn.reader.inside // the time that a frame may take begins again
	inside.Store(false)
	select {
	case <-f.turn:
	case <-f.conn.gone:
	}
	inside.Store(true)
}

// let has frames go on that were granted room. Called with mu.
func (u *unfinished) let(granted []*claim) {
	for _, c := range granted {
		close(u.of[c].turn)
	}
}

// grew counts bytes that have come.
func (u *unfinished) grew(f *arrival, bytes int) {
	f.have += bytes
	if u == nil || f.turn == nil {
		return
	}
	u.mu.Lock()
	u.pool.grew(&f.claim, int64(bytes), time.Now())
	f.claim.whole = f.have == len(f.memory)
	u.mu.Unlock()
}

// endStalled ends the connections that others wait for in vain.
func (u *unfinished) endStalled() {
	u.mu.Lock()
	var ended []*Conn
	for _, c := range u.pool.stalled(time.Now()) {
		ended = append(ended, u.of[c].conn)
	}
	if u.look = nil; len(u.pool.waiting) > 0 {
		u.look = time.AfterFunc(lookTime, u.endStalled)
	}
	u.mu.Unlock()
	for _, c := range ended { // their readers meet the error, and call end
		c.fail(status.New(status.ResourceExhausted,
			"%s sent less than %d bytes of a long message in %v, while others waited to send theirs; send it again on another "+
				"connection", c.peer, stallBytes, stallTime))
	}
}

// unmap frees a frame's memory, and not yet its room in the pool.
func (f *arrival) unmap() { _ = unix.Munmap(f.memory) } // it was mapped

// end frees a frame's room for others.
func (u *unfinished) end(f *arrival) {
	if u == nil || f.turn == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.of, &f.claim)
	u.let(u.pool.end(&f.claim, time.Now()))
	if u.look != nil && len(u.pool.waiting) == 0 {
		u.look.Stop()
		u.look = nil
	}
}
