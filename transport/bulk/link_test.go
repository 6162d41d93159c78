package bulk

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/openpathways/pathways/transport/stream"
)

// counted is a socket that takes all that is written to it, and counts the writes.
type counted struct {
	net.Conn
	writes atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return len(b), nil
}

// What goroutines say about long blocks at the same time leaves in a few writes, on this host and to others. What is
// said about a block that is alone on its link does not wait for more.
func TestMessagesAboutLongBlocksLeaveTogether(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the goroutines and the socket's writer take turns
	for _, shared := range []bool{true, false} {
		near, far := net.Pipe()
		defer far.Close()
		socket, x := &counted{Conn: near}, new(Exchange)
		conn := stream.New(socket, "peer", stream.Config{}, true)
		l := newLink(&peer{x: x, number: 2}, conn)
		l.shared = shared
		var said sync.WaitGroup
		const blocks = 40
		for n := range uint64(blocks) {
			said.Go(func() {
				l.peer.mu.Lock()
				defer l.peer.mu.Unlock()
				l.outgoing[n] = &outgoing{}
				l.postAbout(longCopy, kindWritten, numbers(nil, n))
				if alone := len(l.outgoing) == 1; l.soon == alone {
					t.Errorf("with %d blocks under way, a message waits for others: %v", len(l.outgoing), l.soon)
				}
			})
		}
		said.Wait()
		x.running.Wait()
		conn.Close()
		if n := socket.writes.Load(); n > blocks/4 {
			t.Errorf("shared memory: %v; %d messages left in %d writes, want a few", shared, blocks, n)
		}
	}
}
