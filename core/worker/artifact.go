package worker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/host"
	"github.com/openpathways/pathways/transport/collective"
	"github.com/openpathways/pathways/transport/content"
)

// What programs are made of, for all sessions: executables, which each worker loads once however many sessions run
// them, and the bytes of those that are too long for messages. The controller's side is core/controller/artifact.go.

// artifacts are the compiled programs of a worker.
type artifacts struct {
	mu       sync.Mutex
	kept     map[uint64]*artifact     // that were compiled here and did not go with the answer, by number
	bytes    int64                    // of kept, that are in Go's heap: package content counts the others
	loaded   map[string]*loaded       // by artifact and devices
	fetching map[uint64]chan struct{} // closed when the bytes of an artifact have come, or not
	asked    map[uint64]chan source   // have room for the answer
	giving   map[uint64]bool          // transfers from here that have not ended
	// start ends when the controller has started again: transfers that the controller had begun are begun anew then.
	start context.Context
	ended context.CancelCauseFunc
}

// source is the controller's answer to who has an artifact, and the start of the controller that gave it.
type source struct {
	*wire.Source
	start context.Context
}

// artifact is a compiled program that this worker has.
type artifact struct {
	serialized, code *content.Memory   // nil if there is none
	constants        []*content.Memory // see constantsOf; none if there are none
	settled          bool              // constants are in a file, or on their way there
	live             device.Executable // as the compiler made it, until a program takes it
	bytes            int64             // of artifacts.bytes
}

// parts are what is sent of an artifact: its parts 0 to 3, of which the last two may be missing.
func (a *artifact) parts() []*content.Memory {
	return append([]*content.Memory{a.serialized, a.code}, a.constants...)
}

// loaded is an executable that programs of any sessions share.
type loaded struct {
	key    string
	number uint64
	done   chan struct{} // closed when exe or err is there
	exe    device.Executable
	err    error
	parts  []*content.Memory // that it was loaded from, for others; nil if there are none
	users  int               // guarded by artifacts.mu
	told   bool              // the controller, that others can have it from here; guarded by artifacts.mu
}

func (a *artifacts) init(ctx context.Context) {
	a.kept, a.loaded = map[uint64]*artifact{}, map[string]*loaded{}
	a.fetching, a.asked, a.giving = map[uint64]chan struct{}{}, map[uint64]chan source{}, map[uint64]bool{}
	a.start, a.ended = context.WithCancelCause(ctx)
}

// text gets the text of a program from the client that has it.
//
// Errors: those of content.Receive; DATA_LOSS where it is another text; the cause of ctx.
func (w *Worker) text(ctx context.Context, t *wire.Content) (*content.Memory, error) {
	parts, err := w.receive(ctx, t.Process, t.Transfer, int64(t.Size))
	if err != nil {
		return nil, status.Wrap(err, "the program's text of %d bytes did not come", t.Size)
	}
	release(parts[1:]...)
	if sum := sha256.Sum256(parts[0].Data); !bytes.Equal(sum[:], t.Sha256) {
		parts[0].Release()
		return nil, status.New(status.DataLoss, "the program's text is not the one that was announced: it has %d bytes with "+
			"SHA-256 %x, expected %d with %x", len(parts[0].Data), sum, t.Size, t.Sha256)
	}
	return parts[0], nil
}

// receive waits for a transfer, or the end of ctx.
func (w *Worker) receive(ctx context.Context, from, transfer uint64, limit int64) (parts []*content.Memory, err error) {
	came := make(chan struct{})
	giveUp := content.Receive(w.config.Exchange, from, transfer, limit, func(got []*content.Memory, why error) {
		parts, err = got, why
		close(came)
	})
	stop := context.AfterFunc(ctx, func() { giveUp(context.Cause(ctx)) })
	<-came // also where ctx ends
	stop()
	return parts, err
}

