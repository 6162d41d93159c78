package stream

import (
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// A listener tells a probe whether it is the process that is looked for. It asks for no token, tells nothing of it, and
// lets nothing in. One without an identity is never looked for.
func TestProbeFindsTheProcessWithoutAToken(t *testing.T) {
	for _, own := range []string{"", "own"} {
		l, err := Listen("tcp:127.0.0.1:0",
			Options{Credentials: transport.Credentials{Token: "secret", Identity: []byte(own)}}, func(peer string, err error) {
				t.Errorf("%s was refused: %v", peer, err)
			})
		statustest.OK(t, err)
		for _, asked := range []string{"", "own", "other"} {
			want := status.NotFound
			if asked == own && own != "" {
				want = status.OK
			}
			c, _, err := Dial(t.Context(), l.Address(), &wire.Hello{Role: wire.Role_ROLE_PROBE, Identity: []byte(asked)},
				Options{})
			statustest.Fails(t, fmt.Sprintf("a listener of identity %q is asked for %q", own, asked), err, want)
			if err == nil {
				if _, _, err := c.Recv(); err == nil {
					t.Error("a probe was sent something behind its answer")
				}
				c.Close()
			}
		}
		select {
		case in := <-l.let:
			t.Errorf("a probe was let in: %v", in.Hello)
		default:
		}
		statustest.Check(t, l.Close())
	}
}
