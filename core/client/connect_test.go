package client

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// A controller that describes devices which cannot be is told apart, at the beginning of a session and later.
func TestDevicesThatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		devices []*wire.Device
		want    string
	}{
		"none":             {[]*wire.Device{{}, nil}, "device 0 in the place of device 1 of 2"},
		"twice":            {[]*wire.Device{{Number: 1}, {Number: 1}}, "device 1 in the place of device 0 of 2"},
		"another's number": {[]*wire.Device{{}, {Number: 7}}, "device 7 in the place of device 1 of 2"},
		"another platform": {[]*wire.Device{{}, {Number: 1, Platform: 1}}, "platform 1, and names 1 platform"},
		"a huge platform":  {[]*wire.Device{{Platform: 1 << 31}, {Number: 1}}, "platform 2147483648, and names 1 platform"},
	} {
		t.Run(name, func(t *testing.T) {
			far := newFar()
			far.welcome.Devices = c.devices
			_, err := Connect(t.Context(), Config{Dialer: far, Hello: &wire.Hello{},
				Exchange: func(*wire.Welcome) (transport.Exchange, error) { return new(noExchange), nil }})
			statustest.Fails(t, "a Welcome with them", err, status.Internal, c.want)
			bubble.Test(t, func(t *testing.T) {
				n := connect(t)
				n.says(wire.KindRebind, &wire.Rebind{Epoch: 2, Devices: c.devices})
				synctest.Wait()
				if err := n.cluster.Lost(); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("after an offer of them the session has ended with %v, want %q", err, c.want)
				}
			})
		})
	}
}
