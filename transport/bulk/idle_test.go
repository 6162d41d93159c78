package bulk

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status/statustest"
)

// Connections that say nothing keep no peer out: a link that is made beside them works at once.
func TestLinksBesideIdleConnections(t *testing.T) {
	const many, soon = 2000, time.Second
	for _, kind := range []string{"unix", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			x, neighbour, address := neighbours(t, kind)
			network, at, _ := strings.Cut(address, ":")
			for range many {
				socket := statustest.Value(net.Dial(network, at)).OK(t)
				defer socket.Close()
			}
			begin := time.Now()
			h := intrude(t, address, 99)
			if took := time.Since(begin); took > soon {
				t.Errorf("a link was made after %v, at most %v are allowed", took, soon)
			}
			h.conn.Close()
			well(t, x, neighbour)
		})
	}
}
