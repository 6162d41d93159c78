package controller

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/wire"
)

// Dirty reports whether Flush has something to tell.
func (st *State) Dirty() bool { return len(st.dirty) > 0 }

// flush tells clients which operations have ended, and what their tenants may have on a worker's machine.
func (st *State) flush() {
	for _, s := range st.dirty {
		s.dirty = false
		if st.sessions[s.id] != s {
			continue
		}
		if s.conn != 0 {
			ok, failed := s.ok, s.failed
			for first := true; first || len(failed) > 0; first = false {
				n := min(len(failed), wire.MaxFailures)
				from := len(st.buffer)
				st.buffer = (&wire.Completed{Ok: ok, Failed: failed[:n],
					HostMemory: s.tenant.terms.HostMemory}).Append(st.buffer)
				st.deliver(s.to(), wire.KindCompleted, st.buffer[from:])
				ok, failed = nil, failed[n:]
			}
			s.underWay -= len(s.ok) + len(s.failed)
			s.ok = s.ok[:0]
			clear(s.failed)
			s.failed = s.failed[:0]
		}
	}
	clear(st.dirty)
	st.dirty = st.dirty[:0]
}

// send encodes a message for some connections.
func (st *State) send(to []uint64, kind wire.Kind, m proto.Message) {
	st.sendWith(to, kind, m, nil)
}

// sendWith is send of a message with more fields, which were encoded before and do not change.
func (st *State) sendWith(to []uint64, kind wire.Kind, m proto.Message, fields []byte) {
	if len(to) == 0 {
		return
	}
	size := proto.Size(m) + len(fields)
	if size >= lateSize {
		st.deliverLate(to, kind, &Late{Size: size, Encode: func() []byte { return append(wire.Encode(nil, m), fields...) }})
		return
	}
	st.room(size)
	from := len(st.buffer)
	st.buffer = append(wire.EncodeSized(st.buffer, m), fields...)
	st.deliver(to, kind, st.buffer[from:])
}

// sendKept is send for a message that must not be sent before its subject is on disk.
func (st *State) sendKept(to []uint64, kind wire.Kind, m proto.Message) {
	st.sendKeptWith(to, kind, m, nil)
}

// sendKeptWith is sendWith for such a message.
func (st *State) sendKeptWith(to []uint64, kind wire.Kind, m proto.Message, fields []byte) {
	st.sendWith(to, kind, m, fields)
	if n := len(st.out); n > 0 && len(to) > 0 {
		st.out[n-1].AfterKept = st.config.Keeps
	}
}

// room makes room for a payload of so many bytes after those of this Step. It does not move these, which would take as
// long as writing them.
func (st *State) room(size int) {
	if cap(st.buffer)-len(st.buffer) < size {
		st.buffer = make([]byte, 0, max(size, maxScratch))
	}
}

// messagesOfStep is how many messages a Step may send to each worker: the first operation of a session introduces it to
// them, and them to each other.
const messagesOfStep = 3

// makeRoom makes room for a Step's actions when a worker joins. The first Step that sends so many would take longer to
// make it than to send them.
func (st *State) makeRoom() {
	if n := messagesOfStep * len(st.present); cap(st.out)-len(st.out) < n {
		st.out = slices.Grow(st.out, 2*n)
	}
}

func (st *State) deliver(to []uint64, kind wire.Kind, payload []byte) {
	st.shut() // in order
	if len(to) > 0 {
		st.out = append(st.out, Action{Kind: Send, To: to, Wire: kind, Payload: payload})
	}
}

// deliverOwn sends each connection a payload and what is its own.
func (st *State) deliverOwn(to []uint64, kind wire.Kind, payload []byte, own [][]byte) {
	st.shut() // in order
	if len(to) > 0 {
		st.out = append(st.out, Action{Kind: Send, To: to, Wire: kind, Payload: payload, Own: own})
	}
}

func (st *State) deliverLate(to []uint64, kind wire.Kind, l *Late) {
	st.shut() // in order
	if len(to) > 0 {
		st.out = append(st.out, Action{Kind: Send, To: to, Wire: kind, Late: l})
	}
}

// forward passes a message on as it came.
func (st *State) forward(to []uint64, ev *Event) {
	if !ev.kept {
		st.deliver(to, ev.Wire, ev.Payload)
		return
	}
	payload := ev.Payload
	st.deliverLate(to, ev.Wire, &Late{Size: len(payload), Encode: func() []byte { return payload }})
}
