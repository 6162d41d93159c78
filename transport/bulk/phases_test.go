package bulk

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/transporttest"
)

// echoes is other processes that send blocks back, by TCP, each behind a line whose bytes are counted.
type echoes struct {
	*testing.T
	x    *Exchange
	data []byte
}

// echo is one of them.
type echo struct {
	*child
	transporttest.Process
	sent uint64 // blocks
}

// attach puts a forwarder in front of a process that nobody has dialed yet.
func (w *echoes) attach(c *child) *echo {
	e := &echo{child: c}
	e.Command, e.Line = c.command, transporttest.Forward(w, strings.TrimPrefix(c.address, "tcp:"))
	e.Gate.Watch(e.Line)
	w.x.Peers([]*wire.Process{{Number: uint64(c.number), Name: fmt.Sprint("child-", c.number), Host: "here",
		Addresses: []string{e.Line.Address}}}, nil, nil)
	return e
}

// send sends a process a block, and returns how that ends, and then how its way back does.
func (w *echoes) send(e *echo) (taken, back <-chan error) {
	ends := [2]chan error{make(chan error, 1), make(chan error, 1)}
	e.sent++
	peer, id := uint64(e.number), e.sent
	w.x.PushBytes(peer, key(id, 0), w.data, func(err error) { ends[0] <- err })
	w.x.Expect(peer, key(id, 1), int64(len(w.data)), nil, func(b transport.Block, err error) {
		if err == nil {
			if !bytes.Equal(b.Data, w.data) {
				err = fmt.Errorf("block %d came back as other bytes", id)
			}
			b.Release()
		}
		ends[1] <- err
	})
	return ends[0], ends[1]
}

// right sends a block, which comes back.
func (w *echoes) right(e *echo) {
	w.Helper()
	taken, back := w.send(e)
	statustest.OK(w, <-taken)
	statustest.OK(w, <-back)
}

func (w *echoes) used() (bytes int64) {
	for _, used := range w.x.Memory().Used {
		bytes += used
	}
	return bytes
}

// A process that a block goes to, and that sends it back, is stopped, is slow, or is killed before the first byte of
// either, in the middle of a piece, and in the last one. Its neighbor goes on. If it was stopped, or is slow, the right
// bytes come; if it is killed, what was under way ends with its name; and nothing is left.
func TestProcessStopsOrIsKilledInTheMiddleOfABlock(t *testing.T) {
	const size, kills = 2 << 20, 6
	_, before := held(t)
	x, children := withIn(t, "tcp", "echo", size, 2+kills, time.Minute)
	w := &echoes{T: t, x: x, data: make([]byte, size)}
	fill(w.data, 1)
	var all []*echo
	for _, c := range children {
		all = append(all, w.attach(c))
	}
	neighbor, e := all[0], all[1]
	w.right(neighbor)
	w.right(e) // its streams are there now
	passed := e.Gate.Passed()
	w.right(e)
	way := (e.Gate.Passed() - passed) / 2
	if way < size*9/10 || way > size*11/10 {
		t.Fatalf("%d bytes go each way, of a block of %d", way, size)
	}
	phases := [kills]int64{0, way/2 + 100<<10, way - 48<<10, way + 48<<10, 3*way/2 + 100<<10, 2*way - 48<<10}

	for _, at := range phases {
		stopped := e.StopAt(t, at)
		taken, back := w.send(e)
		<-stopped
		w.right(neighbor)
		e.Continue(t)
		statustest.OKf(t, <-taken, "stopped at byte %d", at)
		statustest.OKf(t, <-back, "stopped at byte %d", at)
	}
	e.SlowDown(t, way/16, 2*way-48<<10, func() { w.right(neighbor) })
	w.right(e)
	if left := e.Gate.Left(); left > 0 {
		t.Errorf("it did not stand still %d times", left)
	}
	if breaks := x.Breaks(); len(breaks) > 0 {
		t.Errorf("connections broke: %v", breaks)
	}

	for i, at := range phases {
		dies := all[2+i]
		killed := dies.KillAt(t, at)
		taken, back := w.send(dies)
		<-killed
		w.right(neighbor)
		name := fmt.Sprintf("child-%d", dies.number)
		x.Peers(nil, []uint64{uint64(dies.number)}, status.New(status.Unavailable, "%s was killed", name))
		if err := <-taken; err != nil || at < way {
			statustest.Fails(t, fmt.Sprintf("a block to a process killed at byte %d", at), err, status.Unavailable, name)
		}
		statustest.Fails(t, fmt.Sprintf("a block from a process killed at byte %d", at), <-back, status.Unavailable, name)
		statustest.Soon(t, w.used, 0, "bytes of blocks")
	}
	w.right(neighbor)
	x.Close()
	if _, left := held(t); left > before {
		t.Errorf("%d mappings of shared memory are left, in which blocks came that this process lends on; there were %d",
			left, before)
	}
}

// What was under way with a peer that is cut off gives its memory back when it fails, not only when the peer is back
// or known to be gone.
func TestMemoryOfAPeerThatIsCutOff(t *testing.T) {
	const size = 64 << 20 // more than the sockets take
	one, two, f := forwarded(t, 200*time.Millisecond)
	var gate transporttest.Gate
	gate.Watch(f)
	gate.At(f.Cut, 1<<20)
	ends := make(chan error, 2)
	two.Expect(1, key(1, 1), size, nil, func(_ transport.Block, err error) { ends <- err })
	one.PushBytes(2, key(1, 1), make([]byte, size), func(err error) { ends <- err })
	for range 2 {
		statustest.Fails(t, "a block of a peer that is cut off", <-ends, status.Unavailable, "process 1 (one)",
			"process 2 (two)")
	}
	statustest.Soon(t, func() string { return fmt.Sprint(one.Memory().Used, two.Memory().Used) }, "map[] map[]",
		"memory of blocks")
	f.Heal()
	statustest.Soon(t, func() string { return fmt.Sprint(one.Apart(), two.Apart()) }, "[] []",
		"who is apart, with the network healed")
	statustest.Check(t, exchanged(one, two, 2, 1<<20))
}
