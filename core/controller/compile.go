package controller

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/xla/compileoptions"
)

func (st *State) compileFor(s *session, m *wire.Compile, r *request) {
	if s.offered != nil && s.answered && len(s.postponed) < st.limits.Compiles {
		// It was sent after the answer to an offer, whose turn has not come yet: it is for the workers that will have the
		// devices then.
		s.postponed = append(s.postponed, postponed{m, r})
		return
	}
	if err := st.tryCompile(s, m, r); err != nil {
		st.send(s.to(), wire.KindCompiled, &wire.Compiled{Op: m.Op, Program: m.Program, Status: wire.Of(err)})
	}
}

// postponed is a Compile that waits for the answer to an offer, see rebind.go.
type postponed struct {
	m *wire.Compile
	r *request
}

// request is the decoded part of a client's Compile: all that takes time in proportion to its bytes.
type request struct {
	text     *wire.Content
	textErr  error
	parsed   compileoptions.Options
	options  []byte // equal for equal programs on other devices
	err      error  // of options
	handlers []byte // a hash, nil if there are none
	at       *place // of the program, where it was made beforehand; not the session's yet
}

// readCompile decodes a client's Compile. It reads nothing of State, so Server calls it without its lock.
func readCompile(m *wire.Compile) *request {
	r := new(request)
	if r.text, r.textErr = textOf(m); r.textErr != nil || len(m.Options) > maxOptions {
		return r
	}
	if r.parsed, r.err = compileoptions.Parse(m.Options); r.err == nil {
		r.options, r.err = compileoptions.ByRank(m.Options)
	}
	if len(m.Handlers) > 0 {
		h := sha256.New()
		for _, handler := range m.Handlers {
			if b, err := (proto.MarshalOptions{Deterministic: true}).Marshal(handler); err == nil { // what was decoded encodes
				put(h, b)
			}
		}
		r.handlers = h.Sum(nil)
	}
	return r
}

// put writes bytes to a hash, with their length, so that no other sequence of puts makes the same hash.
func put(h hash.Hash, b []byte) {
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(b))))
	h.Write(b)
}

// tryCompile gives a session its program: at once if it is compiled already, otherwise once it is.
func (st *State) tryCompile(s *session, m *wire.Compile, r *request) error {
	if r == nil {
		r = readCompile(m)
	}
	if err := st.admitProgram(s, m, r); err != nil {
		return err
	}
	p, err := st.placeOfProgram(s, m, r)
	if err != nil {
		return err
	}
	portable := r.parsed.Portable
	key := st.key(m, r, p)
	w := waiter{s: s, op: m.Op, program: m.Program, place: p, portable: portable}
	c := st.compiled[key]
	if c != nil && c.ready {
		st.install(c, w)
		return nil
	}
	if c != nil {
		s.compiling[w.program] = c
		c.waiting = append(c.waiting, w)
		return nil
	}
	c = &compiled{key: key, format: m.Format, text: r.text, code: m.Code, options: r.options, handlers: m.Handlers,
		waiting: []waiter{w}}
	st.compiled[key], s.compiling[w.program] = c, c
	st.begin(c)
	return nil
}

// admitProgram checks a client's message against the bounds of its session.
//
// Errors: RESOURCE_EXHAUSTED, INVALID_ARGUMENT.
func (st *State) admitProgram(s *session, m *wire.Compile, r *request) error {
	text, err := r.text, r.textErr
	switch {
	case err != nil:
	case text.Size > uint64(st.limits.Program) || len(m.Options) > maxOptions:
		err = status.New(status.ResourceExhausted, "the program has %d bytes, and its options %d; at most %d and %d",
			text.Size, len(m.Options), st.limits.Program, maxOptions)
	case proto.Size(m) > maxLoadable: // text that is not part of the message has no such bound
		err = status.New(status.ResourceExhausted, "the program's message has %d bytes; at most %d", proto.Size(m),
			maxLoadable)
	case len(s.compiling) >= st.limits.Compiles:
		err = status.New(status.ResourceExhausted, "%d programs of the session are being compiled, which is the limit",
			len(s.compiling))
	case len(s.programs) >= st.limits.Programs:
		err = status.New(status.ResourceExhausted, "the session has %d programs, which is its limit; delete some",
			len(s.programs))
	case m.Program == 0 || s.programs[m.Program] != nil || s.compiling[m.Program] != nil:
		err = invalid("program %d: programs are numbered from 1, and numbers are used once", m.Program)
	default:
		err = r.err
	}
	return err
}

