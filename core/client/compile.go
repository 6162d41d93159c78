package client

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport/content"
)

// compiling is a Compile in progress.
type compiling struct {
	answer chan *wire.Compiled // has room for the answer; closed without one if the session is lost
	slow   func(worker string, since time.Duration)
	text   []byte // if it is not part of the message: workers that compile it are sent it
	// message is the Compile, where the session outlives its controller.
	message []byte
}

// Compile implements Cluster.
func (r *remote) Compile(ctx context.Context, c CompileSpec) (*Remote, error) {
	begun := r.recorder.Clock()
	defer func() { r.called(begun, "compile", 0, int64(len(c.Code))) }()
	m := &wire.Compile{Format: c.Format, Code: c.Code, Options: c.Options, Handlers: c.Handlers,
		First: c.First}
	var text []byte
	if len(c.Code) > content.MaxSize {
		return nil, status.New(status.ResourceExhausted, "the program has %d bytes; at most %d, as many as XLA reads",
			len(c.Code), content.MaxSize)
	}
	if len(c.Code) > wire.ContentSize {
		m.Code, m.Text, text = nil, wire.ContentOf(c.Code), c.Code
	}
	answer := make(chan *wire.Compiled, 1)
	id := r.programs.Add(1)
	r.mu.Lock()
	if r.lost != nil {
		r.mu.Unlock()
		return nil, r.lost
	}
	m.Op, m.Program = id, id
	one := &compiling{answer: answer, slow: c.Slow, text: text}
	if r.kept.on {
		one.message, _ = proto.Marshal(m) // sendMessage finds the error
	}
	r.compiles[id] = one
	r.mu.Unlock()
	err := r.sendMessage(wire.KindCompile, m)
	if err == nil {
		select {
		case m, ok := <-answer:
			if !ok {
				return nil, r.Lost()
			}
			if err := m.Status.Err(); err != nil {
				return nil, err
			}
			return &Remote{ID: id, Info: m.Info}, nil
		case <-ctx.Done():
			err = status.New(status.Cancelled, "compiling was cancelled: %w", context.Cause(ctx))
			r.Forget(id)
		}
	}
	r.mu.Lock()
	delete(r.compiles, id)
	delete(r.texts, id) // the answer may have come meanwhile
	delete(r.devices, id)
	r.mu.Unlock()
	return nil, err
}

// Forget implements Cluster.
func (r *remote) Forget(program uint64) {
	r.mu.Lock()
	delete(r.texts, program)
	delete(r.devices, program)
	delete(r.lines, program)
	r.mu.Unlock()
	// if it fails, the session has ended and the program with it
	_ = r.sendMessage(wire.KindForget, &wire.Forget{Programs: []uint64{program}})
}

func (r *remote) compiled(payload []byte) error {
	m := new(wire.Compiled)
	if err := wire.Decode(wire.KindCompiled, payload, m); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.compiles[m.Op]; c != nil {
		delete(r.compiles, m.Op)
		if m.Status.Err() == nil && m.Info == nil {
			m.Status = wire.Of(status.New(status.Internal, "the controller's answer does not describe the compiled program"))
		}
		if m.Status.Err() == nil {
			r.keepDevices(m.Op, m.Info.GetDevices()) // from now on the session has it, see rejoin
			if c.text != nil {
				r.texts[m.Op] = c.text
			}
		}
		c.answer <- m
	}
	return nil
}

// give sends the text of a program to the worker that compiles it, also again.
func (r *remote) give(m *wire.Give) {
	r.mu.Lock()
	text := r.texts[m.Op]
	if c := r.compiles[m.Op]; c != nil {
		text = c.text
	}
	r.mu.Unlock()
	if text == nil {
		content.Refuse(r.exchange, m.To, m.Transfer,
			status.New(status.Cancelled, "the client does not wait for the program any more"))
		return
	}
	r.mu.Lock()
	r.giving[m.Transfer] = true
	r.mu.Unlock()
	// The worker tells the controller how it ended.
	content.Send(r.exchange, m.To, m.Transfer, [][]byte{text}, func(error) {
		r.mu.Lock()
		delete(r.giving, m.Transfer)
		r.mu.Unlock()
	})
}

// compiling reports a compilation that takes long to CompileSpec.Slow.
func (r *remote) compiling(m *wire.Compiling) {
	r.mu.Lock()
	c := r.compiles[m.Op]
	r.mu.Unlock()
	if c != nil && c.slow != nil {
		c.slow(m.Worker, time.Duration(m.SinceMs)*time.Millisecond)
	}
}
