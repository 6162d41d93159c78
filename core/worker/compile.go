package worker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/core/xla/hlo"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/host"
	"github.com/openpathways/pathways/transport/collective"
	"github.com/openpathways/pathways/transport/content"
)

// compile compiles a program while the queues go on, and answers.
func (w *Worker) compile(m *wire.Compile) {
	ctx, giveUp := context.WithCancelCause(w.ctx)
	w.mu.Lock()
	w.giveUp[m.Op] = giveUp
	w.mu.Unlock()
	w.beside.Go(func() {
		host.Behind()
		answer := &wire.Compiled{Op: m.Op, Program: m.Program}
		text, err := w.compileOrFind(ctx, m, answer)
		defer text.Release()
		w.mu.Lock()
		delete(w.giveUp, m.Op)
		w.mu.Unlock()
		giveUp(nil)
		if err != nil {
			answer.Info, answer.Loadable = nil, nil
			answer.Status = wire.Of(status.Wrap(err, "compiling on worker %s", w.config.Name))
		}
		var parts []*content.Memory // for the cache; the controller may have them dropped when it has the answer
		keeps := err == nil && !answer.Cached && w.caches(m) && answer.Loadable.Form != wire.Loadable_JOINED
		if keeps && answer.Loadable.Kept {
			parts = w.artifacts.held(m.Op)
		}
		_ = w.conn.Send(wire.KindCompiled, w.encoded(answer)) // the reader learns why
		if !answer.Cached {                                   // what the cache has is in files
			w.artifacts.toFile(m.Op)
		}
		if keeps {
			w.toCache(m, answer, parts)
		}
	})
}

// encoded returns the message with an answer. Where it is too long to be sent, the message says so, and nothing is kept
// of the program, of which the controller does not learn.
func (w *Worker) encoded(answer *wire.Compiled) []byte {
	payload := wire.Encode(nil, answer)
	if len(payload) <= wire.MaxFrame {
		return payload
	}
	w.artifacts.drop(answer.Op)
	err := wire.TooLong(wire.KindCompiled, len(payload), wire.MaxFrame)
	return wire.Encode(nil, &wire.Compiled{Op: answer.Op, Program: answer.Program,
		Status: wire.Of(status.Wrap(err, "what worker %s compiled cannot be sent", w.config.Name))})
}

// textOf returns the memory of a program's text, which is part of the message or comes from a client, and sets m.Code.
func (w *Worker) textOf(ctx context.Context, m *wire.Compile) (*content.Memory, error) {
	if m.Text.GetTransfer() == 0 {
		return content.Bytes(m.Code), nil
	}
	text, err := w.text(ctx, m.Text)
	if err == nil {
		m.Code = text.Data
	}
	return text, err
}

// unwanted cancels a compile that no session waits for any more: one that has yet to
// begin, or that the driver can stop.
func (w *Worker) unwanted(op uint64) {
	w.mu.Lock()
	giveUp := w.giveUp[op]
	w.mu.Unlock()
	if giveUp != nil {
		giveUp(status.New(status.Cancelled, "the program is no longer needed"))
	}
}

func (w *Worker) compiled(ctx context.Context, m *wire.Compile, text *content.Memory) (info *wire.ProgramInfo,
	l *wire.Loadable, err error) {
	if len(m.Places) == 0 {
		return nil, nil, status.New(status.InvalidArgument, "a program for no devices")
	}
	done, err := w.slot(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	o, err := compileoptions.Parse(m.Options)
	if err != nil {
		return nil, nil, err
	}
	if n := o.Replicas * o.Partitions; n != len(m.Places) {
		return nil, nil, status.New(status.InvalidArgument,
			"compile options for %d replicas of %d partitions, and %d devices", o.Replicas, o.Partitions, len(m.Places))
	}
	form, err := w.form(m, o)
	if err != nil {
		return nil, nil, err
	}
	l = &wire.Loadable{Form: form, Format: m.Format, Code: m.Code, Options: m.Options,
		CallsHost: bytes.Contains(m.Code, hostCallTarget), Handlers: m.Handlers}
	missing, err := w.handlers(m.Handlers)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = missing.explain(err) }()
	if form == wire.Loadable_PORTABLE {
		return w.portable(ctx, m, o, l, text)
	}
	places := make([]collective.Place, len(m.Places))
	for i, p := range m.Places {
		places[i] = collective.Place{Process: p.Worker, Local: int(p.Local)}
	}
	options, err := w.assign(m.Options, form, places)
	if err != nil {
		return nil, nil, err
	}
	x, err := w.driver.Compile(ctx, device.Program{Format: m.Format, Code: m.Code}, options)
	if err != nil {
		return nil, nil, err
	}
	if info, err = describe(x, o); err != nil {
		return nil, nil, err
	}
	info.Collective = len(m.Places) > 1 && waits(info.Optimized)
	l.Collective, l.Unbounded = info.Collective, unbounded(info.Optimized)
	return info, l, w.finish(m, x, l, text)
}

