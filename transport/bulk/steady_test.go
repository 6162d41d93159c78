package bulk

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport/transporttest"
)

// slow is a connection whose bytes are read a few at a time, until they are not.
type slow struct {
	net.Conn
	pause time.Duration
	left  int // bytes until it stops
}

func (s *slow) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b[:min(len(b), 16<<10)])
	if s.left -= n; s.left < 0 {
		s.pause = time.Hour
	}
	time.Sleep(s.pause)
	return n, err
}

// A piece may take any time on a slow line, as long as it moves. If it stands still, that ends in the bound.
func TestPieceOnASlowLine(t *testing.T) {
	const bound, size = time.Second, 1 << 20
	for _, kind := range []string{"plain", "tls"} {
		for _, stops := range []bool{false, true} {
			t.Run(kind+map[bool]string{false: " is slow", true: " stops"}[stops], func(t *testing.T) {
				credentials, now := transporttest.Certificates(t).Clone(), time.Now()
				credentials.Time, credentials.ServerName = func() time.Time { return now }, "localhost"
				bubble.Test(t, func(t *testing.T) {
					near, far := net.Pipe()
					line := &slow{far, bound / 16, 2 * size}
					if stops {
						line.left = size / 2
					}
					var from, to net.Conn = near, line
					if kind == "tls" {
						from, to = tls.Client(near, credentials), tls.Server(line, credentials)
					}
					piece := make([]byte, size)
					fill(piece, 1)
					var sent, came error
					got := make([]byte, size)
					var both sync.WaitGroup
					both.Go(func() {
						sent = writeSteadily(from, net.Buffers{piece[:20], piece[20:]}, bound)
						from.Close()
					})
					both.Go(func() {
						_, came = io.ReadFull(&steady{to, to, bound}, got)
						to.Close()
					})
					began := time.Now()
					both.Wait()
					if stops {
						if !errors.Is(sent, os.ErrDeadlineExceeded) {
							t.Errorf("a piece that stands still ends with %v", sent)
						}
						return
					}
					statustest.OK(t, errors.Join(sent, came))
					if !bytes.Equal(got, piece) {
						t.Error("other bytes came")
					}
					if took := time.Since(began); took < 3*bound {
						t.Errorf("the line is too fast to show anything: the piece took %v", took)
					}
				})
			})
		}
	}
}
