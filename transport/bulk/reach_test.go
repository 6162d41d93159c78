package bulk

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status"
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
	if err != nil {
		t.Fatal(err)
	}
	x, err = New(Config{Self: 1, Host: "here", Options: options(), Hello: &wire.Hello{Cluster: "test"},
		Listeners: []transport.Listener{l}, DialTime: dialTime})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	for i, name := range names {
		x.Peers([]*wire.Process{
			{Number: uint64(i + 2), Name: name, Host: "here", Addresses: []string{"unix:" + filepath.Join(dir, "none")}}}, nil,
			nil)
	}
	return x, l.Address()
}

// A process that cannot be reached is lost.
func TestUnreachable(t *testing.T) {
	x, _ := seeker(t, 30*time.Millisecond, "two")
	lost := make(chan error, 1)
	x.PushBytes(2, key(1, 0), []byte("x"), func(err error) { lost <- err })
	if err := <-lost; status.CodeOf(err) != status.Unavailable || !strings.Contains(err.Error(), "process 2 (two)") {
		t.Errorf("%v (%v), expected UNAVAILABLE for process 2 (two)", err, status.CodeOf(err))
	}
}

// A process that cannot be reached and comes by itself is dialled no more.
func TestComesByItself(t *testing.T) {
	x, address := seeker(t, time.Hour, "two")
	sent := make(chan error, 2)
	x.PushBytes(2, key(1, 0), []byte("x"), func(err error) { sent <- err })
	two, err := x.find(2, false)
	if err != nil {
		t.Fatal(err)
	}
	dialing := func() bool {
		two.mu.Lock()
		defer two.mu.Unlock()
		return two.dialing
	}
	if !dialing() {
		t.Error("it is not dialled")
	}
	h := intrude(t, address, 2)
	for dialing() { // it is tried no more
		time.Sleep(time.Millisecond)
	}
	x.PushBytes(2, key(2, 0), []byte("y"), func(err error) { sent <- err })
	for range 2 {
		r := reader{b: h.until(kindEager)}
		h.send(kindTaken, withStatus(numbers(nil, r.u64()), nil))
		if err := <-sent; err != nil {
			t.Error(err)
		}
	}
}
