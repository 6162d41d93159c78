package stream

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
)

// longFrame is the payload from which on a frame is kept outside of Go's heap until all of it has come.
const longFrame = 256 << 10

// maxUnfinished bounds what the connections of a listener have of long frames that have yet to end.
const maxUnfinished = 256 << 20

// An arrival is the memory of a long payload on its way. It is mapped, not allocated: it takes memory as bytes come, not
// as many as were announced, and is given back to the system at once where the frame never ends.
type arrival struct {
	conn   *Conn
	memory []byte
	came   int64 // guarded by unfinished.mu
}

// unfinished are the long frames on their way over the connections of a listener. Where they are too much together,
// the connection ends whose frame began first: one that a peer goes on with ends long before. A nil one does not count.
type unfinished struct {
	mu  sync.Mutex
	all []*arrival // as they began
	sum int64      // of came
}

// begin makes the memory of a frame. The caller calls end.
//
// Errors: RESOURCE_EXHAUSTED.
func (u *unfinished) begin(c *Conn, size int) (*arrival, error) {
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, status.New(status.ResourceExhausted, "there is no memory for a message of %d bytes from %s: %w", size, c.peer, err)
	}
	f := &arrival{conn: c, memory: memory}
	if u != nil {
		u.mu.Lock()
		u.all = append(u.all, f)
		u.mu.Unlock()
	}
	return f, nil
}

// grew counts bytes that have come.
func (u *unfinished) grew(f *arrival, bytes int) {
	if u == nil {
		return
	}
	var ended []*arrival
	u.mu.Lock()
	f.came += int64(bytes)
	u.sum += int64(bytes)
	for sum := u.sum; sum > maxUnfinished; {
		oldest := u.all[len(ended)]
		ended = append(ended, oldest)
		sum -= oldest.came
	}
	u.mu.Unlock()
	for _, f := range ended { // its reader meets the error, and calls end
		f.conn.fail(status.New(status.ResourceExhausted, "%s sent a long message too slowly: it was the oldest of those that together held more than %d bytes", f.conn.peer, maxUnfinished))
	}
}

// end gives a frame's memory back.
func (u *unfinished) end(f *arrival) {
	if u != nil {
		u.mu.Lock()
		u.sum -= f.came
		u.all = slices.DeleteFunc(u.all, func(other *arrival) bool { return other == f })
		u.mu.Unlock()
	}
	_ = unix.Munmap(f.memory) // it was mapped
}
