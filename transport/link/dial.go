package link

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/resume"
)

// The dialing side. It dials again until the accepting side continues the link, refuses it, or the lease is over. Each
// attempt has a higher number than those before, so one that this side gave up cannot win later. A refusal that
// another attempt cannot change (see resume.Passes) ends the Conn with the sentence of the accepting side. The wait
// between attempts ends with the Conn, and one attempt ends by itself after transport.HelloTime.

// dialer replaces the lines of the side that dialed.
type dialer struct {
	dialer  transport.Dialer
	address string
	hello   *wire.Hello // of a Resume
	attempt uint64
}

// Dial connects as d does. If the other side offers a link, the connection outlives its line, and d dials again.
func Dial(ctx context.Context, d transport.Dialer, address string, hello *wire.Hello) (transport.Conn, *wire.Welcome,
	error) {
	conn, welcome, err := d.Dial(ctx, address, hello)
	if err != nil || welcome.Link == nil {
		return conn, welcome, err
	}
	l, ok := conn.(line)
	if !ok {
		conn.Close()
		return nil, nil, status.New(status.Internal, "%s offers a link over a connection that carries none", address)
	}
	again := proto.CloneOf(hello)
	again.Worker, again.Member = nil, nil
	again.Resume = &wire.Resume{Link: welcome.Link.Id, Secret: welcome.Link.Secret, Term: welcome.Link.Term}
	c := newConn(l, &dialer{dialer: d, address: address, hello: again})
	c.heard = true
	c.lease = time.Duration(welcome.Link.LeaseMs) * time.Millisecond
	_ = l.Post(wire.KindReceived, make([]byte, 8)) // this side knows the secret from now on
	return c, welcome, nil
}

func (d *dialer) ends() {}

// next implements replacer.
func (d *dialer) next(c *Conn, broken error) error {
	for attempt := 0; ; attempt++ {
		err := d.try(c)
		switch {
		case err == nil:
			return nil
		case c.ctx.Err() != nil:
			return err // finish knows why it has ended
		case !resume.Passes(err):
			return status.Wrap(err, "%s does not resume the connection, which broke (%v)", d.address, broken)
		case time.Since(c.since) >= c.lease:
			return status.New(status.Unavailable, "%w; it could not be made again within %v: %w", broken, c.lease, err)
		}
		timer := time.NewTimer(resume.Pause(d.hello.Resume.Link, attempt))
		select {
		case <-timer.C:
		case <-c.ctx.Done():
			timer.Stop()
		}
	}
}

// try makes one attempt.
func (d *dialer) try(c *Conn) error {
	d.attempt++
	d.hello.Resume.Attempt, d.hello.Resume.Received = d.attempt, c.received.Count()
	conn, welcome, err := d.dialer.Dial(c.ctx, d.address, d.hello)
	if err != nil {
		return err
	}
	l, ok := conn.(line)
	if !ok || welcome.Resumed == nil {
		conn.Close()
		return status.New(status.FailedPrecondition, "%s answered as if the connection were new", d.address)
	}
	if term := welcome.Resumed.Term; term != 0 {
		d.hello.Resume.Term = term
		c.restart()
	}
	err = c.carry(l, welcome.Resumed.Received, func() error { return nil })
	if err != nil {
		drop(l)
	}
	return err
}
