package bulk

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"time"
)

// Deadlines of sockets bound how long bytes may take to move at all, not how long all of them may take: a line may be
// slow, or have many bytes on it, and nothing is wrong with it.

// steadyPart is how many bytes are written at a time where a write that ends early cannot go on.
const steadyPart = 64 << 10

// steady reads from a socket, each time within a bound. 0 is none.
type steady struct {
	socket net.Conn
	from   io.Reader // the socket, or what was read of it before
	bound  time.Duration
}

// Read implements io.Reader.
func (s *steady) Read(b []byte) (int, error) {
	var end time.Time
	if s.bound > 0 {
		end = time.Now().Add(s.bound)
	}
	s.socket.SetReadDeadline(end)
	return s.from.Read(b)
}

// writeSteadily writes to a socket that takes some bytes within the bound, each time.
func writeSteadily(socket net.Conn, runs net.Buffers, bound time.Duration) error {
	if _, ok := socket.(*tls.Conn); ok { // no write follows one that has reached its deadline
		for _, run := range runs {
			for part := range slices.Chunk(run, steadyPart) {
				socket.SetWriteDeadline(time.Now().Add(bound))
				if _, err := socket.Write(part); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for {
		socket.SetWriteDeadline(time.Now().Add(bound))
		n, err := runs.WriteTo(socket) // which leaves what was not written
		if n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}
