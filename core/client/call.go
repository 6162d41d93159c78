package client

import (
	"unsafe"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// calling is a run in flight that may call functions of this client. remote.mu guards it.
type calling struct {
	call  func(*HostCall)
	under int                // calls that have not ended
	begun map[[2]uint64]bool // calls, by worker and part: a controller that starts again may pass one on again
	over  bool               // the run has ended
	err   error              // the run's error, if over
}

// hostCall starts a call.
func (r *remote) hostCall(m *wire.HostCall) {
	r.mu.Lock()
	p := r.pending[m.Op]
	again := false
	if p.calls != nil {
		name := [2]uint64{m.Worker, m.Part}
		if again = p.calls.begun[name]; !again {
			if p.calls.begun == nil {
				p.calls.begun = map[[2]uint64]bool{}
			}
			p.calls.begun[name] = true
			p.calls.under++
		}
	}
	r.mu.Unlock()
	if again {
		return
	}
	key := transport.Key{Space: r.space, ID: m.Op, Part: m.Part}
	reply := transport.Key{Space: r.space, ID: m.Op, Part: m.Part + 1}
	arguments, results := wire.HostBytes(m.Arguments), wire.HostBytes(m.Results)
	switch {
	case p.calls == nil:
		// The run has ended or has no functions: fail the call, and drop the blocks that the worker pushes.
		err := status.New(status.FailedPrecondition, "host callback %d has no Python function in this execution. Callbacks "+
			"belong to the process that traced them: trace and compile the function again here", m.Index)
		r.exchange.Push(m.Worker, reply, max(results, 0), func(_ []byte, written func(error)) { written(err) },
			func(error) {})
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
		// The results have memory of their own, because the run that waits for them may
		// end while the function still writes them.
		block := aligned(results)
		p.calls.call(&HostCall{
			Index: m.Index, Arguments: hostValues(m.Arguments, b.Data), Results: hostValues(m.Results, block),
			Done: func(err error) {
				b.Release()
				if err == nil {
					r.exchange.PushBytes(m.Worker, reply, block, func(error) {})
				} else {
					r.exchange.Push(m.Worker, reply, results, func(_ []byte, written func(error)) { written(err) }, func(error) {})
				}
				r.returned(p)
			}})
	})
}

// aligned returns zeroed bytes that begin at a multiple of 64.
func aligned(size int64) []byte {
	b := make([]byte, size+63)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & 63
	return b[skip : skip+int(size)]
}

func hostValues(values []*wire.HostValue, block []byte) []HostValue {
	out := make([]HostValue, len(values))
	for i, data := range wire.HostParts(values, block) {
		out[i] = HostValue{Type: values[i].Type, Dims: values[i].Dims, Data: data}
	}
	return out
}

// returned ends a call, and its run if the run waited only for this call.
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
