package inproc

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// A dialler waits for its welcome for as long as the accepting side says that it has to, and hears what for, once.
func TestDiallerWaitsAsLongAsItIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard []string
		n := NewNetwork(transport.Credentials{Waits: func(why string) { heard = append(heard, why) }})
		l, err := n.Listen("controller")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			in, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			for range 12 {
				if err := in.Wait("the others"); err != nil {
					t.Error(err)
				}
				time.Sleep(transport.WaitAgain)
			}
			if err := in.Welcome(&wire.Welcome{Process: 7}); err != nil {
				t.Error(err)
			}
		}()
		c, w, err := n.Dial(t.Context(), l.Address(), &wire.Hello{Role: wire.Role_ROLE_CLIENT})
		if err != nil {
			t.Fatal(err)
		}
		if w.Process != 7 || !slices.Equal(heard, []string{"the others"}) {
			t.Errorf("process %d, which heard that it has to wait for %q", w.Process, heard)
		}
		c.Close()
	})
}
