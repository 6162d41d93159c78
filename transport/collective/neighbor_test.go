package collective

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/transport/transporttest"
)

// A test binary that is started with this in its environment is a member of a board, whose others are in the test's
// process: "number place op bytes ends puts". Its files 3 and 4 are the board and the memory that it lends. It enters a
// collective of its gang for each line of its standard input, and says that it has, and then that the result is right.
const neighborEnv = "COLLECTIVE_NEIGHBOR"

// neighbors are what the members of a board do, which have a rank each.
type neighbors struct {
	hosts
	puts bool // operands are in a pool, as if clients had put them
}

// lendsBytes is the memory that each lends.
func (s neighbors) lendsBytes() int64 { return 8 * s.bytes }

// neighbor is one of them.
type neighbor struct {
	number  uint64
	rank    int
	board   *Board
	engine  *Engine
	heap    *heap
	in, out [][]byte
}

func newNeighbor(s neighbors, number uint64, place int, board *os.File, h *heap) (*neighbor, error) {
	b, err := OpenBoard(board, place)
	if err != nil {
		return nil, err
	}
	b.sizes.block = 64 << 10 // so that the arrays are large
	b.Meet(number, place)
	for i := range s.ends {
		b.Meet(uint64(1+i), i)
	}
	b.Lend(int(h.file.Fd()), h.data, h.pool)
	n := &neighbor{number: number, board: b, engine: New(nowhere{number}, 1, b), heap: h}
	n.rank = slices.IndexFunc(s.gang(max(number, uint64(s.ends+1))).Ranks, func(at Place) bool {
		return at.Process == number
	})
	spec := s.spec()
	n.out = [][]byte{h.make(spec.Results[0].Bytes())}
	if s.puts {
		h.put()
	}
	for _, x := range spec.Operands {
		a := h.make(x.Bytes())
		if s.puts {
			block, err := h.arena.Make(int(x.Bytes()))
			if err != nil {
				return nil, err
			}
			h.blocks = append(h.blocks, block)
			a = block.Data
		}
		n.in = append(n.in, a)
	}
	s.bring(n.rank, spec, n.in)
	return n, nil
}

// enter has it enter a collective, and says how that ends.
func (n *neighbor) enter(s neighbors, g Gang, spec *spmd.Spec, ends chan<- error) {
	n.engine.Enter(Call{Launch: g.Launch, Spec: spec, Operands: n.in, Results: n.out, Done: func(err error) {
		if err == nil {
			err = s.check(n.rank, n.out[0])
		}
		ends <- err
	}})
}

// neighborProcess is a member in a process of its own.
func neighborProcess(text string) error {
	var s neighbors
	var number uint64
	var place int
	s.each = 1
	if _, err := fmt.Sscan(text, &number, &place, &s.op, &s.bytes, &s.ends, &s.puts); err != nil {
		return err
	}
	h, err := heapIn(os.NewFile(4, "heap"), s.lendsBytes())
	if err != nil {
		return err
	}
	n, err := newNeighbor(s, number, place, os.NewFile(3, "board"), h)
	if err != nil {
		return err
	}
	g, spec, ends := s.gang(number), s.spec(), make(chan error, 1)
	n.engine.Begin(g)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		n.enter(s, g, spec, ends)
		fmt.Println("entered")
		if err := <-ends; err != nil {
			return err
		}
		fmt.Println("right")
	}
	n.engine.End(number)
	n.engine.Close()
	n.board.Close()
	return nil
}

// other is a member in a process of its own, as the test sees it.
type other struct {
	transporttest.Process
	number uint64
	place  int
	heap   *heap
	stdin  io.Writer
	stdout *bufio.Scanner
}

func (o *other) result(s neighbors) []byte { return o.heap.data[:s.spec().Results[0].Bytes()] }

// sixteenths is how many of 16 elements all over the result of a member have been written.
func (o *other) sixteenths(s neighbors) (written int) {
	x := elements[uint32](o.result(s))
	for i := range 16 {
		if atomic.LoadUint32(&x[i*len(x)/16]) != 0 {
			written++
		}
	}
	return written
}

// neighborhood is the members in the test's process, their board, and who else is started.
type neighborhood struct {
	*testing.T
	neighbors
	spec    *spmd.Spec
	board   *os.File
	near    []*neighbor
	started int    // others
	last    uint64 // number of a member or a gang
}

