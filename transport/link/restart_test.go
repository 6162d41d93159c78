package link

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// The accepting process restarts with the links that it had saved. The dialer is told; frames sent before are dropped;
// later ones arrive once and in order, both ways.
func TestLinkBeginsAnewWhenItsAcceptorStartsAgain(t *testing.T) {
	inWorld(t, Config{Lease: lease}, func(w *world) {
		near, old, welcome := w.dial()
		saved, ok := SavedOf(old)
		if !ok {
			t.Fatal("a link cannot be kept")
		}
		w.acceptor = NewAcceptor(Config{Lease: lease, Term: term + 1})
		far := w.acceptor.Restore(saved)
		broke := make(chan error, 4) // as status shows it
		far.(transport.Watched).Watch(func(why error) {
			if why != nil {
				broke <- why
			}
		})
		w.network.Break("client")
		statustest.Check(t, near.Send(wire.KindRun, []byte("to the start before")))
		ended := make(chan error, 2)
		come := make(chan error, 1)
		go func() {
			come <- receive(far, 5)
			ended <- drain(far)
		}()
		if kind, _, err := near.Recv(); kind != wire.KindRestarted || err != nil {
			t.Fatalf("the dialer received %d, %v", kind, err)
		}
		go func() { ended <- drain(near) }()
		time.Sleep(time.Second)
		w.network.Break("client") // a link of the new start outlives its line as any does
		statustest.Check(t, send(near, 5, func() {}))
		statustest.Check(t, <-come)
		if why := <-broke; !strings.Contains(why.Error(), "has started again") {
			t.Errorf("the reason why the link has no connection is %v", why)
		}
		hello := &wire.Hello{Role: wire.Role_ROLE_CLIENT, Resume: &wire.Resume{Link: welcome.Link.Id,
			Secret: welcome.Link.Secret, Term: welcome.Link.Term, Attempt: 99}}
		_, _, err := w.network.Dial(context.Background(), "inproc:controller", hello)
		statustest.Fails(t, "the term before is accepted again", err, status.FailedPrecondition,
			"has continued it in term")
		end(near, far, old)
		<-ended
		<-ended
	})
}

// A link that was not saved is refused.
func TestOnlyKeptLinksOutliveTheirAcceptor(t *testing.T) {
	inWorld(t, Config{Lease: lease}, func(w *world) {
		near, old, _ := w.dial()
		w.acceptor = NewAcceptor(Config{Lease: lease, Term: term + 1})
		w.network.Break("client")
		_, _, err := near.Recv()
		statustest.Fails(t, "a link that was not kept", err, status.FailedPrecondition, "has started since")
		end(near, old)
	})
}
