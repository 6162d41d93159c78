package bulk

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/stream"
)

// A harm is something that no process of Open Pathways does.
type harm struct {
	name string
	kind string // of the link; both where it is empty
	does func(t *testing.T, h *hostile, address string)
}

var harmsByMessages = []harm{
	{"a message of no known kind", "", func(t *testing.T, h *hostile, _ string) { h.send(200, nil) }},
	{"goodbye, and more", "", func(t *testing.T, h *hostile, _ string) {
		h.send(kindGoodbye, withStatus(nil, nil))
		_ = h.conn.Send(kindOffer, offerFrame(1, key(1, 0), 10)) // it may find it gone
	}},
	{"a message cut short", "", func(t *testing.T, h *hostile, _ string) {
		h.send(kindOffer, offerFrame(1, key(1, 0), 10)[:20])
	}},
	{"a message too long", "", func(t *testing.T, h *hostile, _ string) {
		h.send(kindOffer, append(offerFrame(1, key(1, 0), 10), 0))
	}},
	{"a link twice", "", func(t *testing.T, h *hostile, _ string) { h.send(kindLink, h.token[:]) }},
	{"a size past all", "", func(t *testing.T, h *hostile, _ string) { h.send(kindOffer, offerFrame(1, key(1, 0), -1)) }},
	{"a number twice", "", func(t *testing.T, h *hostile, _ string) {
		h.send(kindOffer, offerFrame(1, key(98, 0), 100))
		h.send(kindOffer, offerFrame(1, key(99, 1), 100))
	}},
	{"the end of a block that was not granted", "", func(t *testing.T, h *hostile, _ string) {
		h.send(kindOffer, offerFrame(1, key(99, 1), 100))
		h.send(kindWritten, numbers(nil, 1))
	}},
	{"the end of a block that is not there", "", func(t *testing.T, h *hostile, _ string) {
		h.send(kindWritten, numbers(nil, 5))
	}},
	{"a failure that is none", "", func(t *testing.T, h *hostile, _ string) {
		h.send(kindOffer, offerFrame(1, key(98, 0), 100))
		h.send(kindFailed, withStatus(numbers(nil, 1), nil))
	}},
	{"an answer to nothing", "", func(t *testing.T, h *hostile, _ string) {
		h.send(kindTaken, withStatus(numbers(nil, 9), nil))
	}},
	{"credit that was not given", "", func(t *testing.T, h *hostile, _ string) { h.send(kindCredit, numbers(nil, 64)) }},
	{"a long block unasked", "", func(t *testing.T, h *hostile, _ string) {
		h.send(kindEager, eagerFrame(nil, 1, key(98, 0), make([]byte, eagerSize+1)))
	}},
	{"more than its credit", "", func(t *testing.T, h *hostile, _ string) {
		for n := range uint64(eagerBytes/eagerUse(eagerSize) + 1) {
			_ = h.conn.Send(kindEager, eagerFrame(nil, n, key(n, 1), make([]byte, eagerSize))) // the last ones may find it gone
		}
	}},
	{"more than its credit, quietly", "", func(t *testing.T, h *hostile, _ string) {
		for n := range uint64(eagerBytes/eagerCost + 1) {
			_ = h.conn.Send(kindQuiet, eagerFrame(nil, n, key(n, 1), nil))
		}
	}},
	{"half a message", "", func(t *testing.T, h *hostile, _ string) {
		s := raw(t, h.conn)
		_, _ = s.Write([]byte{100, 0, 0, 0, byte(kindOffer), 1, 2, 3})
		s.Close()
	}},
	{"a message of 4 GiB", "", func(t *testing.T, h *hostile, _ string) {
		_, _ = raw(t, h.conn).Write([]byte{255, 255, 255, 255, byte(kindEager)})
	}},
	{"an acknowledgment of a block that was not sent", "", func(t *testing.T, h *hostile, _ string) {
		r := reader{b: h.until(kindOffer)}
		h.send(kindTaken, withStatus(numbers(nil, r.u64()), nil))
	}},
}

