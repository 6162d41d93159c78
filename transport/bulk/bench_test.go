package bulk

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport"
)

const long = 64 << 20

// warm is memory without page faults to come.
func warm(size int) []byte {
	b := make([]byte, size)
	fill(b, 7)
	return b
}

// push sends blocks 1, 2, 3 … to process 2 and waits for each.
func push(b *testing.B, x *Exchange, data []byte) func() {
	id := uint64(0)
	done := make(chan error, 1)
	return func() {
		id++
		x.PushBytes(2, key(id, 0), data, func(err error) { done <- err })
		statustest.OK(b, <-done)
	}
}

// plain sends bytes over a socket of its own and waits for the other side to have
// them.
func plain(b *testing.B, network string, c *child, data []byte) func() {
	socket := statustest.Value(net.Dial(network, c.plain)).OK(b)
	b.Cleanup(func() { socket.Close() })
	answer := make([]byte, 1)
	return func() {
		statustest.OK(b, statustest.Of(socket.Write(data)))
		statustest.OK(b, statustest.Of(io.ReadFull(socket, answer)))
	}
}

// compare measures ours and theirs in turns. The ratio is of theirs to ours: more
// than one where ours is faster.
func compare(b *testing.B, unit string, size int, ours, theirs func()) {
	for range 4 {
		ours()
		theirs()
	}
	var our, their time.Duration
	for b.Loop() {
		begin := time.Now()
		ours()
		middle := time.Now()
		theirs()
		our += middle.Sub(begin)
		their += time.Since(middle)
	}
	b.ReportMetric(float64(their)/float64(our), "x-"+unit)
	b.ReportMetric(float64(our.Nanoseconds())/float64(b.N), "our-ns")
	b.ReportMetric(float64(their.Nanoseconds())/float64(b.N), unit+"-ns")
	b.ReportMetric(0, "ns/op")
	if size > 1<<10 {
		b.ReportMetric(float64(size)*float64(b.N)/our.Seconds()/1e9, "GB/s")
	}
}

// 64 MiB to a process on this machine, beside a copy of as much in this one.
func BenchmarkShared(b *testing.B) {
	for _, mode := range []string{"sink", "into"} {
		b.Run(mode, func(b *testing.B) {
			x, _ := with(b, "unix", mode, long, 1)
			data, other := warm(long), warm(long)
			compare(b, "memcpy", long, push(b, x, data), func() { copy(other, data) })
		})
	}
}

// 64 MiB over TCP, beside one plain stream.
func BenchmarkTCP(b *testing.B) {
	for _, mode := range []string{"sink", "into"} {
		b.Run(mode, func(b *testing.B) {
			x, children := with(b, "tcp", mode, long, 1)
			data := warm(long)
			compare(b, "stream", long, push(b, x, data), plain(b, "tcp", children[0], data))
		})
	}
}

// 8 bytes there and back, beside plain sockets.
func BenchmarkRoundTrip(b *testing.B) {
	for _, kind := range []string{"unix", "tcp"} {
		b.Run(kind, func(b *testing.B) {
			x, children := with(b, kind, "echo", 8, 1)
			data := warm(8)
			id := uint64(0)
			back := make(chan error, 1)
			arrived := func(block transport.Block, err error) {
				if err == nil {
					block.Release()
				}
				back <- err
			}
			compare(b, "socket", 8, func() {
				id++
				x.Expect(2, key(id, 1), 8, nil, arrived)
				x.PushBytes(2, key(id, 0), data, nil)
				statustest.OK(b, <-back)
			}, plain(b, kind, children[0], data))
		})
	}
}
