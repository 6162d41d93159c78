package worker

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/host"
	"github.com/openpathways/pathways/transport/collective"
	"github.com/openpathways/pathways/transport/content"
)

type programKey struct {
	session uint32
	program uint64
}

// program is a loaded program.
type program struct {
	devicequeue.Recipe // of its runs
	form               wire.Loadable_Form
	artifact           uint64             // 0 if there is none
	ranks              []collective.Place // by row; of others' only where bytes are exchanged with them
	rows               []int              // those of this worker
	queues             []*queue           // of rows
	set                schedule.DeviceSet // of rows
	collective         bool
	unbounded          bool   // a run may take any time, see unbounded
	firstCall          []byte // the line of the first run that came with one; arrange owns it

	refs    atomic.Int32 // the table, the loader, and runs under way
	settled atomic.Bool  // exe or err is there; written after them
	quick   atomic.Int32 // slow runs in a row until it is no longer taken for quick
	exe     device.Executable
	err     error
	unload  func() // ends the use of exe
}

// quickTime is what Execute of a quick program takes at most: not much more than
// waking a goroutine that sleeps, some 20 µs where it wakes another thread.
const quickTime = 50 * time.Microsecond

// slowRuns is after how many slow runs in a row a program is no longer taken for quick. One
// may be slow because another thread had the processor.
const slowRuns = 2

// took records how long Execute took.
func (p *program) took(time time.Duration) {
	was, now := p.quick.Load(), int32(slowRuns)
	if time >= quickTime {
		now = max(was-1, 0)
	}
	if now != was {
		p.quick.Store(now)
	}
}

func (p *program) hold() { p.refs.Add(1) }

// release drops a reference; with the last one the executable goes.
func (p *program) release() {
	if p.refs.Add(-1) == 0 && p.unload != nil {
		p.unload()
	}
}

// inOrder reports whether a device computes the program after all that it was given before, and before all that it is
// given later.
func (p *program) inOrder() bool { return !p.Together && p.form != wire.Loadable_JOINED }

// gang is a run of the program, as the engine knows it.
func (p *program) gang(id uint64) collective.Gang {
	return collective.Gang{ID: id, Launch: launchID(id), Ranks: p.ranks}
}

// forget takes a program out of the table. Runs that were dispatched go on.
func (w *Worker) forget(key programKey) {
	if p := w.programs[key]; p != nil {
		delete(w.programs, key)
		p.release()
		w.settleConstants(p.artifact)
	}
}

// load loads a program while the queues go on. Runs of it wait until it is loaded.
func (w *Worker) load(m *wire.Load) {
	key := programKey{m.Session, m.Program}
	if w.programs[key] != nil {
		return // sent again
	}
	like := w.programs[programKey{m.LikeSession, m.LikeProgram}]
	if m.LikeProgram != 0 && like == nil {
		w.sendLoaded(key) // runs of it fail, since it is not there
		return
	}
	p := &program{Recipe: devicequeue.Recipe{Name: m.Name, Makes: len(m.Outputs)}, artifact: m.Loadable.GetArtifact()}
	if m.Loadable != nil {
		p.form, p.collective, p.Calls, p.unbounded = m.Loadable.Form, m.Loadable.Collective, m.Loadable.CallsHost,
			m.Loadable.Unbounded
	}
	if w.config.MemoryLimit > 0 {
		for _, o := range m.Outputs {
			n := w.queues[0].counted(o)
			p.Sizes, p.Bytes = append(p.Sizes, n), p.Bytes+n
		}
	}
	for _, d := range m.Donated {
		p.Donates = append(p.Donates, int(d))
	}
	var local []int
	if like != nil {
		p.ranks = like.ranks
	} else {
		p.ranks = w.places(m)
	}
	for row, at := range p.ranks {
		if at.Process == w.self && at.Local < len(w.queues) {
			p.rows, p.queues = append(p.rows, row), append(p.queues, w.queues[at.Local])
			local = append(local, at.Local)
		}
	}
	p.set = schedule.Devices(local...)
	p.Together = p.form != wire.Loadable_PORTABLE && len(p.rows) > 1
	// If devices are threads of one pool, a collective takes one of them until the other workers are there, and all
	// devices together may take them all.
	p.Alone = p.collective && !p.Together && w.config.Threads > 0
	p.Pooled = p.collective && p.Together && w.config.Threads > 0
	p.refs.Store(2)
	w.programs[key] = p
	w.beside.Go(func() {
		host.Behind()
		e := w.share(m.Loadable, p.ranks, local)
		p.exe, p.err, p.unload = e.exe, e.err, func() { w.unload(e) }
		p.settled.Store(true)
		for _, q := range w.queues {
			q.look()
		}
		w.sendLoaded(key)
		w.offer(e, p.form)
		p.release()
	})
}

