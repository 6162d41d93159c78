package controller

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

func (w *twin) joinWorker() {
	w.conns++
	offer := &wire.WorkerOffer{Island: rapid.SampledFrom([]string{"", "", "x", "y"}).Draw(w.t, "island"),
		Platform: &wire.Platform{Name: "sim"}}
	for d := range rapid.IntRange(1, 2).Draw(w.t, "devices") {
		offer.Devices = append(offer.Devices, &wire.LocalDevice{Local: uint32(d),
			MemoryLimit: w.memory})
	}
	w.workers[w.conns] = &twinWorker{met: map[uint64]bool{}, assembled: map[[2]uint64]bool{},
		devices: map[uint32]map[uint32]uint32{}, graphs: map[[2]uint64]*wire.Graph{},
		known: map[uint32]bool{}, loaded: map[[2]uint64]bool{}, places: map[[2]uint64][]*wire.Span{},
		gangs:     map[uint64]*twinGang{},
		compiles:  map[uint64]*twinCompile{},
		artifacts: newTwinArtifacts(),
		first:     map[[2]uint64]uint64{}, did: map[[2]uint64]bool{},
		ended: map[uint64]*twinGang{}, arrays: map[[2]uint64]*twinArray{}, donates: map[[2]uint64]bool{}}
	w.join(&wire.Hello{Role: wire.Role_ROLE_WORKER, Name: fmt.Sprintf("w%d", w.conns), Worker: offer})
}

func (w *twin) joinClient() {
	w.conns++
	w.clients[w.conns] = &twinClient{conn: w.conns, graphs: map[uint64]*wire.Graph{}, ended: map[uint64]error{},
		programs: map[uint64][]uint32{}, rows: map[uint64][]uint32{}, waiting: map[uint64][]uint32{},
		failing: map[uint64]bool{},
		where:   map[uint64][]uint32{}, rebound: map[uint32]uint64{}, messages: map[uint64]twinMessage{},
		slices:   newTwinSlices(),
		compiles: map[uint64]*wire.Compile{}, everyGraph: map[uint64]*wire.Graph{}, assembles: map[uint64]*wire.Assemble{}}
	devices := 0
	if more := rapid.SampledFrom([]int{0, 0, 3}).Draw(w.t, "vacant"); more > 0 {
		devices = w.st.layout.View().Len() + more
	}
	if w.config.Tenants != nil {
		w.of[w.conns] = rapid.SampledFrom(twinTenants).Draw(w.t, "tenant")
	}
	w.join(&wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: fmt.Sprintf("c%d", w.conns), Devices: uint32(devices),
		Elastic: devices > 0})
}

func (w *twin) join(h *wire.Hello) {
	w.hellos[w.conns] = proto.CloneOf(h)
	w.step(Event{Kind: Join, Conn: w.conns, Message: h, Of: w.of[w.conns], Lease: w.lease()})
}

func pick[V any](w *twin, m map[uint64]V, label string) (uint64, V) {
	var none V
	if len(m) == 0 {
		return 0, none
	}
	k := rapid.SampledFrom(slices.Sorted(maps.Keys(m))).Draw(w.t, label)
	return k, m[k]
}

// nowhere is no array's number.
const nowhere = 1e6

// drawDevices draws some of a client's devices, mostly all of them in order.
func (w *twin) drawDevices(c *twinClient) []uint32 {
	all := make([]uint32, c.devices)
	for i := range all {
		all[i] = uint32(i)
	}
	if rapid.IntRange(0, 9).Draw(w.t, "all") < 7 {
		return all
	}
	return rapid.Permutation(all).Draw(w.t, "devices")[:rapid.IntRange(1, c.devices).Draw(w.t, "count")]
}

// drawArray draws an array of a client, mostly one that is there, on these devices.
func (w *twin) drawArray(c *twinClient, on ...uint32) uint64 {
	there := slices.DeleteFunc(slices.Clone(c.live), func(o uint64) bool {
		return slices.ContainsFunc(on, func(d uint32) bool { return !slices.Contains(c.where[o], d) })
	})
	switch n := rapid.IntRange(0, 19).Draw(w.t, "there"); {
	case n == 0:
	case n == 1 && len(c.live) > 0:
		return rapid.SampledFrom(c.live).Draw(w.t, "object")
	case len(there) > 0:
		return rapid.SampledFrom(there).Draw(w.t, "object")
	}
	return nowhere
}