// keep keeps what is too long for an answer, as constants always are. Text is the memory of the program's text, or nil.
func (w *Worker) keep(m *wire.Compile, l *wire.Loadable, x device.Executable, serialized device.Bytes,
	text *content.Memory) bool {
	a := &artifact{live: x}
	if with, ok := x.(*withConstants); ok {
		a.constants = with.hold()
		l.Bytes += int64(len(with.data.Data))
	} else if m.Inline == 0 || uint64(len(serialized.Data)+len(l.Code)) <= m.Inline {
		return false
	}
	if len(serialized.Data) > 0 {
		a.serialized = content.Own(serialized.Data, serialized.Release)
		l.Bytes += int64(len(serialized.Data))
	}
	if a.serialized == nil || !w.loadsAnywhere(l.Form) { // others compile it again
		if text != nil && len(l.Code) > 0 && &text.Data[0] == &l.Code[0] {
			text.Hold()
			a.code = text
		} else {
			a.code = content.Bytes(l.Code)
			a.bytes = int64(len(l.Code))
		}
		l.Bytes += int64(len(l.Code))
	}
	l.Kept, l.Serialized, l.Code = true, nil, nil
	w.artifacts.add(m.Op, a)
	return true
}

// toFile moves the serialized form of an executable that was compiled here to a file, if possible. It must be kept
// beside the driver's executable as long as a session may run the program elsewhere, and mostly nothing asks for it.
// The driver cannot make it again: see parts.
func (a *artifacts) toFile(number uint64) {
	a.mu.Lock()
	k := a.kept[number]
	if k == nil || k.serialized == nil {
		a.mu.Unlock()
		return
	}
	in := k.serialized
	in.Hold()
	a.mu.Unlock()
	defer in.Release()
	file, err := content.Spilled(content.SpillFolder(), in.Data)
	if err != nil {
		return
	}
	a.mu.Lock()
	if a.kept[number] == k { // otherwise it was dropped meanwhile
		k.serialized, file = file, in
	}
	a.mu.Unlock()
	file.Release()
}

// spill moves what was received to files, as far as that is possible.
func spill(parts ...*content.Memory) {
	for _, part := range parts {
		_ = part.Spill(content.SpillFolder()) // otherwise it stays in memory
	}
}

// add keeps an artifact.
func (a *artifacts) add(number uint64, k *artifact) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept[number] = k
	a.bytes += k.bytes
}

// loadsAnywhere reports whether the serialized form of a program can be loaded by every worker that may be told to load
// it. Members of an epoch number their devices together, and the serialized form names devices.
func (w *Worker) loadsAnywhere(form wire.Loadable_Form) bool {
	return form == wire.Loadable_PORTABLE || form == wire.Loadable_NATIVE && w.config.DeviceID == nil
}

// drop forgets artifacts that were compiled here. Executables that were loaded stay with their programs.
func (a *artifacts) drop(numbers ...uint64) {
	for _, number := range numbers {
		a.mu.Lock()
		k := a.kept[number]
		delete(a.kept, number)
		if k != nil {
			a.bytes -= k.bytes
		}
		a.mu.Unlock()
		if k == nil {
			continue
		}
		for _, m := range k.parts() {
			if m != nil {
				m.Release()
			}
		}
		if k.live != nil {
			k.live.Close()
		}
	}
}

// close forgets all.
func (a *artifacts) close() {
	a.mu.Lock()
	var all []uint64
	for number := range a.kept {
		all = append(all, number)
	}
	a.mu.Unlock()
	a.drop(all...)
}

// share returns the executable of a program, which it loads unless it is there. The caller calls unload, also with an
// error.
func (w *Worker) share(l *wire.Loadable, places []collective.Place, local []int) *loaded {
	e := &loaded{number: l.GetArtifact(), done: make(chan struct{}), users: 1}
	if l.GetArtifact() != 0 {
		e.key = fmt.Sprint(l.Artifact, l.Other)
		if l.Form != wire.Loadable_PORTABLE {
			e.key = fmt.Sprint(e.key, places)
		}
		a := &w.artifacts
		a.mu.Lock()
		if there := a.loaded[e.key]; there != nil {
			there.users++
			a.mu.Unlock()
			<-there.done // it ends with the worker's ctx, as below
			return there
		}
		a.loaded[e.key] = e
		a.mu.Unlock()
	}
	e.exe, e.err = w.executable(l, places, local, e)
	if e.err != nil && e.key != "" { // the next one tries again
		w.artifacts.mu.Lock()
		delete(w.artifacts.loaded, e.key)
		w.artifacts.mu.Unlock()
	}
	close(e.done)
	return e
}