var harmsByMemory = []harm{
	{"memory for nothing", "", func(t *testing.T, h *hostile, _ string) { h.send(kindGrant, grantFrame(nil, 9, 1, 0)) }},
	{"more blocks than allowed", "unix", func(t *testing.T, h *hostile, _ string) {
		for n := range uint64(fewOffers + eagerBytes/eagerCost + 1) {
			_ = h.conn.Send(kindOffer, offerFrame(n, key(n, 1), 1<<20))
		}
	}},
	{"memory without a file", "unix", func(t *testing.T, h *hostile, _ string) {
		h.send(kindSegment, segmentFrame(1, 4096))
	}},
	{"memory that may shrink", "unix", func(t *testing.T, h *hostile, _ string) {
		f := memory(t, 4096, false)
		_ = h.conn.PostFile(kindSegment, segmentFrame(1, 4096), f)
	}},
	{"less memory than it says", "unix", func(t *testing.T, h *hostile, _ string) {
		_ = h.conn.PostFile(kindSegment, segmentFrame(1, 8192), memory(t, 4096, true))
	}},
	{"memory to read that could be cut short", "unix", func(t *testing.T, h *hostile, _ string) {
		_ = h.conn.PostFile(kindShow, segmentFrame(1, 4096), memory(t, 4096, false))
	}},
	{"the end of memory it did not show", "unix", func(t *testing.T, h *hostile, _ string) {
		h.send(kindHide, []byte{1, 0, 0, 0})
	}},
	{"a block of memory it did not show", "unix", func(t *testing.T, h *hostile, _ string) {
		h.send(kindLend, lendFrame(1, key(1, 1), 64, 1, 0))
	}},
	{"a block beyond memory it shows", "unix", func(t *testing.T, h *hostile, _ string) {
		_ = h.conn.PostFile(kindShow, segmentFrame(1, 4096), memory(t, 4096, true))
		h.send(kindLend, lendFrame(1, key(1, 1), 4096, 1, 1))
	}},
	{"a lent block taken back as if it had been taken", "unix", func(t *testing.T, h *hostile, _ string) {
		_ = h.conn.PostFile(kindShow, segmentFrame(1, 4096), memory(t, 4096, true))
		h.send(kindLend, lendFrame(1, key(1, 1), 64, 1, 0))
		h.send(kindWritten, numbers(nil, 1))
	}},
	{"the end of memory it did not share", "unix", func(t *testing.T, h *hostile, _ string) {
		h.send(kindUnmap, []byte{1, 0, 0, 0})
	}},
	{"a file that nothing speaks of", "unix", func(t *testing.T, h *hostile, _ string) {
		for range 100 {
			_ = h.conn.PostFile(kindFailed, nil, memory(t, 4096, true))
		}
	}},
	{"a place outside its memory", "unix", func(t *testing.T, h *hostile, _ string) {
		r := reader{b: h.until(kindOffer)} // the test's
		_ = h.conn.PostFile(kindSegment, segmentFrame(1, 1<<20), memory(t, 1<<20, true))
		h.send(kindGrant, grantFrame(nil, r.u64(), 1, 1<<20-4096))
	}},
	{"a place in memory it did not share", "unix", func(t *testing.T, h *hostile, _ string) {
		r := reader{b: h.until(kindOffer)}
		h.send(kindGrant, grantFrame(nil, r.u64(), 7, 0))
	}},
	{"memory twice for a block", "", func(t *testing.T, h *hostile, _ string) {
		r := reader{b: h.until(kindOffer)}
		n := r.u64()
		if h.conn.PassesFiles() {
			_ = h.conn.PostFile(kindSegment, segmentFrame(1, 1<<20), memory(t, 1<<20, true))
			h.send(kindGrant, grantFrame(nil, n, 1, 0))
			h.send(kindGrant, grantFrame(nil, n, 1, 0))
			return
		}
		h.send(kindGrant, grantFrame(nil, n, 0, 0))
		h.send(kindGrant, grantFrame(nil, n, 0, 0))
	}},
}

