package stream

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Processes whose protocols have nothing in common part at hello, and each side
// names both, whichever of the two is the older.
func TestProtocolsWithNothingInCommonPart(t *testing.T) {
	const ours, theirs = "pathways 1.0", "pathways 9.0"
	says := func(t *testing.T, err error) {
		t.Helper()
		statustest.Fails(t, "the error", err, status.FailedPrecondition)
		for _, want := range []string{ours, theirs, "install the same version"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
	}
	for _, r := range []struct {
		name     string
		min, max uint32
	}{
		{"newer", wire.ProtocolMax + 1, wire.ProtocolMax + 2},
		{"older", 0, wire.ProtocolMin - 1},
		{"reversed", wire.ProtocolMax, wire.ProtocolMax - 1},
	} {
		t.Run("dials "+r.name, func(t *testing.T) {
			o := Options{Credentials: cred()}
			o.Software = ours
			refused := make(chan error, 1)
			l, err := Listen("unix:"+filepath.Join(t.TempDir(), "s"), o, func(_ string, err error) { refused <- err })
			statustest.OK(t, err)
			defer l.Close()
			socket := statustest.Value(net.Dial("unix", strings.TrimPrefix(l.Address(), "unix:"))).OK(t)
			c := New(socket, "the listener", Config{}, true)
			defer c.Close()
			payload, err := proto.Marshal(&wire.Hello{ProtocolMin: r.min, ProtocolMax: r.max, Token: "secret", Software: theirs})
			statustest.OK(t, err)
			statustest.OK(t, c.Send(wire.KindHello, payload))
			kind, payload, err := c.Recv()
			if err != nil || kind != wire.KindWelcome {
				t.Fatalf("a message of kind %d, %v", kind, err)
			}
			var w wire.Welcome
			statustest.OK(t, proto.Unmarshal(payload, &w))
			says(t, w.Status.Err())
			says(t, <-refused)
		})
	}
	for _, chosen := range []uint32{wire.ProtocolMax + 1, wire.ProtocolMin - 1} {
		t.Run("answers", func(t *testing.T) {
			l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
			statustest.OK(t, err)
			defer l.Close()
			done := make(chan error, 1)
			go func() {
				done <- func() error {
					socket, err := l.Accept()
					if err != nil {
						return err
					}
					c := New(socket, "the dialer", Config{}, true)
					defer c.Close()
					if _, _, err := c.Recv(); err != nil {
						return err
					}
					payload, err := proto.Marshal(&wire.Welcome{Protocol: chosen, Software: theirs})
					if err != nil {
						return err
					}
					if err := c.Send(wire.KindWelcome, payload); err != nil {
						return err
					}
					_, _, _ = c.Recv() // until the dialer has gone
					return nil
				}()
			}()
			o := Options{Credentials: cred()}
			o.Software = ours
			_, _, err = Dial(t.Context(), "unix:"+l.Addr().String(), &wire.Hello{}, o)
			says(t, err)
			statustest.Check(t, <-done)
		})
	}
}
