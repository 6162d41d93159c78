package inproc

import (
	"slices"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// A dialler waits for its welcome for as long as the accepting side says that it has to, and hears what for, once.
func TestDiallerWaitsAsLongAsItIsTold(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var heard []string
		n := NewNetwork(transport.Credentials{Waits: func(why string) { heard = append(heard, why) }})
		l := statustest.Value(n.Listen("controller")).OK(t)
		defer l.Close()
		go func() {
			in, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			for range 12 {
				statustest.Check(t, in.Wait("the others"))
				time.Sleep(transport.WaitAgain)
			}
			statustest.Check(t, in.Welcome(&wire.Welcome{Process: 7}))
		}()
		c, w, err := n.Dial(t.Context(), l.Address(), &wire.Hello{Role: wire.Role_ROLE_CLIENT})
		statustest.OK(t, err)
		if w.Process != 7 || !slices.Equal(heard, []string{"the others"}) {
			t.Errorf("process %d, which heard that it has to wait for %q", w.Process, heard)
		}
		c.Close()
	})
}
