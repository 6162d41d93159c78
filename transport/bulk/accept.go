package bulk

import (
	"bytes"
	"context"
	"log/slog"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/stream"
)

// Take makes a link, or a stream of one, of a connection that has come. It does
// not wait.
func (x *Exchange) Take(in *transport.Incoming) {
	refuse := func(err error) {
		x.log.Log(x.ctx, x.level(err), "a link was refused", "peer", in.Peer(), "why", err)
		in.Refuse(err)
	}
	h := in.Hello
	conn, ok := in.Conn.(*stream.Conn)
	switch {
	case !ok:
		refuse(status.New(status.Unimplemented, "links are made by unix or tcp addresses"))
		return
	case h.Role != wire.Role_ROLE_PEER:
		refuse(status.New(status.InvalidArgument,
			"this is a process's address for the bytes of its peers; clients and workers connect to the controller"))
		return
	case h.Process == 0 || h.Process == x.config.Self:
		refuse(status.New(status.InvalidArgument, "a link from process %d to process %d; expected one from another process",
			h.Process, x.config.Self))
		return
	case h.Cluster != x.config.Hello.Cluster:
		refuse(status.New(status.FailedPrecondition,
			"the link is of cluster %q, this process of %q; the controller was restarted, or the address is another "+
				"cluster's", h.Cluster, x.config.Hello.Cluster))
		return
	}
	p, err := x.find(h.Process, true)
	if err != nil {
		refuse(err)
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed != nil { // no goroutine begins after Close waits
		go refuse(x.closed)
		return
	}
	x.running.Go(func() {
		if err := x.take(p, in, conn); err != nil {
			level := x.level(err)
			if p.reason() != nil { // that it has gone was logged; it may dial once more before it is told
				level = slog.LevelDebug
			}
			x.log.Log(x.ctx, level, "a link was dropped", "peer", in.Peer(), "why", err)
			conn.Close()
			conn.DropFiles()
		}
	})
}

// level returns the level at which the end of a connection is logged that is not a link yet. A peer that hangs up has
// gone, or will dial again.
func (x *Exchange) level(err error) slog.Level {
	if x.ctx.Err() != nil || status.CodeOf(err) == status.Unavailable {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

func (x *Exchange) take(p *peer, in *transport.Incoming, conn *stream.Conn) error {
	// A file may come right after the first message.
	conn.TakeFiles()
	if err := in.Welcome(&wire.Welcome{Process: x.config.Self}); err != nil {
		return err
	}
	kind, payload, err := x.first(conn)
	switch {
	case err != nil:
		return err
	case kind == kindResume && len(payload) == resumeSize:
		return x.resume(p, conn, payload)
	case len(payload) != tokenSize || kind != kindLink && kind != kindStream:
		return status.New(status.InvalidArgument, "a link began with a message of kind %d and %d bytes", kind, len(payload))
	case kind == kindLink:
		return x.link(p, conn, [tokenSize]byte(payload))
	}
	x.mu.Lock()
	l := x.links[[tokenSize]byte(payload)]
	x.mu.Unlock()
	if l == nil || l.peer != p {
		return status.New(status.InvalidArgument, "a stream came of a link that is not there")
	}
	p.mu.Lock()
	c := l.carrier
	p.mu.Unlock()
	err = l.addStripe(c, conn, kindStream)
	if status.CodeOf(err) == status.InvalidArgument {
		l.lost(err)
	} else if err != nil && c != nil {
		l.breaks(c, err)
	}
	return err
}

// link makes a link of a connection that the peer dialed, or continues a link over it that the peer does not know yet.
// If answers are lost the peer dials again and again, and each of these connections has a goroutine here: they look and
// join one at a time, so that they make one link.
func (x *Exchange) link(p *peer, conn *stream.Conn, token [tokenSize]byte) error {
	p.linking.Lock()
	defer p.linking.Unlock()
	if l := p.unknown(); l != nil {
		return l.adopt(conn, token)
	}
	l := newLink(p, conn)
	l.token, l.accepted = token, true
	if err := x.register(l, token); err != nil {
		return err
	}
	if err := p.joined(l); err != nil {
		x.forget(l)
		return err
	}
	return nil
}

// register makes a link known by a token. Tokens are not used twice.
func (x *Exchange) register(l *link, token [tokenSize]byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.links[token] != nil {
		return status.New(status.InvalidArgument, "a link was announced twice")
	}
	x.links[token] = l
	return nil
}

// resume continues a link over a connection that its peer dialed.
func (x *Exchange) resume(p *peer, conn *stream.Conn, payload []byte) error {
	r := reader{b: payload[tokenSize:]}
	attempt, received := r.u64(), r.u64()
	x.mu.Lock()
	l := x.links[[tokenSize]byte(payload)]
	x.mu.Unlock()
	var err error
	if l == nil || l.peer != p || !l.accepted {
		if err = p.reason(); err == nil {
			err = status.New(status.NotFound, "%s knows no such link to %s", x.title(), p.name())
		}
		err = status.New(status.FailedPrecondition, "%s has ended the link: %w", x.title(), err)
	} else {
		err = l.retake(conn, attempt, received, func() error {
			return conn.Post(kindResume, resumeFrame(l.token, attempt, l.received.Count()))
		})
		if status.CodeOf(err) == status.InvalidArgument {
			l.lost(err)
		}
	}
	if err != nil {
		_ = conn.Post(kindGoodbye, withStatus(nil, err)) // it may have gone
	}
	return err
}

// unknown is a link that the peer dialed and does not know: its connection broke
// before the peer had the answer, or else it would not dial another.
func (p *peer) unknown() *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.accepted && l.attempt == 0 {
			return l
		}
	}
	return nil
}

// adopt takes a connection for a link that the peer does not know, with the token that the
// peer knows.
func (l *link) adopt(conn *stream.Conn, token [tokenSize]byte) error {
	x := l.x
	if err := x.register(l, token); err != nil {
		return err
	}
	drop := token
	err := l.retake(conn, 1, 0, func() error {
		if l.received.Count() > 0 {
			return wrong("that it dials a link, and has used another")
		}
		drop, l.token, l.attempt = l.token, token, 0
		return conn.Post(kindLink, token[:])
	})
	x.mu.Lock()
	delete(x.links, drop)
	x.mu.Unlock()
	return err
}

// announce says what a connection that was dialed is for, and waits for the other
// side to agree. On an error the connection is closed.
func (x *Exchange) announce(conn *stream.Conn, kind wire.Kind, token [tokenSize]byte) error {
	err := conn.Post(kind, token[:])
	if err == nil {
		var back wire.Kind
		var payload []byte
		if back, payload, err = x.first(conn); err == nil && back == kindGoodbye {
			err = status.New(status.Unavailable, "%s ends", conn.Peer())
		} else if err == nil && (back != kind || !bytes.Equal(payload, token[:])) {
			err = wrong("a message of kind %d with %d bytes where it was to repeat one of kind %d", back, len(payload), kind)
		}
	}
	if err != nil {
		conn.Close()
		conn.DropFiles()
	}
	return err
}

// first waits a bounded time for the first message behind the greeting.
func (x *Exchange) first(conn *stream.Conn) (wire.Kind, []byte, error) {
	ctx, cancel := context.WithTimeout(x.ctx, transport.HelloTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	kind, payload, err := conn.Recv()
	if !stop() {
		return 0, nil, status.New(status.DeadlineExceeded,
			"%s did not say in time what the connection is for, or this side closes", conn.Peer())
	}
	return kind, payload, err
}

// forget lets no more streams join a link.
func (x *Exchange) forget(l *link) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.links[l.token] == l {
		delete(x.links, l.token)
	}
}
