package inproc

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// Network makes connections between the parts of one process by addresses
// "inproc:name". It is a transport.Dialer.
type Network struct {
	transport.Credentials
	// Conditions are set before the first Dial; nil: messages arrive at once.
	Conditions *Conditions

	mu        sync.Mutex
	joined    []*joined       // with conditions
	away      map[string]bool // parts that are cut off
	listeners map[string]*Listener
	dialed    int
}

// NewNetwork makes a network whose parts have these credentials.
func NewNetwork(cred transport.Credentials) *Network {
	return &Network{Credentials: cred, listeners: map[string]*Listener{}, away: map[string]bool{}}
}

// Listener implements transport.Listener.
type Listener struct {
	network *Network
	name    string
	let     chan *transport.Incoming
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup // greetings
}

// Listen takes a name.
func (n *Network) Listen(name string) (*Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[name] != nil {
		return nil, status.New(status.AlreadyExists, "something listens at inproc:%s already", name)
	}
	l := &Listener{network: n, name: name, let: make(chan *transport.Incoming)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	n.listeners[name] = l
	return l, nil
}

// Dial implements transport.Dialer.
func (n *Network) Dial(ctx context.Context, address string, hello *wire.Hello) (transport.Conn, *wire.Welcome, error) {
	n.mu.Lock()
	name, ok := strings.CutPrefix(address, "inproc:")
	l := n.listeners[name]
	if !ok || l == nil {
		n.mu.Unlock()
		return nil, nil, status.New(status.Unavailable, "%s cannot be reached: nothing in this process listens there",
			address)
	}
	n.dialed++
	self := hello.Name
	if self == "" {
		self = fmt.Sprintf("part %d of this process", n.dialed)
	}
	l.running.Add(1) // under the lock: Close takes the listener out before it waits
	ours, theirs := Pair(self, address)
	if n.Conditions != nil {
		n.join(self, name, ours, hello.Resume != nil)
		if n.Conditions.Repeats != nil && hello.Resume != nil {
			n.repeat(l, self, hello)
		}
	}
	n.mu.Unlock()
	go l.greet(theirs)
	w, err := transport.Greet(ctx, ours, hello, n.Credentials)
	if err != nil {
		return nil, nil, err
	}
	return ours, w, nil
}

func (l *Listener) greet(c *Conn) {
	defer l.running.Done()
	in, err := transport.Await(l.ctx, c, l.network.Credentials)
	if err != nil {
		return
	}
	select {
	case l.let <- in:
	case <-l.ctx.Done():
		in.Close()
	}
}

// Accept implements transport.Listener.
func (l *Listener) Accept() (*transport.Incoming, error) {
	select {
	case in := <-l.let:
		return in, nil
	case <-l.ctx.Done():
		return nil, status.New(status.Cancelled, "nothing listens at %s any more", l.Address())
	}
}

// Address implements transport.Listener.
func (l *Listener) Address() string { return "inproc:" + l.name }

// Close implements transport.Listener.
func (l *Listener) Close() error {
	l.network.mu.Lock()
	if l.network.listeners[l.name] == l {
		delete(l.network.listeners, l.name)
	}
	l.network.mu.Unlock()
	l.cancel()
	l.running.Wait()
	return nil
}
