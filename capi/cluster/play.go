package cluster

/*
#include <stdlib.h>
#include "play.h"
*/
import "C"

import (
	"encoding/binary"
	"runtime/cgo"
	"slices"
	"sync"
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/capi/export"
	"github.com/openpathways/pathways/core/client"
	dataflow "github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/reshard"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// lowerings are the graphs that a captured program became: one for each pattern of which inputs are whole objects and
// which are pieces.
type lowerings struct {
	s      *session
	mu     sync.Mutex
	graphs map[string]*lowered // guarded by mu
}

type lowered struct {
	id    uint64 // 0: it is played node by node
	nodes int
	made  int
	keeps []keep
}

// keep is a value that a play returns.
type keep struct {
	value int
	made  uint64 // its index among the objects that the graph makes
	node  int    // the node that makes it
}

// errNodes says that a program must be played node by node.
var errNodes = status.New(status.Unimplemented, "the program cannot be played at once")

//export prGoPlay
func prGoPlay(p *C.pp_program, list *C.pr_source, n C.size_t, freed *C.pw_name, numFreed C.size_t,
	shards **C.PJRT_Buffer, played *C.bool, message **C.char) (code C.int) {
	defer base.Guard(&code, message)
	free(freed, numFreed)
	s, err := of((*C.PJRT_Client)(p.base.client).session)
	if err != nil {
		*played = true
		return C.int(base.Fail(err, message))
	}
	handle := uintptr(C.pr_lowered(p))
	if handle == 0 {
		mine := cgo.NewHandle(&lowerings{s: s, graphs: map[string]*lowered{}})
		if handle = uintptr(C.pr_lower(p, C.uintptr_t(mine))); handle != uintptr(mine) {
			mine.Delete()
		}
	}
	all := cgo.Handle(handle).Value().(*lowerings)

	sources := unsafe.Slice(list, n)
	objects, places := distinct(sources)
	l := all.get(p, sources, places, len(objects))
	if l.id == 0 {
		return 0
	}
	*played = true
	for _, k := range l.keeps {
		if !C.pr_played_new(p, C.size_t(k.value), shards) { // p's caller destroys them
			return C.int(base.Fail(short("the results of a program"), message))
		}
	}
	token, err := s.plays.begin(l)
	if err != nil {
		return C.int(base.Fail(err, message))
	}
	spec := client.PlaySpec{Graph: l.id, Inputs: objects, Token: token, Stop: stopped()}
	if l.made > 0 {
		spec.First = s.cluster.Objects(l.made)
	}
	futures := s.plays.futures(spec.Token)
	s.underWay.Add(int64(l.nodes))
	if err := s.cluster.Play(&spec); err != nil {
		s.underWay.Add(-int64(l.nodes))
		s.plays.forget(spec.Token)
		return C.int(base.Fail(err, message))
	}
	for i, k := range l.keeps {
		C.pr_played(p, C.size_t(k.value), C.uint64_t(spec.First+k.made), futures[i], shards)
	}
	return 0
}

// interrupted reports whether the user has pressed Ctrl-C and this thread handles it. The exception is raised after the
// call has returned to Python: an error of the call would be raised before it.
func interrupted() bool {
	exception := C.pw_python_interrupted()
	if exception != nil {
		C.pw_python_raise(exception)
	}
	return exception != nil
}

// stopped checks now and then whether the user has interrupted this thread.
func stopped() func() error {
	listen := C.pp_listen()
	return func() error {
		if C.pp_interrupted(&listen) {
			return status.New(status.Cancelled, "the program was interrupted")
		}
		return nil
	}
}

//export prGoLosses
func prGoLosses(id C.uint64_t, upTo *C.uint64_t, n C.size_t) {
	s := get(id)
	if s == nil {
		return
	}
	out := unsafe.Slice(upTo, n)
	for d, object := range s.cluster.Losses() {
		if d < len(out) {
			out[d] = C.uint64_t(object)
		}
	}
}

//export prGoUnplay
func prGoUnplay(handle C.uintptr_t) {
	h := cgo.Handle(handle)
	all := h.Value().(*lowerings)
	h.Delete()
	for _, l := range all.graphs {
		if l.id != 0 && !all.s.closed.Load() {
			all.s.cluster.ForgetGraph(l.id)
		}
	}
}

// distinct returns the objects among sources, each once, and the index of each source's object.
func distinct(sources []C.pr_source) (objects []uint64, places []byte) {
	index := map[uint64]uint32{}
	places = make([]byte, 0, 2*len(sources))
	last, at := uint64(0), uint32(0)
	for i := range sources {
		if object := uint64(sources[i].object); object != last {
			known := false
			if at, known = index[object]; !known {
				at = uint32(len(objects))
				index[object] = at
				objects = append(objects, object)
			}
			last = object
		}
		places = binary.AppendUvarint(places, uint64(at))
	}
	return objects, places
}

// get returns the graph for sources with this pattern, which it makes once.
func (all *lowerings) get(p *C.pp_program, sources []C.pr_source, places []byte, inputs int) *lowered {
	all.mu.Lock()
	defer all.mu.Unlock()
	if l := all.graphs[string(places)]; l != nil {
		return l
	}
	l := &lowered{}
	low := lowering{s: all.s, p: p, sources: sources, graph: &dataflow.Graph{
		Inputs: inputs, Programs: map[uint64]*dataflow.Program{}}, l: l}
	for rest := places; len(rest) > 0; {
		at, n := binary.Uvarint(rest)
		rest = rest[n:]
		low.places = append(low.places, at+1)
	}
	if err := low.run(); err == nil {
		l.id, err = all.s.cluster.Define(low.graph)
		if err != nil {
			l.id = 0 // its nodes report what is wrong one by one
		}
	}
	l.nodes, l.made = len(low.graph.Nodes), low.graph.Made()
	all.graphs[string(places)] = l
	return l
}

// lowering writes a captured program as a graph of objects.
type lowering struct {
	s       *session
	p       *C.pp_program
	sources []C.pr_source
	places  []uint64 // of each source: its object in the graph
	graph   *dataflow.Graph
	l       *lowered
	objects []uint64 // of each value that a node has made; 0 for inputs
	first   []int    // of each value that is an input: its first source
	next    uint64
}

// shard is the place of one shard of a value.
type shard struct {
	object uint64
	device uint32
	owned  bool // the program may consume it
	look   *C.pp_look
}

func (low *lowering) run() error {
	p := low.p
	values := unsafe.Slice(p.values, p.num_values)
	low.objects, low.first = make([]uint64, len(values)), make([]int, len(values))
	at := 0
	for _, v := range unsafe.Slice(p.inputs, p.num_inputs) {
		low.first[v] = at
		at += int(values[v].n)
	}
	low.next = uint64(low.graph.Inputs) + 1
	nodes := unsafe.Slice(p.nodes, p.num_nodes)
	for i := range nodes {
		var err error
		switch n := &nodes[i]; n.kind {
		case C.PP_EXECUTE:
			err = low.execute(n)
		case C.PP_COPY:
			err = low.copy(n)
		default:
			err = low.reshard(n)
		}
		if err != nil {
			return err
		}
		for o := range int(nodes[i].outs) {
			if v := int(nodes[i].value) + o; values[v].kept {
				made := low.objects[v] - uint64(low.graph.Inputs) - 1
				low.l.keeps = append(low.l.keeps, keep{value: v, made: made, node: len(low.graph.Nodes) - 1})
				low.graph.Outputs = append(low.graph.Outputs, low.objects[v])
			}
		}
	}
	if len(low.graph.Nodes) > 1<<nodeBits {
		return errNodes
	}
	// An input that was already consumed fails where it is read, which a play by nodes reports.
	for i := range low.graph.Nodes {
		consumed := false
		low.graph.Donates(i, func(object uint64) { consumed = consumed || slices.Contains(low.graph.Outputs, object) })
		if consumed {
			return errNodes
		}
	}
	return nil
}

// find returns the place of a shard.
func (low *lowering) find(ref C.pp_ref) shard {
	if ref.value < 0 {
		i := len(low.sources) - int(low.p.num_constants) + int(ref.shard)
		return shard{object: low.places[i], device: uint32(low.sources[i].device)}
	}
	v := &unsafe.Slice(low.p.values, low.p.num_values)[ref.value]
	look := &unsafe.Slice(v.looks, v.n)[ref.shard]
	if v.node < 0 {
		i := low.first[ref.value] + int(ref.shard)
		return shard{object: low.places[i], device: uint32(low.sources[i].device), owned: bool(v.donated), look: look}
	}
	return shard{object: low.objects[ref.value], device: uint32(C.pr_device_number(look.device)), owned: true, look: look}
}

// add appends a node that makes these values.
func (low *lowering) add(n dataflow.Node, value, values int) {
	low.graph.Nodes = append(low.graph.Nodes, n)
	for i := range values {
		low.objects[value+i] = low.next
		low.next++
	}
}

func trace(n *C.pp_node) []byte { return []byte(C.GoString(n.location)) }

// execute appends a run of a program, and before it a transfer for each argument with rows on devices that the program
// does not read them on.
func (low *lowering) execute(n *C.pp_node) error {
	rows, args := int(n.rows), int(n.args)
	p, id := low.program(C.pr_executable(n))
	run := &dataflow.Run{Program: id, Inputs: make([]uint64, args), Only: -1, Trace: trace(n)}
	devices := p.Devices
	if n.only != nil {
		run.Only = int(C.pr_device_number(n.only))
		devices = []uint32{uint32(run.Only)}
	}
	if len(devices) != rows {
		return errNodes
	}
	for _, i := range unsafe.Slice((*int64)(n.kept), n.options.num_non_donatable_input_indices) {
		run.NotDonated = append(run.NotDonated, uint32(i))
	}
	refs := unsafe.Slice(n.refs, rows*args)
	for i := range args {
		pieces, owned, err := low.argument(refs, i, args, devices, run.Trace)
		if err != nil {
			return err
		}
		if !owned && !slices.Contains(run.NotDonated, uint32(i)) {
			run.NotDonated = append(run.NotDonated, uint32(i))
		}
		if len(pieces) == 1 {
			run.Inputs[i] = pieces[0].Object
		} else {
			run.Mixed = append(run.Mixed, dataflow.Mixed{Argument: uint32(i), Pieces: pieces})
		}
	}
	low.add(dataflow.Node{Run: run}, int(n.value), int(n.outs))
	return nil
}

// program describes a program to the graph when it is used first.
func (low *lowering) program(x *C.PJRT_Executable) (*dataflow.Program, uint64) {
	id := uint64(x.program)
	if known := low.graph.Programs[id]; known != nil {
		return known, id
	}
	p := &dataflow.Program{Name: C.GoString(x.name), Devices: numbers(unsafe.Slice((*uint32)(x.rows), x.num_devices))}
	if !x.any_params {
		p.Parameters = int(x.num_params)
		for i, donated := range unsafe.Slice((*bool)(x.donates), x.num_params) {
			if donated {
				p.Donated = append(p.Donated, uint32(i))
			}
		}
	}
	for o := range int(x.num_outputs) {
		p.Outputs = append(p.Outputs, int64(C.pr_output_bytes(x, C.size_t(o))))
	}
	low.graph.Programs[id] = p
	return p, id
}

// argument returns the objects that the rows of argument i of args come from, and whether all of them may be donated.
// It appends a transfer for those that are on other devices than the rows.
func (low *lowering) argument(
	refs []C.pp_ref, i, args int, devices []uint32, trace []byte,
) (pieces []dataflow.Piece, owned bool, err error) {
	var moves []dataflow.Move
	var to *C.pp_look
	owned = true
	for d, device := range devices {
		s := low.find(refs[d*args+i])
		owned = owned && s.owned
		object := s.object
		if s.device != device {
			if s.look == nil {
				return nil, false, errNodes
			}
			to = s.look
			moves = append(moves, dataflow.Move{Source: object, From: s.device, To: device})
			object = low.next // what the transfer makes
		}
		if k := len(pieces); k > 0 && pieces[k-1].Object == object {
			pieces[k-1].Rows++
		} else {
			pieces = append(pieces, dataflow.Piece{Object: object, Rows: 1})
		}
	}
	if len(moves) > 0 {
		low.graph.Nodes = append(low.graph.Nodes, dataflow.Node{Transfer: &dataflow.Transfer{Shape: shapeOf(to.shape),
			Memory: C.GoString(C.pr_memory_name(to.memory)), Moves: moves, Trace: trace}})
		low.next++
	}
	return pieces, owned, nil
}

func numbers(list []uint32) []uint32 { return append([]uint32(nil), list...) }

func (low *lowering) copy(n *C.pp_node) error {
	v := &unsafe.Slice(low.p.values, low.p.num_values)[n.value]
	looks := unsafe.Slice(v.looks, v.n)
	t := &dataflow.Transfer{Shape: shapeOf(looks[0].shape), Memory: C.GoString(C.pr_memory_name(looks[0].memory)),
		Trace: trace(n)}
	for i, ref := range unsafe.Slice(n.refs, n.rows) {
		s := low.find(ref)
		t.Moves = append(t.Moves,
			dataflow.Move{Source: s.object, From: s.device, To: uint32(C.pr_device_number(looks[i].device))})
	}
	low.add(dataflow.Node{Transfer: t}, int(n.value), 1)
	return nil
}

func (low *lowering) reshard(n *C.pp_node) error {
	way, err := export.Get(uint64(n.plan))
	if err != nil {
		return err
	}
	steps, err := way.Steps(low.s.site())
	if err != nil {
		return err
	}
	refs, plan := unsafe.Slice(n.refs, n.rows), steps[0]
	if len(refs) != len(plan.From) {
		return errNodes
	}
	from := make([]shard, len(refs))
	for i, ref := range refs {
		from[i] = low.find(ref)
		if from[i].look == nil || int(from[i].device) != plan.From[i].Device ||
			!slices.Equal(shapeOf(from[i].look.shape).Dims, plan.From[i].Size) {
			return errNodes
		}
	}
	dtype := shapeOf(from[0].look.shape).DType
	source := func(shard int) uint64 { return from[shard].object }
	for _, step := range steps[:len(steps)-1] {
		made := low.next
		low.graph.Nodes = append(low.graph.Nodes, dataflow.Node{Transfer: moved(n, way, dtype, step, source)})
		low.next++
		source = func(int) uint64 { return made }
	}
	t := moved(n, way, dtype, steps[len(steps)-1], source)
	low.add(dataflow.Node{Transfer: t}, int(n.value), 1)
	return nil
}

// moved is the transfer of a step of a way, whose source returns the object of each shard.
func moved(n *C.pp_node, way *export.Way, dtype shape.DType, plan *reshard.Plan,
	source func(shard int) uint64) *dataflow.Transfer {
	t := &dataflow.Transfer{Shape: shape.Shape{DType: dtype, Dims: plan.To[0].Size}, Memory: way.Memory, Trace: trace(n)}
	for i := range plan.Pieces {
		p := &plan.Pieces[i]
		m := dataflow.Move{Source: source(p.From), From: uint32(plan.From[p.From].Device),
			To: uint32(plan.To[p.To].Device)}
		if !plan.Whole(p) {
			m.Start, m.Size, m.At = p.Start, p.Size, p.At
			m.Shard = shape.Shape{DType: dtype, Dims: plan.From[p.From].Size}
		}
		t.Moves = append(t.Moves, m)
	}
	return t
}

// plays are the plays under way. The tokens of a play's nodes count up from a token of its own, so they are not
// addresses.
type plays struct {
	mu   sync.Mutex
	last uint64
	all  map[uint64]*playing // guarded by mu
}

type playing struct {
	l       *lowered
	futures []*C.pr_future // by l.keeps
	left    int            // nodes that have not ended
}

const (
	ofPlay   = 1 << 63
	nodeBits = 20 // the most nodes that a session's graph may have is 1 << nodeBits
)

func (p *plays) begin(l *lowered) (token uint64, err error) {
	now := &playing{l: l, left: l.nodes}
	for range l.keeps {
		f := C.pr_future_new(2) // the object's, and the cluster's
		if f == nil {
			drop(now.futures)
			return 0, short("the ends of a program")
		}
		now.futures = append(now.futures, f)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	if p.all == nil {
		p.all = map[uint64]*playing{}
	}
	p.all[p.last] = now
	return ofPlay | p.last<<nodeBits, nil
}

// drop drops futures that are not needed.
func drop(futures []*C.pr_future) {
	for _, f := range futures {
		C.pr_future_drop(f)
		C.pr_future_drop(f)
	}
}

func (p *plays) futures(token uint64) []*C.pr_future {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[token&^ofPlay>>nodeBits].futures
}

// forget removes a play that has not begun.
func (p *plays) forget(token uint64) {
	number := token &^ ofPlay >> nodeBits
	p.mu.Lock()
	futures := p.all[number].futures
	delete(p.all, number)
	p.mu.Unlock()
	drop(futures)
}

// end returns the ends of the kept values of a node.
func (p *plays) end(token uint64, err error, queue []C.pr_end) []C.pr_end {
	p.mu.Lock()
	defer p.mu.Unlock()
	number, node := token&^ofPlay>>nodeBits, int(token&(1<<nodeBits-1))
	now := p.all[number]
	if now == nil {
		return queue
	}
	for i, k := range now.l.keeps {
		if k.node == node {
			queue = append(queue, end(uint64(uintptr(unsafe.Pointer(now.futures[i]))), err))
		}
	}
	if now.left--; now.left == 0 {
		delete(p.all, number)
	}
	return queue
}
