package stream

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// maxGreeting bounds the connections that have not said hello yet; more wait in
// the system's queue.
const maxGreeting = 256

// Options is how a process connects and is connected to.
type Options struct {
	transport.Credentials
	Config
	// TLS secures tcp addresses: with it, all of them. A listener needs
	// ClientCAs with RequireAndVerifyClientCert, or a token.
	TLS *tls.Config
}

// Dial implements transport.Dialer.
func (o Options) Dial(ctx context.Context, address string, hello *wire.Hello) (transport.Conn, *wire.Welcome, error) {
	c, w, err := Dial(ctx, address, hello, o)
	if err != nil {
		return nil, nil, err
	}
	return c, w, nil
}

// Dial connects and says hello. See transport.Greet for what of hello is filled
// in.
func Dial(ctx context.Context, address string, hello *wire.Hello, o Options) (*Conn, *wire.Welcome, error) {
	ctx, cancel := context.WithTimeout(ctx, transport.HelloTime)
	defer cancel()
	socket, err := connect(ctx, address, o.TLS)
	if err != nil {
		return nil, nil, err
	}
	// A Welcome grows with the cluster, and whoever dials knows whom.
	c := New(socket, address, o.Config, true)
	w, err := transport.Greet(ctx, c, hello, o.Credentials)
	if err != nil {
		return nil, nil, err
	}
	return c, w, nil
}

// Listener implements transport.Listener.
type Listener struct {
	net     net.Listener
	address string
	options Options
	tls     *tls.Config

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	room    chan struct{} // one a connection that greets
	let     chan *transport.Incoming
	running sync.WaitGroup
	refused func(peer string, err error)
}

// Listen makes a listener. Refused, where it is not nil, is told of connections
// that were not let in, from any goroutine.
//
// Errors: FAILED_PRECONDITION where the address is open to other machines and
// nothing says who may connect.
func Listen(address string, o Options, refused func(peer string, err error)) (*Listener, error) {
	network, at, err := split(address)
	if err != nil {
		return nil, err
	}
	with, err := secure(network, at, o.TLS)
	if err != nil {
		return nil, err
	}
	if with != nil && len(with.Certificates) == 0 && with.GetCertificate == nil {
		return nil, status.New(status.FailedPrecondition, "%s needs a certificate and its key, by which those who connect know it", address)
	}
	if with != nil && with.ClientAuth != tls.RequireAndVerifyClientCert && o.Token == "" {
		return nil, status.New(status.FailedPrecondition, "%s has neither clients' certificates nor a token to know who may connect; give one of them", address)
	}
	l, err := bind(network, at)
	if err != nil {
		return nil, err
	}
	s := &Listener{net: l, address: address, options: o, tls: with, room: make(chan struct{}, maxGreeting), let: make(chan *transport.Incoming), refused: refused}
	if network == "tcp" && strings.HasSuffix(at, ":0") {
		host, _, _ := net.SplitHostPort(at)
		_, port, _ := net.SplitHostPort(l.Addr().String())
		s.address = "tcp:" + net.JoinHostPort(host, port)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.running.Add(1)
	go s.run()
	return s, nil
}

// Address is where it listens, with the port that the system chose for port 0.
func (s *Listener) Address() string { return s.address }

// Accept implements transport.Listener.
func (s *Listener) Accept() (*transport.Incoming, error) {
	select {
	case in := <-s.let:
		return in, nil
	case <-s.ctx.Done():
		return nil, status.New(status.Cancelled, "nothing listens at %s any more", s.address)
	}
}

// Close ends the listener, and connections that Accept has not given out.
func (s *Listener) Close() error {
	s.cancel()
	err := s.net.Close()
	s.running.Wait()
	return err
}

func (s *Listener) run() {
	defer s.running.Done()
	for {
		select {
		case s.room <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		socket, err := s.net.Accept()
		if err != nil {
			if s.ctx.Err() != nil {
				return
			}
			<-s.room
			s.pause(err)
			continue
		}
		s.running.Add(1)
		go s.greet(socket)
	}
}

func (s *Listener) greet(socket net.Conn) {
	defer s.running.Done()
	peer := socket.RemoteAddr().Network() + ":" + socket.RemoteAddr().String()
	if socket.RemoteAddr().Network() == "unix" {
		peer = "a process at " + s.address
	}
	in, err := s.hello(socket, peer)
	<-s.room
	if err != nil {
		if s.refused != nil {
			s.refused(peer, err)
		}
		return
	}
	select {
	case s.let <- in:
	case <-s.ctx.Done():
		in.Close()
	}
}

func (s *Listener) hello(socket net.Conn, peer string) (*transport.Incoming, error) {
	ctx, cancel := context.WithTimeout(s.ctx, transport.HelloTime)
	defer cancel()
	if s.tls != nil {
		secured := tls.Server(socket, s.tls)
		if err := secured.HandshakeContext(ctx); err != nil {
			socket.Close()
			return nil, status.New(status.Unauthenticated, "%s and this side do not trust each other: %w", peer, err)
		}
		socket = secured
	}
	cred := s.options.Credentials
	if network := socket.RemoteAddr().Network(); network != "unix" && !Local("tcp:"+socket.RemoteAddr().String()) {
		cred.TokenPath = "" // of no use on another machine
	}
	return transport.Await(ctx, New(socket, peer, s.options.Config, false), cred)
}

// pause is for errors such as too many open files, which pass.
func (s *Listener) pause(err error) {
	if s.refused != nil {
		s.refused(s.address, status.New(status.Unavailable, "%s cannot accept connections: %w", s.address, err))
	}
	wait := time.NewTimer(50 * time.Millisecond)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-s.ctx.Done():
	}
}
