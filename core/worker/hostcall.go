package worker

import (
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
)

// A program that calls functions of its client is launched beside the queues: the driver may run it within Execute, and
// the functions may run programs on the same devices, which would stand behind it. Its outputs are pending meanwhile,
// and its inputs pinned.

// aside launches a part beside the queue. Its slot in the window stays taken, so that no more
// than the window have goroutines.
func (q *queue) aside(g *gang, r *run, f *devicequeue.Flight) {
	inputs := [][]device.Buffer{row(nil, f)}
	go func() {
		at := moments{given: q.w.elapsed()}
		results, err := r.execute(g, inputs, r.device(q))
		at.taken = q.w.elapsed()
		q.soon(func() {
			if err != nil {
				q.launchFailed(g, r, f, err)
			} else {
				q.launched(g, r, f, at, results.Outputs[0], results.Done[0], 0)
			}
		})
		g.abandon() // where it has failed since: the driver did not know it then
	}()
}

// calling is a call of a function of the client that has not returned.
type calling struct {
	g      *gang
	device int
	since  time.Time
	// message is what its client was sent: again if the controller starts again.
	message []byte
}

// hostCall passes a call on to the client. The device's program goes on when the
// results have come.
func (w *Worker) hostCall(c *device.HostCall) {
	g := w.launched(c.Launch)
	if g == nil {
		c.Done(status.New(status.Internal, "run %d, which calls its client, is not under way on worker %s", c.Launch,
			w.config.Name))
		return
	}
	m := &wire.HostCall{Session: g.Session, Op: g.op, Worker: w.self, Part: w.hostCalls.Add(2), Index: c.Index,
		Arguments: hostValues(c.Arguments), Results: hostValues(c.Results)}
	payload := wire.Encode(nil, m)
	if len(payload) > wire.MaxFrame {
		c.Done(status.Wrap(wire.TooLong(wire.KindHostCall, len(payload), wire.MaxFrame), "a call of the client"))
		return
	}
	w.mu.Lock()
	w.calls[m.Part] = calling{g, c.Local, time.Now(), payload}
	w.mu.Unlock()
	w.exchangeValues(g, c, m, func(err error) {
		w.mu.Lock()
		delete(w.calls, m.Part)
		w.mu.Unlock()
		go c.Done(err) // it may take as long as the rest of the program
	})
	if err := g.failure(); err != nil { // it failed before the exchange did know
		w.config.Exchange.Fail(transport.Transfers(g.Session), g.op, err)
		return
	}
	go func() { _ = w.conn.Send(wire.KindHostCall, payload) }() // the reader learns why
}

// exchangeValues sends a call's arguments and waits for its results. It calls done, once, with the error of the
// results, when both the arguments have left and the results have come: until then the memory of both is in use.
func (w *Worker) exchangeValues(g *gang, c *device.HostCall, m *wire.HostCall, done func(error)) {
	var left atomic.Int32
	var why error // of the results
	left.Store(2)
	over := func() {
		if left.Add(-1) == 0 {
			done(why)
		}
	}
	x := w.config.Exchange
	key := transport.Key{Space: transport.Transfers(g.Session), ID: g.op, Part: m.Part + 1}
	x.Expect(g.client, key, wire.HostBytes(m.Results), nil, func(b transport.Block, err error) {
		if why = err; err == nil {
			for i, data := range wire.HostParts(m.Results, b.Data) {
				copy(c.Results[i].Data, data)
			}
			b.Release()
		}
		over()
	})
	key.Part = m.Part
	x.Push(g.client, key, wire.HostBytes(m.Arguments), func(dst []byte, written func(error)) {
		for i, data := range wire.HostParts(m.Arguments, dst) {
			copy(data, c.Arguments[i].Data)
		}
		written(nil)
	}, func(err error) {
		if err != nil {
			x.Fail(key.Space, key.ID, err) // the results will not come
		}
		over()
	})
}

func hostValues(values []device.HostValue) []*wire.HostValue {
	out := make([]*wire.HostValue, len(values))
	for i, v := range values {
		out[i] = &wire.HostValue{Type: v.Type, Dims: v.Dims, Bytes: int64(len(v.Data))}
	}
	return out
}

// launched returns the gang that devices know by a number, or nil.
func (w *Worker) launched(number int32) *gang {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, g := range w.gangs {
		if launchID(id) == number {
			return g
		}
	}
	return nil
}
