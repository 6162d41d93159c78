package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// Options configures how a process connects and is connected to.
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

// Dial connects and says hello. See transport.Greet for what of hello is filled in. Heartbeats come as often as the
// Welcome asks for, if that is more often than the options say: the peer may take a longer silence for a loss. See
// Config.Follows for this side's own bound.
func Dial(ctx context.Context, address string, hello *wire.Hello, o Options) (*Conn, *wire.Welcome, error) {
	ctx, cancel := context.WithTimeout(ctx, transport.HelloTime)
	defer cancel()
	socket, err := connect(ctx, address, o.TLS)
	if err != nil {
		return nil, nil, err
	}
	if err := checkServer(socket, address, hello.Role); err != nil {
		socket.Close()
		return nil, nil, err
	}
	// A Welcome grows with the cluster, and the dialer trusts the address that it chose: no bound of a newcomer's.
	c := New(socket, address, o.Config, true)
	w, err := transport.Greet(ctx, c, hello, o.Credentials)
	if RefusedByPeer(err) { // which it does once this side's handshake has ended
		err = distrust(address, err, o.TLS)
	}
	if err != nil {
		return nil, nil, err
	}
	c.beat(time.Duration(w.HeartbeatMs)*time.Millisecond, time.Duration(w.SilenceMs)*time.Millisecond)
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
	let     chan *transport.Incoming
	running sync.WaitGroup
	new     newcomers
	long    unfinished
	tales   tales
}

// Listen makes a listener. Refused, where it is not nil, is told of connections
// that were not let in, from any goroutine; of a flood, of some and how many more.
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
		return nil, status.New(status.FailedPrecondition,
			"%s needs a certificate and its key, by which clients recognize it", address)
	}
	if with != nil && with.ClientAuth != tls.RequireAndVerifyClientCert && o.Token == "" {
		return nil, status.New(status.FailedPrecondition,
			"%s has neither clients' certificates nor a token to decide who may connect; set one of them", address)
	}
	l, err := bind(network, at)
	if err != nil {
		return nil, err
	}
	s := &Listener{net: l, address: address, options: o, tls: with, let: make(chan *transport.Incoming),
		tales: tales{tell: refused}}
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

// Address returns the address at which it listens, with the port that the system chose for port 0.
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
	s.new.close()
	s.running.Wait()
	return err
}

func (s *Listener) run() {
	defer s.running.Done()
	for {
		socket, err := s.net.Accept()
		if err != nil {
			if s.ctx.Err() != nil {
				return
			}
			s.pause(err)
			continue
		}
		n := &newcomer{socket: socket, source: sourceOf(socket), peer: socket.RemoteAddr().Network() + ":" +
			socket.RemoteAddr().String()}
		if socket.RemoteAddr().Network() == "unix" {
			n.peer = "a process that connected at " + s.address // its own socket has no name
		}
		if out := s.new.add(n); out != nil {
			out.socket.Close()
		}
		if s.ctx.Err() != nil { // Close may not have seen it
			socket.Close()
		}
		s.running.Add(1)
		go s.greet(n)
	}
}

func (s *Listener) greet(n *newcomer) {
	defer s.running.Done()
	in, err := s.hello(n)
	if s.new.remove(n) && err != nil {
		err = status.New(status.ResourceExhausted,
			"it had not said hello when its place was needed: at most %d connections, %d of one source, wait at a time",
			maxNewcomers, maxOfSource)
	}
	if err != nil {
		if s.ctx.Err() == nil && !errors.Is(err, transport.ErrProbed) {
			s.tales.add(n.peer, err)
		}
		return
	}
	select {
	case s.let <- in:
	case <-s.ctx.Done():
		in.Close()
	}
}