// places returns the devices of a program by row, as far as the worker is told of them: those of others are process 0's
// where none exchange bytes.
func (w *Worker) places(m *wire.Load) []collective.Place {
	rows := 0
	for _, span := range m.Places {
		rows += int(min(span.GetCount(), wire.MaxDevices))
	}
	numbers := wire.NumbersOf(m.Devices)
	all := make([]collective.Place, 0, rows+len(numbers))
	for _, span := range m.Places {
		for k := range min(span.GetCount(), wire.MaxDevices) {
			all = append(all, collective.Place{Process: span.Worker, Local: int(span.Local + k)})
		}
	}
	for _, number := range numbers {
		var at collective.Place // elsewhere
		if q := w.device(m.Session, number); q != nil {
			at = collective.Place{Process: w.self, Local: q.local}
		}
		all = append(all, at)
	}
	return all
}

func (w *Worker) sendLoaded(key programKey) {
	loaded := &wire.Loaded{Session: key.session, Program: key.program}
	_ = w.conn.Send(wire.KindLoaded, wire.Encode(nil, loaded)) // the reader learns why
}

// executable makes what a Loadable describes, from its serialized form or else
// from its code. The bytes of an artifact stay in e.
func (w *Worker) executable(l *wire.Loadable, places []collective.Place, local []int, e *loaded) (x device.Executable,
	err error) {
	if l == nil {
		return nil, status.New(status.InvalidArgument, "there is nothing to load")
	}
	if l.Form == wire.Loadable_PORTABLE && len(places) > 1 && w.config.Engine == nil {
		return nil, status.New(status.Unimplemented, "worker %s carries no collectives between processes", w.config.Name)
	}
	missing, err := w.handlers(l.Handlers)
	if err != nil {
		return nil, err
	}
	if x := w.artifacts.takeLive(l, local); x != nil {
		return x, nil
	}
	serialized, code := l.Serialized, l.Code
	var constants []*content.Memory
	if l.Kept {
		if e.parts, err = w.fetch(l.Artifact); err != nil {
			return nil, err
		}
		if x := w.artifacts.takeLive(l, local); x != nil { // it was compiled here meanwhile
			return x, nil
		}
		serialized, code, constants = e.parts[0].Data, e.parts[1].Data, e.parts[2:]
	}
	done, err := w.slot(w.ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	defer func() { err = missing.explain(err) }()
	var unloaded error
	if len(serialized) > 0 && !l.Other {
		x, err := w.driver.Load(w.ctx, serialized)
		if err == nil && l.Form != wire.Loadable_PORTABLE && !slices.Equal(x.Devices(), local) {
			x.Close()
			err = status.New(status.FailedPrecondition, "it was compiled for other devices")
		}
		if err == nil {
			return w.withConstants(x, constants)
		}
		unloaded = err
	}
	if len(code) == 0 {
		if unloaded == nil {
			unloaded = status.New(status.InvalidArgument, "it has neither a serialized form nor code")
		}
		return nil, unloaded
	}
	options := l.Options
	if l.Form != wire.Loadable_PORTABLE {
		if options, err = w.assign(options, l.Form, places); err != nil {
			return nil, err
		}
	}
	if x, err = w.driver.Compile(w.ctx, device.Program{Format: l.Format, Code: code}, options); err != nil {
		return nil, err
	}
	return w.withConstants(x, constants)
}

// slot waits until one more may compile or load.
func (w *Worker) slot(ctx context.Context) (done func(), err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case w.slots <- struct{}{}:
		return func() { <-w.slots }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