// drawWhole is drawArray of those that are not assembled: clients let no graph read such.
func (w *twin) drawWhole(c *twinClient, on ...uint32) uint64 {
	if o := w.drawArray(c, on...); c.assembles[o] == nil || !w.config.Keeps {
		return o
	}
	return nowhere
}

// next returns the number of the client's next operation.
func (c *twinClient) next() uint64 { c.op++; return c.op }

// makes returns the number of a new array on some devices.
func (c *twinClient) makes(on []uint32) uint64 {
	c.object++
	c.live, c.where[c.object] = append(c.live, c.object), on
	return c.object
}

func twinScalar() *wire.Array { return &wire.Array{Dtype: uint32(shape.F32)} }

// submits has a client do something.
func (w *twin) submits(c *twinClient) {
	t := w.t
	if int(c.op)-len(c.ended) >= w.st.limits.Credit {
		return
	}
	what := rapid.SampledFrom([]string{"run", "run", "run", "run", "run", "run", "put", "put", "compile", "fetch",
		"transfer", "transfer", "free", "forget", "abort", "assemble", "assemble", "graph", "play", "play",
		"forget graph", "settled", "slice", "release", "remap"}).Draw(t, "what")
	if len(c.programs) == 0 && what == "run" && len(c.waiting) == 0 {
		what = "compile"
	}
	if c.offered != 0 && rapid.Bool().Draw(t, "answers") {
		what = "rebind"
	}
	switch what {
	case "rebind":
		w.accepts(c)
	case "compile":
		w.compilesProgram(c)
	case "put":
		m := &wire.Put{Op: c.next(), Array: twinScalar(), Devices: w.drawDevices(c)}
		m.Object = c.makes(m.Devices)
		w.sent[[2]uint64{uint64(c.session), m.Op}] = m
		w.say(c.conn, wire.KindPut, m)
	case "run":
		id, rows := pick(w, c.programs, "program")
		m := &wire.Run{Op: c.next(), Program: id, Inputs: []uint64{w.drawArray(c, rows...)}}
		m.FirstOutput = c.makes(rows)
		c.failing[m.Op] = id == 0 || m.Inputs[0] == nowhere
		w.say(c.conn, wire.KindRun, m)
	case "fetch":
		d := w.drawDevices(c)[0]
		m := &wire.Fetch{Op: c.next(), Object: w.drawArray(c, d), Device: d}
		c.failing[m.Op] = m.Object == nowhere
		w.say(c.conn, wire.KindFetch, m)
	case "transfer":
		w.transfers(c)
	case "free":
		m := &wire.Free{Objects: []uint64{w.drawArray(c)}}
		c.live = slices.DeleteFunc(c.live, func(o uint64) bool { return o == m.Objects[0] })
		w.say(c.conn, wire.KindFree, m)
	case "assemble":
		w.assembles(c)
	case "forget":
		id, _ := pick(w, c.programs, "program")
		delete(c.programs, id)
		w.say(c.conn, wire.KindForget, &wire.Forget{Programs: []uint64{id, nowhere}})
	case "graph":
		w.defines(c)
	case "play":
		w.plays(c)
	case "forget graph":
		id, _ := pick(w, c.graphs, "graph")
		delete(c.graphs, id)
		w.say(c.conn, wire.KindForget, &wire.Forget{Graphs: []uint64{id, nowhere}})
	case "settled":
		w.say(c.conn, wire.KindSettled, &wire.Settled{Next: c.op + 1, Pending: c.pending()})
	case "slice":
		w.asksForSlice(c)
	case "release":
		w.releasesSlice(c)
	case "remap":
		w.remapsSlice(c)
	case "abort":
		if c.op > 0 {
			w.say(c.conn, wire.KindAbort, &wire.Abort{Gang: rapid.Uint64Range(1, c.op).Draw(t, "op")})
		}
	}
}