// killed is how many members of a neighborhood are killed.
const killed = 3

func (w *neighborhood) begin() {
	w.board, w.spec = statustest.Value(CreateBoard(w.ends+1+killed)).OK(w), w.neighbors.spec()
	for i := range w.ends {
		w.last++
		h := statustest.Value(newHeap(w.lendsBytes())).OK(w)
		w.near = append(w.near, statustest.Value(newNeighbor(w.neighbors, w.last, i, w.board, h)).OK(w))
	}
	w.Cleanup(func() {
		for _, n := range w.near {
			n.engine.Close()
			n.board.Close()
		}
		for _, n := range w.near {
			n.heap.close(w)
		}
		w.board.Close()
	})
}

// start starts a member, and has it do two collectives with the others: after the first all have mapped what they lend
// each other.
func (w *neighborhood) start() *other {
	w.last++
	o := &other{number: w.last, place: w.ends + w.started, heap: statustest.Value(newHeap(w.lendsBytes())).OK(w)}
	w.started++
	o.Command = exec.Command(os.Args[0], "-test.run=^$")
	o.Command.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d %d %d %t", neighborEnv, o.number, o.place, w.op, w.bytes,
		w.ends, w.puts))
	o.Command.ExtraFiles = []*os.File{w.board, o.heap.file}
	o.Command.Stderr = os.Stderr
	o.stdin = statustest.Value(o.Command.StdinPipe()).OK(w)
	o.stdout = bufio.NewScanner(statustest.Value(o.Command.StdoutPipe()).OK(w))
	statustest.OK(w, o.Command.Start())
	w.Cleanup(func() {
		_ = o.Command.Process.Kill()
		_ = o.Command.Wait()
		o.heap.close(w)
	})
	for _, n := range w.near {
		n.board.Meet(o.number, o.place)
		n.engine.Begin(w.gang(o.number))
	}
	for range 2 {
		w.tell(o)
		w.right(o, w.enter(o))
	}
	return o
}

// tell tells the member to enter a collective.
func (w *neighborhood) tell(o *other) {
	clear(o.result(w.neighbors))
	statustest.Value(o.stdin.Write([]byte{'\n'})).OK(w)
}

// enter has the members in the test's process enter it, and returns how it ends for each.
func (w *neighborhood) enter(o *other) <-chan error {
	ends := make(chan error, w.ends)
	for _, n := range w.near {
		n.enter(w.neighbors, w.gang(o.number), w.spec, ends)
	}
	return ends
}

// hear waits until the member has said something.
func (w *neighborhood) hear(o *other, what string) {
	for o.stdout.Scan() {
		if o.stdout.Text() == what {
			return
		}
	}
	w.Fatalf("the member has ended, and not said %q", what)
}

// end returns the next of the ends that enter has returned.
func (w *neighborhood) end(ends <-chan error) error {
	select {
	case err := <-ends:
		return err
	case <-time.After(time.Minute):
		w.Fatal("a collective does not end")
		return nil
	}
}

// right waits until a collective has ended everywhere, with the right results.
func (w *neighborhood) right(o *other, ends <-chan error) {
	w.Helper()
	for range w.ends {
		statustest.OK(w, w.end(ends))
	}
	w.hear(o, "right")
}

// reach waits until the member has written so many sixteenths of its result.
func (w *neighborhood) reach(o *other, sixteenths int) {
	for end := time.Now().Add(time.Minute); o.sixteenths(w.neighbors) < sixteenths; runtime.Gosched() {
		if time.Now().After(end) {
			w.Fatal("a collective does not go on")
		}
	}
}

// The member stands still before it enters a collective; when it has told where its arrays are, which the others read;
// and while it writes its result.
var stands = []func(w *neighborhood, o *other) <-chan error{
	func(w *neighborhood, o *other) <-chan error {
		o.Stop(w)
		w.tell(o)
		return w.enter(o)
	},
	func(w *neighborhood, o *other) <-chan error {
		w.tell(o)
		w.hear(o, "entered")
		o.Stop(w)
		return w.enter(o)
	},
	func(w *neighborhood, o *other) <-chan error {
		ends := w.enter(o)
		w.tell(o)
		w.reach(o, 6)
		o.Stop(w)
		return ends
	},
}