var harmsByStreams = []harm{
	{"bytes outside a block", "tcp", func(t *testing.T, h *hostile, address string) {
		s := raw(t, h.dial(address, 3, kindStream))
		h.send(kindOffer, offerFrame(1, key(1, 0), 100_000)) // expected
		h.until(kindGrant)
		_, _ = s.Write(binary.LittleEndian.AppendUint32(numbers(nil, 1, 99_000), 2000))
	}},
	{"more bytes than a block has", "tcp", func(t *testing.T, h *hostile, address string) {
		s := raw(t, h.dial(address, 3, kindStream))
		h.send(kindOffer, offerFrame(1, key(1, 0), 100_000))
		h.until(kindGrant)
		for range 3 {
			_, _ = s.Write(append(binary.LittleEndian.AppendUint32(numbers(nil, 1, 0), 50_000), make([]byte, 50_000)...))
		}
	}},
	{"half a piece", "tcp", func(t *testing.T, h *hostile, address string) {
		s := raw(t, h.dial(address, 3, kindStream))
		h.send(kindOffer, offerFrame(1, key(1, 0), 100_000))
		h.until(kindGrant)
		_, _ = s.Write(append(binary.LittleEndian.AppendUint32(numbers(nil, 1, 0), 50_000), make([]byte, 1000)...))
		s.Close()
	}},
	{"streams without end", "tcp", func(t *testing.T, h *hostile, address string) {
		for range maxStreams + 1 {
			h.dial(address, 3, kindStream)
		}
	}},
}

// fewOffers is how many blocks may be offered in the tests of hostile processes.
const fewOffers = 100

// The process that does harm is lost, and no other process.
func TestHostileProcessIsLostAlone(t *testing.T) {
	for _, c := range slices.Concat(harmsByMessages, harmsByMemory, harmsByStreams) {
		for _, kind := range []string{"unix", "tcp"} {
			if c.kind != "" && c.kind != kind {
				continue
			}
			t.Run(kind+" "+c.name, func(t *testing.T) {
				x, neighbor, address := neighbors(t, kind)
				x.offers = fewOffers
				x.Peers([]*wire.Process{{Number: 3, Name: "three", Host: "here"}}, nil, nil)
				well(t, x, neighbor)
				h := intrude(t, address, 3)
				arrived, pushed := make(chan error, 1), make(chan error, 1)
				into := make([]byte, 100_000)
				x.Expect(3, key(1, 0), 100_000, into, func(_ transport.Block, err error) { arrived <- err })
				x.PushBytes(3, key(2, 0), make([]byte, 100_000), func(err error) { pushed <- err })
				c.does(t, h, address)
				for _, end := range []chan error{arrived, pushed} {
					err := <-end
					if err == nil && end == arrived && strings.HasPrefix(c.name, "more bytes") {
						continue // it had what it needed
					}
					statustest.Fails(t, "the error", err, status.Unavailable, "process 3 (three)")
				}
				well(t, x, neighbor)
			})
		}
	}
}

// What is no link is refused, and does no harm.
func TestConnectionsThatAreNoLinkAreRefused(t *testing.T) {
	for _, kind := range []string{"unix", "tcp"} {
		x, neighbor, address := neighbors(t, kind)
		for _, hello := range []*wire.Hello{
			{Role: wire.Role_ROLE_CLIENT, Process: 3, Cluster: "test"},
			{Role: wire.Role_ROLE_PEER, Process: 0, Cluster: "test"},
			{Role: wire.Role_ROLE_PEER, Process: 1, Cluster: "test"},
			{Role: wire.Role_ROLE_PEER, Process: 3, Cluster: "another"},
			{Role: wire.Role_ROLE_PEER, Process: 3, Cluster: "test", Token: "wrong"},
		} {
			if c, _, err := stream.Dial(context.Background(), address, hello, options()); err == nil {
				c.Close()
				t.Errorf("%v was let in", hello)
			}
		}
		for i, first := range []struct {
			kind    wire.Kind
			payload []byte
		}{{kindOffer, make([]byte, 40)}, {kindLink, []byte("short")}, {kindStream, make([]byte, tokenSize)}} {
			hello := &wire.Hello{Role: wire.Role_ROLE_PEER, Process: uint64(10 + i), Cluster: "test"}
			c, _, err := stream.Dial(context.Background(), address, hello, options())
			statustest.OK(t, err)
			statustest.OK(t, c.Send(first.kind, first.payload))
			if _, _, err := c.Recv(); err == nil {
				t.Errorf("a link that began with a message of kind %d goes on", first.kind)
			}
			c.Close()
		}
		well(t, x, neighbor)
	}
}