// accepts has a client take the other devices that it was offered.
func (w *twin) accepts(c *twinClient) {
	c.rebinding = true
	m := &wire.Rebind{Epoch: c.offered}
	c.epoch, c.offered = c.offered, 0
	for _, d := range c.lacks {
		c.rebound[d] = c.op
	}
	w.say(c.conn, wire.KindRebind, m)
}

func (w *twin) compilesProgram(c *twinClient) {
	rows := w.drawDevices(c)
	if rapid.IntRange(0, 9).Draw(w.t, "of one island") > 0 { // others are refused
		rows = slices.DeleteFunc(slices.Clone(rows), func(d uint32) bool { return c.islands[d] != c.islands[rows[0]] })
	}
	ids := make([]int, len(rows))
	for i, d := range rows {
		ids[i] = int(d)
	}
	c.program++
	c.waiting[c.program] = rows
	m := &wire.Compile{Op: c.program, Program: c.program, Format: "sim", Options: sim.CompileOptions(ids),
		Code: []byte(strconv.Itoa(rapid.IntRange(0, 1).Draw(w.t, "code")))}
	if rapid.Bool().Draw(w.t, "long") {
		m = withoutCode(m)
	}
	w.say(c.conn, wire.KindCompile, m)
}

func (w *twin) transfers(c *twinClient) {
	d := w.drawDevices(c)
	m := &wire.Transfer{Op: c.next(), Array: twinScalar()}
	for i := range rapid.IntRange(1, len(d)).Draw(w.t, "moves") {
		m.Moves = append(m.Moves, &wire.Move{Source: w.drawArray(c, d[i]), From: d[i], To: d[len(d)-1-i]})
	}
	m.Object = c.makes(slices.DeleteFunc(ends(m.Moves), func(e uint32) bool {
		return !slices.ContainsFunc(m.Moves, func(v *wire.Move) bool { return v.To == e })
	}))
	w.sent[[2]uint64{uint64(c.session), m.Op}] = m
	w.say(c.conn, wire.KindTransfer, m)
}

func (w *twin) assembles(c *twinClient) {
	id, rows := pick(w, c.programs, "program")
	if id == 0 {
		return
	}
	m := &wire.Assemble{Object: c.makes(rows), Program: id}
	for left := len(rows); left > 0; {
		n := rapid.IntRange(1, left).Draw(w.t, "rows")
		m.Pieces = append(m.Pieces,
			&wire.Piece{Object: w.drawArray(c, rows[len(rows)-left:][:n]...), Rows: uint32(n)})
		left -= n
	}
	w.say(c.conn, wire.KindAssemble, m)
}

// defines has a client define a graph.
func (w *twin) defines(c *twinClient) {
	t := w.t
	c.graph++
	m := &wire.Graph{Graph: c.graph, Inputs: uint32(rapid.IntRange(1, 2).Draw(t, "inputs"))}
	last := uint64(m.Inputs)
	if rapid.IntRange(0, 3).Draw(t, "given") == 0 {
		m.Given = []uint64{rapid.Uint64Range(1, last).Draw(t, "input")}
	}
	for range rapid.IntRange(1, 5).Draw(t, "nodes") {
		source := last
		if rapid.Bool().Draw(t, "any") {
			source = rapid.Uint64Range(1, last).Draw(t, "source")
		}
		n := &wire.Node{Makes: 1}
		if id, _ := pick(w, c.programs, "program"); id != 0 && rapid.IntRange(0, 3).Draw(t, "runs") > 0 {
			n.Run = &wire.Run{Program: id, Inputs: []uint64{source}}
		} else {
			d := w.drawDevices(c)
			n.Transfer = &wire.Transfer{Array: twinScalar(),
				Moves: []*wire.Move{{Source: source, From: d[0], To: d[len(d)-1]}}}
		}
		m.Nodes = append(m.Nodes, n)
		last++
		if rapid.Bool().Draw(t, "kept") {
			m.Outputs = append(m.Outputs, last)
		}
	}
	c.graphs[c.graph] = m
	w.say(c.conn, wire.KindGraph, m)
}

