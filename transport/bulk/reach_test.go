package bulk

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/stream"
)

// seeker is an exchange, number 1, that knows processes which do not listen where
// they say, and tries to reach them for so long.
func seeker(t *testing.T, dialTime time.Duration, names ...string) (x *Exchange, address string) {
	t.Helper()
	dir := t.TempDir()
	l, err := stream.Listen("unix:"+filepath.Join(dir, "1"), options(), nil)
	statustest.OK(t, err)
	x, err = New(Config{Self: 1, Host: "here", Options: options(), Hello: &wire.Hello{Cluster: "test"},
		Listeners: []transport.Listener{l}, DialTime: dialTime})
	statustest.OK(t, err)
	t.Cleanup(func() { x.Close() })
	for i, name := range names {
		x.Peers([]*wire.Process{
			{Number: uint64(i + 2), Name: name, Host: "here", Addresses: []string{"unix:" + filepath.Join(dir, "none")}}}, nil,
			nil)
	}
	return x, l.Address()
}

// A process that cannot be reached is lost.
func TestUnreachableProcessIsLost(t *testing.T) {
	x, _ := seeker(t, 30*time.Millisecond, "two")
	lost := make(chan error, 1)
	x.PushBytes(2, key(1, 0), []byte("x"), func(err error) { lost <- err })
	statustest.Fails(t, "the error", <-lost, status.Unavailable, "process 2 (two)")
}

// A process that cannot be reached and comes by itself is dialed no more.
func TestProcessThatComesIsDialedNoMore(t *testing.T) {
	x, address := seeker(t, time.Hour, "two")
	sent := make(chan error, 2)
	x.PushBytes(2, key(1, 0), []byte("x"), func(err error) { sent <- err })
	two, err := x.find(2, false)
	statustest.OK(t, err)
	dialing := func() bool {
		two.mu.Lock()
		defer two.mu.Unlock()
		return two.dialing
	}
	if !dialing() {
		t.Error("it is not dialed")
	}
	h := intrude(t, address, 2)
	statustest.Soon(t, dialing, false, "it is dialed")
	x.PushBytes(2, key(2, 0), []byte("y"), func(err error) { sent <- err })
	for range 2 {
		r := reader{b: h.until(kindEager)}
		h.send(kindTaken, withStatus(numbers(nil, r.u64()), nil))
		statustest.Check(t, <-sent)
	}
}

// A process that starts where another one was lost listens at the same address. What is for the one does not go to the
// other, and what is for the other does.
func TestAnotherProcessAtAnAddress(t *testing.T) {
	x, address := seeker(t, time.Hour)
	shared := strings.TrimSuffix(address, "1") + "shared"
	at := func(number uint64) []*wire.Process {
		return []*wire.Process{{Number: number, Host: "here", Addresses: []string{shared}}}
	}
	x.Peers(at(2), nil, nil)
	failed := make(chan error, 1)
	x.PushBytes(2, key(1, 0), []byte("for two"), func(err error) { failed <- err })
	l := statustest.Value(stream.Listen(shared, options(), nil)).OK(t)
	three := statustest.Value(New(Config{Self: 3, Host: "here", Options: options(), Hello: &wire.Hello{Cluster: "test"},
		Listeners: []transport.Listener{l}, DialTime: time.Hour})).OK(t)
	defer three.Close()
	two, _ := x.find(2, false)
	statustest.Soon(t, func() bool {
		two.mu.Lock()
		defer two.mu.Unlock()
		return two.tried != nil && strings.Contains(two.tried.Error(), "process 3 answers")
	}, true, "process 2 is dialed, and process 3 answers")
	three.Peers([]*wire.Process{{Number: 1, Host: "here", Addresses: []string{address}}}, nil, nil)
	x.Peers(at(3), []uint64{2}, nil)
	statustest.Fails(t, "what was for process 2", <-failed, status.Unavailable)
	statustest.Check(t, exchanged(x, three, 2, 10))
}

// What is for a process that was never there is not found; the controller says why.
func TestProcessThatWasNeverThere(t *testing.T) {
	x, _ := seeker(t, time.Hour)
	why := status.New(status.NotFound, "no worker has come yet")
	x.Peers(nil, []uint64{2}, why)
	failed := make(chan error, 1)
	x.PushBytes(2, key(1, 0), []byte("x"), func(err error) { failed <- err })
	statustest.Fails(t, "a block for it", <-failed, status.NotFound, why.Error())
}
