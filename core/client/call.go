package client

import (
	"sync/atomic"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// calling is a run under way that may call functions of this client. Under mu.
type calling struct {
	call  func(*HostCall)
	under int   // calls that have not ended
	over  bool  // the run has ended meanwhile,
	err   error // with this
}

// hostCall begins a call. The results are written where they leave from.
func (r *remote) hostCall(m *wire.HostCall) {
	r.mu.Lock()
	p := r.pending[m.Op]
	if p.calls != nil {
		p.calls.under++
	}
	r.mu.Unlock()
	key := transport.Key{Space: r.space, ID: m.Op, Part: m.Part}
	reply := transport.Key{Space: r.space, ID: m.Op, Part: m.Part + 1}
	arguments, results := wire.HostBytes(m.Arguments), wire.HostBytes(m.Results)
	switch {
	case p.calls == nil:
		// It has ended, or has no functions: the worker is told so, and what it pushes dropped.
		err := status.New(status.FailedPrecondition, "host callback %d has no Python function in this execution. Callbacks belong to the process that traced them: trace and compile the function again here", m.Index)
		r.exchange.Push(m.Worker, reply, max(results, 0), func(_ []byte, written func(error)) { written(err) }, func(error) {})
		r.exchange.Expect(m.Worker, key, max(arguments, 0), nil, func(b transport.Block, err error) {
			if err == nil {
				b.Release()
			}
		})
		return
	case arguments < 0 || results < 0:
		r.returned(p)
		return
	}
	r.exchange.Expect(m.Worker, key, arguments, nil, func(b transport.Block, err error) {
		if err != nil {
			r.returned(p)
			return
		}
		over := func() {
			b.Release()
			r.returned(p)
		}
		var taken atomic.Bool // by the function, or by the end of a push that never came to it
		r.exchange.Push(m.Worker, reply, results, func(dst []byte, written func(error)) {
			if taken.Swap(true) {
				written(status.New(status.Cancelled, "the run has ended"))
				return
			}
			p.calls.call(&HostCall{Index: m.Index, Arguments: hostValues(m.Arguments, b.Data), Results: hostValues(m.Results, dst),
				Done: func(err error) {
					written(err)
					over()
				}})
		}, func(error) {
			if !taken.Swap(true) {
				over()
			}
		})
	})
}

func hostValues(values []*wire.HostValue, block []byte) []HostValue {
	out := make([]HostValue, len(values))
	for i, data := range wire.HostParts(values, block) {
		out[i] = HostValue{Type: values[i].Type, Dims: values[i].Dims, Data: data}
	}
	return out
}

// returned ends a call, and its run where that waits for it.
func (r *remote) returned(p pending) {
	c := p.calls
	r.mu.Lock()
	c.under--
	last := c.over && c.under == 0
	r.mu.Unlock()
	if last {
		r.tell([]Ended{{Token: p.token, Err: c.err}})
	}
}