// A process that knows the token of another's link takes no part in it.
func TestLinkOfAnotherProcessIsRefused(t *testing.T) {
	for _, kind := range []string{"unix", "tcp"} {
		x, neighbor, address := neighbors(t, kind)
		well(t, x, neighbor)
		x.mu.Lock()
		var stolen [][tokenSize]byte
		for token := range x.links {
			stolen = append(stolen, token)
		}
		x.mu.Unlock()
		if len(stolen) == 0 {
			t.Fatal("the neighbors have no link")
		}
		for _, token := range stolen {
			for _, first := range []struct {
				kind    wire.Kind
				payload []byte
			}{{kindStream, token[:]}, {kindResume, resumeFrame(token, 1, 0)}, {kindLink, token[:]}} {
				hello := &wire.Hello{Role: wire.Role_ROLE_PEER, Process: 3, Cluster: "test"}
				c, _, err := stream.Dial(context.Background(), address, hello, options())
				statustest.OK(t, err)
				statustest.OK(t, c.Send(first.kind, first.payload))
				if back, _, err := c.Recv(); err == nil && back != kindGoodbye {
					t.Errorf("%s: process 3 takes part in another's link by a message of kind %d", kind, first.kind)
				}
				c.Close()
			}
		}
		well(t, x, neighbor)
	}
}

// A peer that stops, without closing anything, is lost in a bounded time.
func TestSilentPeerIsLost(t *testing.T) {
	for _, kind := range []string{"unix", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			o := options()
			o.Heartbeat, o.Silence = 50*time.Millisecond, 2*time.Second // longer than a link takes to be made
			l := statustest.Value(stream.Listen(address(kind, dir, 1), o, nil)).OK(t)
			x, err := New(Config{Self: 1, Host: "here", Options: o, Hello: &wire.Hello{Cluster: "test"},
				Listeners: []transport.Listener{l}, DialTime: time.Second})
			statustest.OK(t, err)
			defer x.Close()
			h := intrude(t, l.Address(), 3)
			raw(t, h.conn) // it says nothing any more
			arrived, pushed := make(chan error, 1), make(chan error, 1)
			x.Expect(3, key(1, 0), 10, nil, func(_ transport.Block, err error) { arrived <- err })
			x.PushBytes(3, key(2, 0), make([]byte, 100_000), func(err error) { pushed <- err })
			for _, end := range []chan error{arrived, pushed} {
				statustest.Fails(t, "the error", <-end, status.Unavailable, "process 3")
			}
		})
	}
}

// A peer that gets memory and is lost may write there at any time: no other peer gets
// the memory.
func TestMemoryOfALostPeerIsNotReused(t *testing.T) {
	x, neighbor, address := neighbors(t, "unix")
	h := intrude(t, address, 3)
	arrived := make(chan error, 1)
	x.Expect(3, key(1, 0), 100_000, nil, func(_ transport.Block, err error) { arrived <- err })
	h.send(kindOffer, offerFrame(1, key(1, 0), 100_000))
	segment := reader{b: h.until(kindSegment)}
	segment.u32()
	size := segment.size()
	file := h.conn.File()
	if file == nil {
		t.Fatal("no file came")
	}
	defer file.Close()
	theirs, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	statustest.OK(t, err)
	defer unix.Munmap(theirs)
	h.until(kindGrant)
	x.Peers(nil, []uint64{3}, nil)
	statustest.Fails(t, "the error", <-arrived, status.Unavailable)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // it goes on writing
		defer close(stopped)
		for i := byte(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			for at := range theirs {
				theirs[at] = i
			}
		}
	}()
	for range 20 {
		well(t, x, neighbor)
	}
	close(stop)
	<-stopped
}