// offer tells the controller that this worker can send an artifact to others, if it can. Otherwise, or if it sends from
// its store, it releases the bytes from which the artifact was loaded. The caller uses e. Writing a long executable to
// a file takes as long as loading it, so runs do not wait for this.
func (w *Worker) offer(e *loaded, form wire.Loadable_Form) {
	a := &w.artifacts
	a.mu.Lock()
	if e.parts == nil || e.told {
		a.mu.Unlock()
		return
	}
	// If it cannot be loaded anywhere, it lacks the code that others need.
	tell := e.err == nil && w.loadsAnywhere(form) && a.kept[e.number] == nil && len(e.parts[0].Data) > 0
	parts := e.parts
	if e.told = tell; !tell {
		e.parts = nil
	}
	a.mu.Unlock()
	if tell {
		w.sendHave(e.number, false)
		spill(parts[:2]...) // runs read the constants
	} else {
		release(parts...)
	}
}

// forgetParts releases the bytes that an executable was loaded from.
func (e *loaded) forgetParts() {
	release(e.parts...)
	e.parts = nil
}

func release(parts ...*content.Memory) {
	for _, part := range parts {
		part.Release()
	}
}

func (w *Worker) sendHave(number uint64, no bool) {
	_ = w.conn.Send(wire.KindHave, wire.Encode(nil, &wire.Have{Artifact: number, No: no})) // the reader learns why
}

// unload ends the use of an executable.
func (w *Worker) unload(e *loaded) {
	a := &w.artifacts
	a.mu.Lock()
	e.users--
	last, told := e.users == 0, e.told
	if last && a.loaded[e.key] == e {
		delete(a.loaded, e.key)
	}
	a.mu.Unlock()
	if !last {
		return
	}
	if told {
		w.sendHave(e.number, true)
	}
	e.forgetParts()
	if e.exe != nil {
		e.exe.Close()
	}
}

// takeLive returns the executable that the compiler made, once, where it is the one to be loaded; else nil.
func (a *artifacts) takeLive(l *wire.Loadable, local []int) device.Executable {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.kept[l.Artifact]
	if !l.Kept || l.Other || k == nil || k.live == nil ||
		l.Form != wire.Loadable_PORTABLE && !slices.Equal(k.live.Devices(), local) {
		return nil
	}
	x := k.live
	k.live = nil
	return x
}

// held returns what is kept here of an artifact, for the caller to release; nil if nothing is.
func (a *artifacts) held(number uint64) []*content.Memory {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.kept[number]
	if k == nil {
		return nil
	}
	parts := k.parts()
	for i, m := range parts {
		if m == nil {
			parts[i] = content.Bytes(nil)
		} else {
			m.Hold()
		}
	}
	return parts
}

// fetchTries is how often an artifact is asked for: that often a sender may be lost or lack it, or the controller start
// again.
const fetchTries = 5

// fetchPause is between the first two tries, and twice as long between the next two, and so on: this worker may know
// that a sender has gone before the controller does, which then names the same one again.
const fetchPause = 10 * time.Millisecond

// fetch returns the serialized form and the code of an artifact, for the caller to release: from this worker's store,
// or from a worker that the controller names.
func (w *Worker) fetch(number uint64) (parts []*content.Memory, err error) {
	a := &w.artifacts
	for { // one at a time: the controller knows of one transfer of an artifact to this worker
		if parts, err := w.parts(number); err == nil {
			return parts, nil
		}
		a.mu.Lock()
		other := a.fetching[number]
		if other == nil {
			break
		}
		a.mu.Unlock()
		<-other
	}
	done := make(chan struct{})
	a.fetching[number] = done
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.fetching, number)
		a.mu.Unlock()
		close(done)
	}()
	for try := range fetchTries {
		if try > 0 {
			w.pause(fetchPause << (try - 1))
		}
		s, why := w.ask(number)
		if why != nil {
			return nil, why
		}
		if err = s.Status.Err(); err != nil {
			return nil, err
		}
		if s.Content.GetProcess() == w.self { // it came here meanwhile
			if parts, err = w.parts(number); err == nil {
				return parts, nil
			}
			err = status.New(status.Unavailable, "this worker no longer has the compiled program")
			continue
		}
		if parts, err = w.receive(s.start, s.Content.GetProcess(), s.Content.GetTransfer(), 2*content.MaxSize); err == nil {
			w.sendFetched(number)
			return parts, nil
		}
		if status.CodeOf(err) != status.Unavailable {
			break
		}
	}
	w.sendFetched(number)
	return nil, status.Wrap(err, "the compiled program did not come")
}