// finish makes a Loadable of an executable, which it closes or keeps. Where the driver has no serialized form the
// program is compiled again wherever it is loaded.
func (w *Worker) finish(m *wire.Compile, x device.Executable, l *wire.Loadable, text *content.Memory) error {
	serialized, err := x.Serialize()
	if status.CodeOf(err) == status.Unimplemented {
		err = nil
	}
	if err == nil && w.keep(m, l, x, serialized, text) {
		return nil
	}
	l.Serialized = bytes.Clone(serialized.Data) // short: it goes with the answer
	serialized.Release()
	x.Close()
	return err
}

// form decides how the devices of a program run it.
func (w *Worker) form(m *wire.Compile, o compileoptions.Options) (wire.Loadable_Form, error) {
	alone := true
	for _, p := range m.Places {
		alone = alone && p.Worker == w.self
	}
	_, partitions := w.driver.(device.Partitioner)
	switch {
	case o.Portable:
		return wire.Loadable_PORTABLE, nil
	case alone && !(partitions && w.config.Engine != nil && len(m.Places) > 1 && w.callsUser(m)):
		// If a function of the user fails on one device, the others would wait in the plugin's own collectives, which nothing
		// can end but the process: ours end.
		return wire.Loadable_NATIVE, nil
	case w.config.DeviceID != nil: // first: drivers of plugins can partition, too
		return wire.Loadable_JOINED, nil
	case partitions:
		return wire.Loadable_PORTABLE, nil
	}
	return 0, status.New(status.Unimplemented, "the devices of the program belong to several workers, and platform %s "+
		"of worker %s can neither partition programs nor join workers: use the devices of one worker", w.driver.Platform(),
		w.config.Name)
}

// callsUser reports whether a program may call code of its user: functions of the client, and handlers of custom calls.
// On accelerators handlers are kernels, whose failure is their stream's.
func (w *Worker) callsUser(m *wire.Compile) bool {
	return len(m.Handlers) > 0 && w.driver.Platform() == "cpu" || bytes.Contains(m.Code, hostCallTarget)
}

// assign has compile options name the driver's devices in place of rows.
func (w *Worker) assign(options []byte, form wire.Loadable_Form, places []collective.Place) ([]byte, error) {
	ids := make([]int64, len(places))
	for i, p := range places {
		switch {
		case w.config.DeviceID != nil && form == wire.Loadable_JOINED:
			id, ok := w.config.DeviceID(p.Process, p.Local)
			if !ok {
				return nil, status.New(status.FailedPrecondition, "device %d of process %d is not a member of the island's epoch",
					p.Local, p.Process)
			}
			ids[i] = int64(id)
		case p.Process != w.self || p.Local >= len(w.queues):
			return nil, status.New(status.InvalidArgument, "worker %s has no device %d of process %d", w.config.Name, p.Local,
				p.Process)
		default:
			ids[i] = int64(w.driver.Devices()[p.Local].ID)
		}
	}
	return compileoptions.WithDevices(options, ids)
}

// describe returns an executable's description for clients. If it cannot, it closes the executable.
func describe(x device.Executable, o compileoptions.Options) (*wire.ProgramInfo, error) {
	info := &wire.ProgramInfo{Name: x.Name(), Fingerprint: x.Fingerprint(), Replicas: uint32(o.Replicas),
		Partitions: uint32(o.Partitions)}
	for _, o := range x.Outputs() {
		info.Outputs = append(info.Outputs, array(o.Shape, o.Memory))
	}
	params, donated, _ := x.Parameters()
	for _, p := range params {
		info.Parameters = append(info.Parameters, array(p, ""))
	}
	for _, d := range donated {
		info.Donated = append(info.Donated, uint32(d))
	}
	if code, err := x.Optimized(); err == nil {
		info.Optimized = hlo.WithoutConstants("hlo_with_config", code)
		orders(info)
	}
	c, err := x.Cost()
	if err != nil {
		x.Close()
		return nil, err
	}
	info.Cost = &wire.Cost{ArgumentBytes: c.ArgumentBytes, OutputBytes: c.OutputBytes, AliasBytes: c.AliasBytes,
		TempBytes: c.TempBytes, CodeBytes: c.CodeBytes}
	return info, nil
}