// A block fails here while its bytes are coming into memory of the receiver's own.
// Once the receiver is told, nothing is written there.
func TestFailedWhileItComes(t *testing.T) {
	const size = 200_000
	x, _, address := neighbors(t, "tcp")
	x.Peers([]*wire.Process{{Number: 3, Host: "here"}}, nil, nil)
	h := intrude(t, address, 3)
	s := raw(t, h.dial(address, 3, kindStream))
	piece := func(n, offset uint64, data []byte) {
		head := binary.LittleEndian.AppendUint32(numbers(nil, n, offset), uint32(len(data)))
		statustest.Check(t, statustest.Of(s.Write(append(head, data...))))
	}
	data := make([]byte, size)
	fill(data, 1)
	for id := uint64(1); id < 40; id += 2 {
		into := make([]byte, size)
		arrived := make(chan error, 1)
		x.Expect(3, key(id, 0), size, into, func(_ transport.Block, err error) { arrived <- err })
		h.send(kindOffer, offerFrame(id, key(id, 0), size))
		h.until(kindGrant)
		go x.Fail(key(id, 0).Space, id, status.New(status.Aborted, "enough"))
		piece(id, 0, data[:size/2])
		statustest.Fails(t, "the error", <-arrived, status.Aborted)
		clear(into)
		piece(id, size/2, data[size/2:]) // it was on its way
		h.send(kindFailed, withStatus(numbers(nil, id), status.New(status.Aborted, "as you like")))

		other := make([]byte, size) // goes the same way, behind
		x.Expect(3, key(id+1, 0), size, other, func(_ transport.Block, err error) { arrived <- err })
		h.send(kindOffer, offerFrame(id+1, key(id+1, 0), size))
		h.until(kindGrant)
		piece(id+1, 0, data)
		h.send(kindWritten, numbers(nil, id+1))
		statustest.OK(t, <-arrived)
		if !bytes.Equal(other, data) {
			t.Error("other bytes came")
		}
		if !bytes.Equal(into, make([]byte, size)) {
			t.Fatal("memory was written to after its owner had it back")
		}
	}
}

// Whatever bytes come over a link and a stream, only who sent them is lost.
func FuzzLink(f *testing.F) {
	frame := func(kind wire.Kind, payload []byte) []byte {
		return append(append(binary.LittleEndian.AppendUint32(nil, uint32(len(payload))), byte(kind)), payload...)
	}
	offer := frame(kindOffer, offerFrame(1, key(1, 0), 100_000))
	f.Add(offer, binary.LittleEndian.AppendUint32(numbers(nil, 1, 0), 4))
	f.Add(frame(kindEager, eagerFrame(nil, 1, key(1, 0), make([]byte, 100))), []byte{1})
	f.Add(frame(kindQuiet, eagerFrame(nil, 1, key(3, 0), make([]byte, 100))), []byte{})
	f.Add(append(bytes.Clone(offer), frame(kindFailed, withStatus(numbers(nil, 1), status.New(status.Aborted, "no")))...),
		[]byte{})
	f.Add(append(bytes.Clone(offer), frame(kindWritten, numbers(nil, 1))...), make([]byte, 60))
	f.Add(frame(kindGrant, grantFrame(nil, 1, 0, 0)), []byte{})
	f.Add(frame(kindTaken, withStatus(numbers(nil, 1), nil)), []byte{})
	f.Add(frame(kindCredit, numbers(nil, 1)), []byte{})
	f.Add(frame(kindGoodbye, withStatus(nil, nil)), []byte{})
	f.Add(frame(kindSegment, segmentFrame(1, 4096)), []byte{})
	f.Add(frame(kindShow, segmentFrame(1, 4096)), []byte{})
	f.Add(frame(kindLend, lendFrame(1, transport.Key{}, 64, 1, 0)), []byte{})
	type place struct {
		x, neighbor *Exchange
		address     string
	}
	places := map[string]place{}
	for _, kind := range []string{"unix", "tcp"} {
		x, neighbor, address := neighbors(f, kind)
		places[kind] = place{x, neighbor, address}
	}
	var numbers atomic.Uint64
	numbers.Store(10)
	f.Fuzz(func(t *testing.T, link, stripe []byte) {
		for kind, p := range places {
			number := numbers.Add(1)
			h := intrude(t, p.address, number)
			arrived, pushed := make(chan error, 1), make(chan error, 1)
			p.x.Expect(number, key(1, 0), 100_000, nil, func(b transport.Block, err error) {
				if err == nil {
					b.Release()
				}
				arrived <- err
			})
			p.x.Peers([]*wire.Process{{Number: number, Host: "here"}}, nil, nil)
			p.x.PushBytes(number, key(2, 0), make([]byte, 100_000), func(err error) { pushed <- err })
			var second net.Conn
			if kind == "tcp" {
				second = raw(t, h.dial(p.address, number, kindStream))
			}
			first := raw(t, h.conn)
			_, _ = first.Write(link) // it may have been lost already
			if second != nil {
				_, _ = second.Write(stripe)
				second.Close()
			}
			first.Close()
			<-arrived // with the bytes or not: it ends
			<-pushed
			well(t, p.x, p.neighbor)
		}
	})
}
