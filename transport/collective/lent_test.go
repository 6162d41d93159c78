package collective

import (
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// pair is two ranks, each of a process that lends its memory.
type pair struct {
	*world
	g   Gang
	rng *rand.Rand
}

func newPair(t *testing.T) *pair {
	w := newWorld(t, 2, 2)
	w.lend()
	for _, b := range w.boards {
		b.sizes = sizes{block: 4 << 10, piece: 4 << 10}
	}
	p := &pair{w, Gang{ID: 1, Launch: 1, Ranks: blocked(2, 2)}, rand.New(rand.NewPCG(1, 2))}
	w.begin(p.g)
	t.Cleanup(func() {
		w.end(p.g.ID)
		w.close()
	})
	return p
}

// isDirect has the ranks enter a collective on arrays of its own, and returns whether it went directly.
func (p *pair) isDirect(s *spmd.Spec) bool {
	p.hub.t.Helper()
	direct := func() (n uint64) {
		for _, c := range p.engines[1].Counts() {
			if c.Way == Direct {
				n += c.Calls
			}
		}
		return n
	}
	before := direct()
	p.blocks(p.g, s, bring(s, 2, p.rng), p.rng)
	return direct() > before
}

func floats(n int64) shape.Shape { return shape.Shape{DType: shape.F32, Dims: []int64{n}} }

// gradients is an all-reduce of a long array and so many short ones.
func gradients(short int) *spmd.Spec {
	s := allReduce(2, floats(16<<10))
	for i := range short {
		s.Operands = append(s.Operands, floats(int64(i%50)))
	}
	s.Results = s.Operands
	return s
}

// Short arrays that are in no memory which a member lends do not keep the others from being read where they lie, as
// long as there is room for stand-ins.
func TestArraysElsewhereHaveStandIns(t *testing.T) {
	p := newPair(t)
	p.heaps[2].apart = 2 // the short one of two
	s := gradients(1)
	s.Operands[1] = floats(1 << 10) // 4 KiB, and half of it as the part that a member folds
	statustest.Equal(t, p.isDirect(s), false, "the first call is direct")
	statustest.Equal(t, p.isDirect(s), true, "the second call is direct")
	l := &p.engines[2].board.lending
	for _, c := range []struct {
		room, copies int64
		direct       bool
	}{{6<<10 - 1, copiesMax, false}, {standInsMax, 4<<10 - 1, false}, {6 << 10, 4 << 10, true}} {
		l.room, l.copies = c.room, c.copies
		statustest.Equal(t, p.isDirect(s), c.direct, "a call with %d bytes for stand-ins, %d of them for copies, is direct",
			c.room, c.copies)
	}
}

// Many arrays are read where they lie, although a letter about them does not fit into a ring.
func TestManyArraysAreReadWhereTheyLie(t *testing.T) {
	p := newPair(t)
	s := gradients(300)
	p.isDirect(s)
	statustest.Equal(t, p.isDirect(s), true, "the second call is direct")
}

// A file for which there is no number left is mapped later.
func TestFilesThatCannotBeMappedAreTriedAgain(t *testing.T) {
	p := newPair(t)
	s := gradients(0)
	var usual unix.Rlimit
	statustest.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &usual))
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &usual) }) // also if it fails in between
	none := usual
	none.Cur = 0
	statustest.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	for range 3 {
		statustest.Equal(t, p.isDirect(s), false, "a call without files is direct")
	}
	statustest.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &usual))
	for calls := 0; !p.isDirect(s); calls++ {
		if calls == 4 {
			t.Fatal("the file is still not mapped")
		}
	}
}

// Short calls go on while a file is mapped, which may take long.
func TestFilesAreMappedWithoutTheLock(t *testing.T) {
	p := newPair(t)
	l := &p.engines[1].board.lending
	maps, mapped := l.maps, 0
	l.maps = func(process, file uint32, size, inode uint64) ([]byte, error) {
		locked := make(chan struct{})
		go func() {
			l.mu.Lock()
			mapped++
			l.mu.Unlock()
			close(locked)
		}()
		select {
		case <-locked:
		case <-time.After(10 * time.Second):
			t.Error("the lock is held")
		}
		return maps(process, file, size, inode)
	}
	p.isDirect(gradients(0))
	statustest.Equal(t, mapped, 1, "files are mapped")
}

// If a member lends as many files as it may, a segment that no call has used for a while loses its place to another.
func TestSegmentsThatRestLoseTheirPlaces(t *testing.T) {
	p := newPair(t)
	s, h, l := gradients(0), p.heaps[1], &p.engines[1].board.lending
	for slot := 2; slot < filesMax; slot++ {
		l.publish(slot, int(h.file.Fd()), int64(len(h.data)))
	}
	h.put()
	p.isDirect(s)
	statustest.Equal(t, p.isDirect(s), true, "a call with the segment that has the last place is direct")
	first := h.blocks
	h.blocks = nil
	change := func(rest time.Duration, calls int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		f := l.files[first[0].Segment]
		f.used, f.calls = time.Now().Add(-rest), f.calls+calls
	}
	h.put() // elsewhere
	for _, c := range []struct {
		why   string
		rest  time.Duration
		calls int
	}{{"was just used", 0, 0}, {"is used", time.Hour, 1}} {
		change(c.rest, c.calls)
		for range 2 {
			statustest.Equal(t, p.isDirect(s), false, "a call is direct when the only segment with a place %s", c.why)
		}
		change(c.rest, -c.calls)
	}
	p.isDirect(s)
	statustest.Equal(t, p.isDirect(s), true, "a call with another segment is direct")
	for _, b := range first {
		b.Release()
	}
	h.pool.Trim()
	statustest.Equal(t, p.isDirect(s), true, "a call is direct when the segment that had the place has gone")
}