// orders returns the layouts of an optimized program's arrays. A program that cannot be read has them row-major.
func orders(info *wire.ProgramInfo) {
	s, err := hlo.ReadSignature("hlo_with_config", info.Optimized)
	if err != nil {
		return
	}
	set := func(arrays []*wire.Array, orders [][]int64) {
		for i := 0; i < len(arrays) && len(arrays) == len(orders); i++ {
			arrays[i].MinorToMajor = orders[i]
		}
	}
	set(info.Parameters, s.ParamOrders[:min(len(s.ParamOrders), len(info.Parameters))]) // without constants
	set(info.Outputs, s.ResultOrders)
}

func array(s shape.Shape, memory string) *wire.Array {
	return &wire.Array{Dtype: uint32(s.DType), Dims: s.Dims, Memory: memory}
}

// hostCallTarget is in the names of the custom calls by which programs call
// functions of their clients.
var hostCallTarget = []byte("python_cpu_callback")

// collectives are names of instructions whose devices wait for each other.
var collectives = [][]byte{[]byte("all-reduce"), []byte("all-gather"), []byte("all-to-all"), []byte("reduce-scatter"),
	[]byte("collective-"), []byte("send"), []byte("recv")}

// waits reports whether the devices of an optimized module may wait for each other. If a module is not known, it is
// assumed.
func waits(module []byte) bool {
	if len(module) == 0 {
		return true
	}
	for _, name := range collectives {
		if bytes.Contains(module, name) {
			return true
		}
	}
	return false
}

// A loop in an optimized module, by its opcode, and what XLA writes down of one whose
// number of turns it knows.
var (
	loop  = []byte("\x12\x05while") // field 2 of an instruction
	turns = []byte("known_trip_count")
)

// unbounded reports whether an optimized module has a loop whose number of turns is
// known only when it runs. Each run of such a program may take any time, however quick
// the one before was, so none may hold the goroutine that reads the connection.
func unbounded(module []byte) bool {
	return bytes.Count(module, loop) > bytes.Count(module, turns)
}

// portable makes a program that each device of several workers runs by itself,
// with our collectives.
func (w *Worker) portable(ctx context.Context, m *wire.Compile, o compileoptions.Options,
	l *wire.Loadable, text *content.Memory) (*wire.ProgramInfo, *wire.Loadable, error) {
	var optimized []byte // of all devices, without constants
	var constants []*content.Memory
	if !o.Portable {
		source := device.Program{Format: m.Format, Code: m.Code}
		part, err := w.driver.(device.Partitioner).Partition(ctx, source, m.Options, len(m.Places))
		if err != nil {
			return nil, nil, err
		}
		if len(part.Module.Data) > 0 {
			optimized = bytes.Clone(hlo.WithoutConstants("hlo_with_config", part.Module.Data))
		}
		constants, err = constantsOf(part.Constants)
		part.Module.Release()
		if err != nil {
			return nil, nil, err
		}
		defer release(constants...)
		l.Format, l.Code, l.Options, l.Collective = part.Program.Format, part.Program.Code, part.Options, part.Collective
	}
	x, err := w.driver.Compile(ctx, device.Program{Format: l.Format, Code: l.Code, Partitioned: !o.Portable}, l.Options)
	if err != nil {
		return nil, nil, err
	}
	if x, err = w.withConstants(x, constants); err != nil {
		return nil, nil, err
	}
	info, err := describe(x, o)
	if err != nil {
		return nil, nil, err
	}
	if len(constants) > 0 { // of which the driver knows no values
		sum := sha256.Sum256([]byte(info.Fingerprint + m.Key))
		info.Fingerprint = hex.EncodeToString(sum[:])
	}
	info.Collective, l.Unbounded = l.Collective, unbounded(info.Optimized)
	if optimized != nil {
		info.Optimized = optimized
	}
	return info, l, w.finish(m, x, l, text)
}