// others has the members in the test's process do some collectives of their own.
func (w *neighborhood) others() {
	w.last++
	g := Gang{ID: w.last, Launch: int32(w.last)}
	var all []*Engine
	for _, n := range w.near {
		g.Ranks = append(g.Ranks, Place{n.number, 0})
		all = append(all, n.engine)
	}
	for _, e := range all {
		e.Begin(g)
	}
	goOn(w, g.Launch, all)
	for _, e := range all {
		e.End(g.ID)
	}
}

// A member of a board is stopped, is slow, or is killed in each part of a large collective that reads arrays where they
// lie. One that was stopped, or is slow, goes on to the right results; if it is killed, every call that needs it fails
// with its name; and nothing is left of either.
func TestMemberOfABoardStopsOrIsKilled(t *testing.T) {
	for i, op := range directly {
		t.Run(fmt.Sprint(op), func(t *testing.T) {
			t.Parallel()
			w := &neighborhood{T: t, neighbors: neighbors{hosts{op, 3 << 20, 1, 2}, i%2 == 0}}
			w.begin()
			o := w.start()
			for _, stand := range stands {
				ends := stand(w, o)
				w.others()
				o.Continue(w)
				w.right(o, ends)
			}
			w.isSlow(o)
			direct := slices.ContainsFunc(w.near[0].engine.Counts(), func(c Count) bool {
				return c.Op == op && c.Way == Direct && c.Calls == uint64(1+len(stands)+1) // all but the first
			})
			statustest.Equal(w, direct, true, "it goes by the way that it is a test of")
			for _, n := range w.near {
				n.engine.End(o.number)
			}
			for _, stand := range stands {
				w.isKilled(stand)
			}
		})
	}
}

// isSlow has the member stand still again and again.
func (w *neighborhood) isSlow(o *other) {
	ends := w.enter(o)
	w.tell(o)
	for at := range 5 {
		w.reach(o, 3*at)
		o.Stop(w)
		w.others()
		o.Continue(w)
	}
	w.right(o, ends)
}

// isKilled kills a member that stands still, and tells the others so, as the controller does.
func (w *neighborhood) isKilled(stand func(*neighborhood, *other) <-chan error) {
	o := w.start()
	ends := stand(w, o)
	w.others()
	whole := o.sixteenths(w.neighbors) == 16 // then it may have said so
	lent := o.lends(w.near[0].board)
	if n := mapped(w, lent); n < 1+w.ends*len(lent) {
		w.Errorf("only %d mappings of %d files of the member", n, len(lent))
	}
	statustest.OK(w, o.Command.Process.Kill())
	_ = o.Command.Wait() // it was killed
	name := fmt.Sprint("worker-", o.number)
	why := status.New(status.Unavailable, "%s was killed", name)
	for _, n := range w.near {
		n.engine.Lost(o.number, why)
	}
	for range w.ends {
		if err := w.end(ends); err != nil || !whole {
			statustest.Fails(w, "what needs the member", err, status.Unavailable, name)
		}
	}
	w.others()
	for _, n := range w.near {
		n.engine.End(o.number)
		n.board.arrive() // of gangs that are over
		n.board.isUnused(w)
		statustest.Equal(w, len(n.engine.gangs), 0, "gangs")
	}
	statustest.Equal(w, mapped(w, lent), 1, "mappings of the member's files, but for the test's")
}

// lends returns the inodes of the files that a member lends.
func (o *other) lends(b *Board) (inodes []string) {
	for slot := range filesMax {
		if words := b.fileWords(o.place, slot); word(words, fileNumber).Load() != 0 {
			inodes = append(inodes, fmt.Sprint(word(words, fileInode).Load()))
		}
	}
	return inodes
}

// mapped is how often this process has mapped files.
func mapped(t testing.TB, inodes []string) (times int) {
	maps := string(statustest.Value(os.ReadFile("/proc/self/maps")).OK(t))
	for line := range strings.Lines(maps) {
		if fields := strings.Fields(line); len(fields) > 5 && strings.HasPrefix(fields[5], "/memfd:") &&
			slices.Contains(inodes, fields[4]) {
			times++
		}
	}
	return times
}