// sendFetched tells the controller that nothing is on its way here any more: the sender has time for another. This
// worker cannot send on what has come yet, unless it was compiled here meanwhile.
func (w *Worker) sendFetched(number uint64) {
	w.artifacts.mu.Lock()
	kept := w.artifacts.kept[number] != nil
	w.artifacts.mu.Unlock()
	w.sendHave(number, !kept)
}

// pause blocks for a while, or until the worker ends.
func (w *Worker) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.ctx.Done():
	}
}

// ask asks the controller which worker has an artifact.
func (w *Worker) ask(number uint64) (source, error) {
	answer := make(chan source, 1)
	w.artifacts.mu.Lock()
	w.artifacts.asked[number] = answer
	w.artifacts.mu.Unlock()
	if err := w.conn.Send(wire.KindWant, wire.Encode(nil, &wire.Want{Artifact: number})); err != nil {
		return source{}, err
	}
	select {
	case s := <-answer:
		return s, nil
	case <-w.ctx.Done():
		return source{}, context.Cause(w.ctx)
	}
}

// wanted returns the artifacts that were asked for and not answered.
func (a *artifacts) wanted() []uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.asked))
}

// offered returns the artifacts that the controller was told others can have from here.
func (a *artifacts) offered() []uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.Collect(maps.Keys(a.kept))
	for _, l := range a.loaded {
		if l.told {
			all = append(all, l.number)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// source takes the answer. There may be a second one where the controller was asked again.
func (w *Worker) source(m *wire.Source) {
	a := &w.artifacts
	a.mu.Lock()
	answer := a.asked[m.Artifact]
	delete(a.asked, m.Artifact)
	start := a.start
	a.mu.Unlock()
	if answer != nil {
		answer <- source{m, start}
	} else if transfer := m.Content.GetTransfer(); transfer != 0 {
		content.Fail(w.config.Exchange, transfer, status.New(status.Unavailable, "this worker did not ask for it"))
	}
}

// give sends an artifact to another worker.
func (w *Worker) give(m *wire.Give) {
	a := &w.artifacts
	a.mu.Lock()
	a.giving[m.Transfer] = true
	a.mu.Unlock()
	w.beside.Go(func() {
		host.Behind()
		parts, err := w.parts(m.Artifact)
		if err != nil {
			a.given(m.Transfer)
			content.Refuse(w.config.Exchange, m.To, m.Transfer,
				status.New(status.Unavailable, "worker %s: %w", w.config.Name, err))
			w.sendHave(m.Artifact, true)
			return
		}
		var data [][]byte
		for _, part := range parts {
			data = append(data, part.Data)
		}
		content.Send(w.config.Exchange, m.To, m.Transfer, data, func(error) { // who receives it asks another
			a.given(m.Transfer)
			release(parts...)
		})
	})
}

func (a *artifacts) given(transfer uint64) {
	a.mu.Lock()
	delete(a.giving, transfer)
	a.mu.Unlock()
}

// parts returns the stored form of an artifact, or the bytes from which an executable was loaded. That one is not
// serialized again: XLA's serialization of an executable for CPUs that it has loaded does not run.
func (w *Worker) parts(number uint64) ([]*content.Memory, error) {
	a := &w.artifacts
	if parts := a.held(number); parts != nil {
		return parts, nil
	}
	a.mu.Lock()
	var e *loaded
	for _, l := range a.loaded {
		if l.number == number && l.told {
			e = l
			e.users++
			break
		}
	}
	a.mu.Unlock()
	if e == nil {
		return nil, status.New(status.NotFound, "it does not have compiled program %d any more", number)
	}
	defer w.unload(e)
	for _, part := range e.parts {
		part.Hold()
	}
	return e.parts, nil
}