// plays has a client play a graph that it has defined.
func (w *twin) plays(c *twinClient) {
	id, g := pick(w, c.graphs, "graph")
	if g == nil { // what is not known ends too
		g = &wire.Graph{Nodes: make([]*wire.Node, 2)}
	}
	m := &wire.Play{Op: c.next(), Graph: id, Nodes: uint32(len(g.Nodes)), First: c.object + 1}
	c.object += uint64(len(g.Nodes))
	c.op += uint64(len(g.Nodes)) - 1
	for local := range uint64(g.Inputs) {
		m.Inputs = append(m.Inputs, w.drawWhole(c, readOn(c, g, local+1)...))
	}
	for _, o := range g.Outputs {
		n, made := g.Nodes[o-uint64(g.Inputs)-1], m.First+o-uint64(g.Inputs)-1
		c.live, c.where[made] = append(c.live, made), c.rows[n.GetRun().GetProgram()]
		if n.Transfer != nil {
			c.where[made] = []uint32{n.Transfer.Moves[0].To}
		}
	}
	for i, n := range g.Nodes {
		source := uint64(0)
		if n.GetRun() != nil {
			source = n.Run.Inputs[0]
		} else if n.GetTransfer() != nil {
			source = n.Transfer.Moves[0].Source
		}
		c.failing[m.Op+uint64(i)] = id == 0 || source <= uint64(g.Inputs) && m.Inputs[source-1] == nowhere
	}
	w.say(c.conn, wire.KindPlay, m)
}

// readOn returns where the nodes of a graph read an input.
func readOn(c *twinClient, g *wire.Graph, input uint64) (on []uint32) {
	for _, n := range g.Nodes {
		switch {
		case n.GetRun() != nil && n.Run.Inputs[0] == input:
			on = append(on, c.rows[n.Run.Program]...)
		case n.GetTransfer() != nil && n.Transfer.Moves[0].Source == input:
			on = append(on, n.Transfer.Moves[0].From)
		}
	}
	return on
}

// reports has a worker report a gang or a program.
func (w *twin) reports(number uint64, worker *twinWorker) {
	bad := &wire.Status{Code: uint32(status.Internal), Message: "bad luck"}
	a := &worker.artifacts
	if len(a.later) > 0 {
		m := a.later[0]
		a.later = a.later[1:]
		w.say(number, wire.KindHave, m)
		return
	}
	if op, _ := pick(w, worker.compiles, "compile"); op != 0 {
		w.compiles(number, op, worker)
		return
	}
	if len(a.fetchable()) > 0 && (len(worker.gangs) == 0 || rapid.Bool().Draw(w.t, "fetches")) {
		w.fetches(number, worker)
		return
	}
	if i := worker.loadable(); i >= 0 && (len(worker.gangs) == 0 || rapid.Bool().Draw(w.t, "loads")) {
		m := worker.loads[i].Loaded
		worker.loads = slices.Delete(worker.loads, i, i+1)
		w.say(number, wire.KindLoaded, m)
		return
	}
	gang := uint64(0)
	if can := w.endable(worker); len(can) > 0 {
		gang = rapid.SampledFrom(can).Draw(w.t, "gang")
	} else if len(worker.gangs) > 0 {
		return
	}
	m := &wire.Completed{Ok: []uint64{gang}, Busy: []uint64{rapid.SampledFrom([]uint64{0, 1e6, 40e6, 3e9}).Draw(w.t,
		"device time")}}
	switch rapid.IntRange(0, 9).Draw(w.t, "luck") {
	case 9:
		m = &wire.Completed{Failed: []*wire.Failure{{Number: gang, Status: bad}}}
	case 8: // what is not its to report does nothing
		other := rapid.Uint64Range(0, w.st.gang+1).Draw(w.t, "other")
		if worker.gangs[other] == nil {
			m.Ok, m.Busy = append(m.Ok, other, gang), append(m.Busy, 1e6, 1e6)
		}
	}
	if len(m.Failed) > 0 {
		worker.ends(gang, bad)
	} else {
		worker.ends(gang, nil)
	}
	w.say(number, wire.KindCompleted, m)
}

// twinInfo describes a program that was compiled as op.
func twinInfo(op uint64) *wire.ProgramInfo {
	return &wire.ProgramInfo{Outputs: []*wire.Array{{Dtype: uint32(shape.F32)}}, Donated: [][]uint32{nil, {0}}[op%2],
		Cost: &wire.Cost{CodeBytes: []int64{-1, 0, 5}[op%3]}}
}