// placeOfProgram returns the devices that a program is compiled for, all of one island and alive.
func (st *State) placeOfProgram(s *session, m *wire.Compile, r *request) (*place, error) {
	rows, err := st.rows(s, m, r.parsed)
	if err != nil {
		return nil, err
	}
	made := r.at
	if made != nil && made.in != s.binding {
		made = nil
	}
	p, err := st.placeMade(s, rows, made)
	if err != nil {
		return nil, err
	}
	if p.island == nil {
		return nil, status.New(status.Unimplemented,
			"the program's devices are of several islands; a computation runs on devices of one, whose slice_index is equal")
	}
	return p, st.alive(p)
}

// placeBeforehand is from how many devices on a program's place is made before Step: of fewer it takes some
// microseconds.
const placeBeforehand = 64

// surveyCompile returns work on a program's devices that needs nothing which changes, where they are many and the
// session has no place of them.
func (st *State) surveyCompile(ev *Event, s *session, m *wire.Compile) func() {
	r := ev.request
	if r == nil || r.textErr != nil || r.err != nil {
		return nil
	}
	rows, err := st.rows(s, m, r.parsed)
	if err != nil || len(rows) < placeBeforehand || s.places[string(appendRows(nil, rows))] != nil {
		return nil
	}
	b := s.binding
	return func() {
		if p, err := b.newPlace(s, rows); err == nil { // otherwise Step says why
			p.describe()
			r.at = p
			ev.tells(p)
		}
	}
}

// textOf returns the size and hash of a program's text. If the message has the text, Server has computed both without
// its lock. Otherwise they are the client's claim, which the worker that receives the text checks.
func textOf(m *wire.Compile) (*wire.Content, error) {
	t := m.Text
	if len(m.Code) > 0 && (t == nil || len(t.Sha256) == 0) {
		t = wire.ContentOf(m.Code)
	}
	switch {
	case t == nil:
		return new(wire.Content), nil
	case len(t.Sha256) != sha256.Size || t.Size == 0:
		return nil, invalid("a program's text has %d bytes and a hash of %d; expected a text, and %d", t.Size, len(t.Sha256),
			sha256.Size)
	}
	return &wire.Content{Size: t.Size, Sha256: t.Sha256}, nil
}

// rows are the session's devices that a program is for.
func (st *State) rows(s *session, m *wire.Compile, o compileoptions.Options) ([]uint32, error) {
	if o.Portable {
		first := min(m.First, uint32(s.len()-1))
		span, platform := s.view.SpanOf(int(first)), s.behind(first).platform
		here := slices.IndexFunc(s.at[span:], func(w *worker) bool { return w.gone == nil && w.platform == platform })
		if here > 0 {
			first = s.first(span + here)
		}
		return []uint32{first}, nil
	}
	n := o.Replicas * o.Partitions
	if n > s.len() {
		return nil, invalid("the program is for %s of %s; this session has %s", status.Count(o.Replicas, "replica"),
			status.Count(o.Partitions, "partition"), status.Count(s.len(), "device"))
	}
	rows := make([]uint32, n)
	for i := range rows {
		rows[i] = uint32(i)
		if o.Devices == nil {
			continue
		}
		if d := o.Devices[i]; d < 0 || d > math.MaxUint32 {
			return nil, invalid("the device assignment names device %d, which is not there", d)
		}
		rows[i] = uint32(o.Devices[i])
	}
	return rows, nil
}

// key returns the name of all programs that compile to the same result.
func (st *State) key(m *wire.Compile, r *request, p *place) string {
	h := sha256.New()
	first := st.workers[p.slot]
	put(h, []byte(m.Format))
	put(h, r.text.Sha256)
	put(h, r.options)
	if r.handlers != nil {
		put(h, r.handlers)
	}
	put(h, []byte(first.offer.Fingerprint))
	put(h, []byte(first.platform))
	put(h, []byte(first.offer.Platform.GetVersion()))
	if !r.parsed.Portable { // which rows are together, and where in their worker
		put(h, p.together())
	}
	return hex.EncodeToString(h.Sum(nil))
}
