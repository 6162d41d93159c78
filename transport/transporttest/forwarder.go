package transporttest

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
)

// Forwarder stands between those who dial it and the listener it forwards to, and
// breaks what goes through it.
type Forwarder struct {
	Address string // "tcp:host:port"

	to     string
	listen net.Listener

	mu    sync.Mutex
	cut   bool
	limit int64 // bytes of answers on the next connections, which then break; 0 is none
	pairs map[*pair]struct{}
	made  int
	pass  func(bytes int) // nil: nothing is called
}

// pair is the two connections that are one through the forwarder.
type pair struct{ dialer, listener net.Conn }

// Forward makes a forwarder to a listener on "host:port".
func Forward(t testing.TB, to string) *Forwarder {
	t.Helper()
	l := statustest.Value(net.Listen("tcp", "127.0.0.1:0")).OK(t)
	f := &Forwarder{Address: "tcp:" + l.Addr().String(), to: to, listen: l, pairs: map[*pair]struct{}{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { f.forward(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		f.Break()
		running.Wait()
	})
	return f
}

func (f *Forwarder) forward(dialer net.Conn) {
	defer dialer.Close()
	listener, err := net.Dial("tcp", f.to)
	if err != nil {
		return
	}
	defer listener.Close()
	p := &pair{dialer, listener}
	f.mu.Lock()
	cut, limit := f.cut, f.limit
	f.made++
	if !cut {
		f.pairs[p] = struct{}{}
	}
	f.mu.Unlock()
	if cut {
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		f.copy(listener, dialer)
		listener.(*net.TCPConn).CloseWrite()
	})
	both.Go(func() {
		var from io.Reader = listener
		if limit > 0 {
			from = io.LimitReader(listener, limit)
		}
		f.copy(dialer, from)
		if limit > 0 {
			p.close()
		}
		dialer.(*net.TCPConn).CloseWrite()
	})
	both.Wait()
	f.mu.Lock()
	delete(f.pairs, p)
	f.mu.Unlock()
}

// copy passes bytes on to their end, or to that of the connection, which is all there is to know.
func (f *Forwarder) copy(to io.Writer, from io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		f.mu.Lock()
		pass := f.pass
		f.mu.Unlock()
		if n > 0 && pass != nil {
			pass(n)
		}
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			return
		}
	}
}

// Watch has a function called before bytes go on, in either direction, with how many. They wait until it returns, and
// it may be called at several goroutines.
func (f *Forwarder) Watch(pass func(bytes int)) {
	f.mu.Lock()
	f.pass = pass
	f.mu.Unlock()
}

func (p *pair) close() {
	p.dialer.Close()
	p.listener.Close()
}

// Break breaks the connections that there are.
func (f *Forwarder) Break() {
	f.each((*pair).close)
}

func (f *Forwarder) each(do func(*pair)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p := range f.pairs {
		do(p)
	}
}

// Cut breaks the connections that there are and those to come, until Heal.
func (f *Forwarder) Cut() {
	f.mu.Lock()
	f.cut = true
	f.mu.Unlock()
	f.Break()
}

// Heal undoes Cut.
func (f *Forwarder) Heal() {
	f.mu.Lock()
	f.cut = false
	f.mu.Unlock()
}

// Limit breaks each connection that is made from now on behind so many bytes of
// answers; 0 is never.
func (f *Forwarder) Limit(bytes int64) {
	f.mu.Lock()
	f.limit = bytes
	f.mu.Unlock()
}

// Made is how many connections came.
func (f *Forwarder) Made() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made
}