// hello lets a newcomer say hello, and checks it. What is costly is made afterwards: until then a connection is a
// socket, a goroutine, and the bytes that it sent. On an error the socket is closed.
func (s *Listener) hello(n *newcomer) (*transport.Incoming, error) {
	_ = n.socket.SetDeadline(time.Now().Add(transport.HelloTime)) // it fails where reading will
	cred := s.options.Credentials
	if strings.HasPrefix(n.peer, "tcp:") && !Local(n.peer) {
		cred.TokenPath = "" // of no use on another machine
	}
	socket, greeting, err := s.listen(n, cred)
	if err != nil {
		part(n.socket)
		return nil, err
	}
	if cred.Certified, err = certified(socket); err != nil {
		err = status.Wrap(err, "%s is refused", n.peer)
		refuse(socket, cred.Software, err)
		part(n.socket)
		return nil, err
	}
	_ = n.socket.SetDeadline(time.Time{})
	ctx, cancel := context.WithTimeout(s.ctx, transport.HelloTime)
	defer cancel()
	c := newConn(socket, n.peer, s.options.Config, false, greeting)
	c.reader.long = &s.long
	in, err := transport.Await(ctx, c, cred)
	if err == nil {
		in.Silence = s.options.Silence
	}
	return in, err
}

// listen reads a newcomer's greeting, by TLS where that is asked for. A newcomer that is refused is told why, if it can
// be.
func (s *Listener) listen(n *newcomer, cred transport.Credentials) (socket net.Conn, greeting []byte, err error) {
	head := make([]byte, header)
	if _, err := io.ReadFull(n.socket, head); err != nil {
		return nil, nil, s.silent(n, err)
	}
	s.new.spoke(n)
	socket = n.socket
	switch {
	case speaksTLS(head) && s.tls == nil:
		err = status.New(status.Unauthenticated,
			"%s speaks TLS, and nothing else speaks it at this address: connect without TLS options, or give the listening "+
				"process certificates", n.peer)
		refuse(socket, cred.Software, err)
		return nil, nil, err
	case !speaksTLS(head) && s.tls != nil:
		err = status.New(status.Unauthenticated, "%s asks for TLS, and the connection came without: give the authority by "+
			"--tls-ca or PATHWAYS_TLS_CA, and a certificate (PATHWAYS_TLS_CERT, PATHWAYS_TLS_KEY) or the token", s.address)
		refuse(socket, cred.Software, err)
		return nil, nil, err
	case s.tls != nil:
		secured := tls.Server(&resumed{n.socket, head}, s.tls)
		if err := secured.Handshake(); err != nil {
			return nil, nil, distrust(n.peer, err, s.tls)
		}
		socket, head = secured, make([]byte, header)
		if _, err := io.ReadFull(socket, head); err != nil {
			return nil, nil, s.silent(n, err)
		}
	}
	if greeting, err = readGreeting(socket, head, cred); err != nil {
		if status.CodeOf(err) == status.Unknown {
			return nil, nil, s.silent(n, err)
		}
		err = status.Wrap(err, "%s is refused", n.peer)
		refuse(socket, cred.Software, err)
		return nil, nil, err
	}
	return socket, greeting, nil
}

// silent is the error of a newcomer that ended, or was too slow, before its hello.
func (s *Listener) silent(n *newcomer, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return status.New(status.DeadlineExceeded, "%s did not say hello in time", n.peer)
	}
	return status.New(status.Unavailable, "%s closed the connection before its hello", n.peer)
}

// pause is for errors such as too many open files, which pass.
func (s *Listener) pause(err error) {
	s.tales.add(s.address, status.New(status.Unavailable, "%s cannot accept connections: %w", s.address, err))
	wait := time.NewTimer(pauseTime)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-s.ctx.Done():
	}
}

// How often refusals are told: a flood of connections fills no log.
const (
	taleTime  = 10 * time.Second
	maxTales  = 20                    // in that time
	pauseTime = 50 * time.Millisecond // before Accept is tried again, see pause
)

// tales are a listener's reports of connections that were not let in.
type tales struct {
	tell func(peer string, err error) // or nil

	mu    sync.Mutex
	since time.Time
	told  int // since then
	kept  int // of those that were not told
}

func (t *tales) add(peer string, err error) {
	if t.tell == nil {
		return
	}
	t.mu.Lock()
	kept := 0
	if now := time.Now(); now.Sub(t.since) >= taleTime {
		kept, t.since, t.told, t.kept = t.kept, now, 0, 0
	}
	t.told++
	if t.told > maxTales {
		t.kept++
	}
	tell := t.told <= maxTales
	t.mu.Unlock()
	if tell && kept > 0 {
		err = status.Wrap(err, "%d more were refused before; this one", kept)
	}
	if tell {
		t.tell(peer, err)
	}
}
