package spmd

import (
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// Rewrite turns a partitioned and optimized program (a HloModuleProtoWithConfig, or a
// HloModuleProto that has a device assignment) into one that each device runs by itself.
// The program keeps its parameters, results and aliases; its long constants become further parameters, see Program.
//
// The collectives of a device start in the same order on all devices, because in each
// computation the calls for them, and the loops, branches and calls that contain some, wait
// for the one before. An asynchronous pair becomes one call at the position where its
// result is awaited; a call does not keep a device from other work.
//
// Errors: UNIMPLEMENTED if the program has an unknown collective or reduction, which the
// error names, or sends from point to point.
func Rewrite(code []byte) (*Program, error) { return rewrite(code, longConstant) }

// rewrite makes parameters of constants of at least so many bytes.
func rewrite(code []byte, long int64) (*Program, error) {
	m, err := readModule(code)
	if err != nil {
		return nil, status.Wrap(err, "partitioned program")
	}
	w := rewriter{module: m, groups: map[string]*grouping{}}
	for _, c := range m.computations {
		if err := w.mergePairs(c); err != nil {
			return nil, err
		}
		w.join(c)
	}
	for _, c := range m.computations {
		if c.wrapper {
			continue
		}
		for _, in := range c.instructions {
			if err := w.rewrite(c, in); err != nil {
				return nil, err
			}
		}
	}
	if err := w.order(); err != nil {
		return nil, err
	}
	of, err := readProgram(m.shape)
	if err != nil {
		return nil, err
	}
	constants, shapes := m.liftConstants(of, long)
	return &Program{Module: m.write(), Collectives: w.specs, Constants: constants,
		parameters: append(slices.Clip(of.parameters), shapes...), result: of.result}, nil
}

type rewriter struct {
	*module
	specs  []Spec
	groups map[string]*grouping // resolved groups, by their fields
	ranks  int                  // number of ranks in groups
	text   int                  // bytes of specs
}

// grouping is the result of resolving the fields of groups, shared by all collectives with
// the same fields.
type grouping struct {
	groups [][]int
	text   string
}

// opOf returns the collective of an opcode. half is "-start" or "-done" for one of an
// asynchronous pair.
func opOf(opcode string) (op Op, half string, found bool) {
	name := opcode
	for _, h := range [...]string{"-start", "-done"} {
		if base, cut := strings.CutSuffix(opcode, h); cut {
			name, half = base, h
		}
	}
	i := slices.Index(opNames[1:], name)
	if i < 0 {
		return 0, "", false
	}
	return Op(i + 1), half, true
}

// unknown returns an error for an instruction that would access other devices in a way that
// this package does not know.
func unknown(in *instruction) error {
	switch name := in.opcode; {
	case name == "send" || name == "recv" || name == "send-done" || name == "recv-done":
		return status.New(status.Unimplemented,
			"%s sends from point to point (%s): that cannot be carried between workers yet", in.name, name)
	case strings.HasPrefix(name, "all-") || strings.HasPrefix(name, "collective-") ||
		strings.HasPrefix(name, "reduce-scatter") ||
		strings.HasPrefix(name, "ragged-all"):
		return status.New(status.Unimplemented, "%s is a collective (%s) that cannot be carried between workers", in.name,
			name)
	}
	return nil
}

// mergePairs turns each asynchronous pair of a collective into one call, at its end.
func (w *rewriter) mergePairs(c *computation) error {
	for _, in := range c.instructions {
		_, half, _ := opOf(in.opcode)
		if half != "-done" && in.opcode != "async-done" {
			continue
		}
		if len(in.operands) != 1 {
			return status.New(status.InvalidArgument, "%s has %d operands, want one", in.name, len(in.operands))
		}
		start := c.byID[in.operands[0]]
		between := []*instruction{start}
		for start.opcode == "async-update" && len(start.operands) == 1 {
			start = c.byID[start.operands[0]]
			between = append(between, start)
		}
		what := start
		if in.opcode == "async-done" {
			wrapper, err := w.wrapper(start)
			if err != nil {
				return err
			}
			if wrapper == nil {
				continue
			}
			wrapper.wrapper = true
			what = wrapper.byID[wrapper.root]
		} else if strings.TrimSuffix(start.opcode, "-start")+"-done" != in.opcode {
			return status.New(status.InvalidArgument, "%s ends %s, a %s", in.name, start.name, start.opcode)
		}
		in.from, in.what = start, what
		for _, b := range between {
			if b.drop {
				return status.New(status.Unimplemented, "%s is awaited twice", b.name)
			}
			b.drop = true
		}
	}
	for _, in := range c.instructions {
		if in.drop && in.id == c.root {
			return status.New(status.Unimplemented, "%s is not awaited where it begins", in.name)
		}
		if in.drop {
			continue
		}
		if _, half, _ := opOf(in.opcode); half == "-start" {
			return status.New(status.Unimplemented, "%s is not awaited in its computation", in.name)
		}
		operands := in.operands
		if in.from != nil {
			operands = in.from.operands
		}
		for _, id := range operands {
			if c.byID[id].drop {
				return status.New(status.Unimplemented, "%s reads %s before it is done", in.name, c.byID[id].name)
			}
		}
		in.control = slices.DeleteFunc(in.control, func(id int64) bool { return c.byID[id].drop })
	}
	return nil
}

// wrapper returns the computation that an async-start runs, if it consists of a single
// collective.
func (w *rewriter) wrapper(start *instruction) (*computation, error) {
	if start.opcode != "async-start" || len(start.called) != 1 {
		return nil, status.New(status.InvalidArgument, "%s is awaited, a %s", start.name, start.opcode)
	}
	c := w.byID[start.called[0]]
	collective := slices.ContainsFunc(c.instructions, func(in *instruction) bool {
		op, _, found := opOf(in.opcode)
		return found && op != PartitionID && op != ReplicaID
	})
	if !collective {
		return nil, nil
	}
	root := c.byID[c.root]
	_, half, found := opOf(root.opcode)
	plain := found && half == "" && len(root.operands) == len(c.instructions)-1
	for i, id := range root.operands {
		in := c.byID[id]
		plain = plain && in.opcode == "parameter" && in.parameter == int64(i)
	}
	if !plain || len(start.operands) != len(root.operands) {
		return nil, status.New(status.Unimplemented, "%s runs more than one collective by itself", start.name)
	}
	return c, nil
}

// rewrite turns an instruction that is a collective into a call.
func (w *rewriter) rewrite(c *computation, in *instruction) error {
	if in.drop {
		return nil
	}
	if in.from == nil {
		in.from, in.what = in, in
	}
	op, _, found := opOf(in.what.opcode)
	if !found {
		return unknown(in)
	}
	s, groups, err := w.spec(c, in, op)
	if err != nil {
		return status.Wrap(err, "collective %s", in.name)
	}
	in.spec = s.write(groups)
	if s.Site >= 0 {
		w.specs = append(w.specs, s)
		c.waits = true
	}
	// The text is written once for each device's call, and contains the ranks.
	if w.text += len(in.spec); w.text > maxText {
		return status.New(status.ResourceExhausted, "the collectives of the program take more than %d bytes to describe",
			maxText)
	}
	return nil
}

// attributes are those of a collective's instruction, without its shapes.
type attributes struct {
	dims      []int64
	fields    []protowalk.Field // that say which devices take part
	numbering numbering         // of these devices
}

// readAttributes reads a collective of op.
func readAttributes(in *instruction, op Op) (a attributes, err error) {
	channel, global, partial := false, false, false
	for f := range protowalk.Fields(in.what.raw) { // read before: no error
		switch f.Number {
		case instructionDimensions:
			if a.dims, err = f.AppendInts(a.dims); err != nil {
				return a, err
			}
		case instructionChannel:
			channel = int64(f.Value) > 0
		case instructionGlobalIDs:
			global = f.Value != 0
		case instructionSliceSizes:
			partial = true
		case instructionReplicaGroups, instructionPairs, instructionDeviceList, instructionIota, instructionMesh:
			a.fields = append(a.fields, f)
		}
	}
	if partial {
		return a, status.New(status.Unimplemented, "it sends slices of its operands, want whole ones")
	}
	a.numbering = crossReplica
	switch reduces := op == AllReduce || op == ReduceScatter || op == AllGather; {
	case global && (!channel || !reduces):
		return a, status.New(status.InvalidArgument, "it has global device ids, and no channel")
	case global:
		a.numbering = flattened
	case channel && reduces:
		a.numbering = crossReplicaAndPartition
	case channel:
		a.numbering = crossPartition
	}
	return a, nil
}

// spec returns the spec of a collective of op, and the text of its groups.
func (w *rewriter) spec(c *computation, in *instruction, op Op) (s Spec, groups string, err error) {
	s = Spec{Op: op, Site: len(w.specs)}
	if op == PartitionID || op == ReplicaID {
		s.Site, s.Replicas, s.Parts = -1, w.replicas, w.partitions
	}
	a, err := readAttributes(in, op)
	if err != nil {
		return s, "", err
	}
	switch op {
	case PartitionID, ReplicaID:
	case CollectivePermute:
		s.Pairs, err = w.readPairs(a.fields, a.numbering)
	default:
		var g *grouping
		if g, err = w.group(a.fields, a.numbering); err == nil {
			s.Groups, groups = g.groups, g.text
		}
	}
	if err != nil {
		return s, "", err
	}
	if in.parts > 0 {
		a.dims = []int64{in.along}
		for _, g := range s.Groups {
			if len(g) != in.parts {
				return s, "", status.New(status.InvalidArgument, "%d parts for a group of %d ranks: want one for each", in.parts,
					len(g))
			}
		}
	}
	if err := w.shapes(c, in, &s, a.dims); err != nil {
		return s, "", err
	}
	if op == AllReduce || op == ReduceScatter {
		if len(in.what.called) != 1 {
			return s, "", status.New(status.InvalidArgument, "it has %d reductions, want one", len(in.what.called))
		}
		s.DType = s.Operands[0].DType
		if s.Reduction, err = w.reduction(in.what.called[0], s.DType); err != nil {
			return s, "", err
		}
	}
	if err := s.checkFields(); err != nil {
		return s, "", err
	}
	if s.Site >= 0 {
		err = s.checkShapes()
	}
	return s, groups, err
}

// group resolves a collective's groups.
func (w *rewriter) group(fields []protowalk.Field, n numbering) (*grouping, error) {
	key := []byte{byte(n)}
	for _, f := range fields {
		key = append(key, f.Raw...)
	}
	if g := w.groups[string(key)]; g != nil {
		return g, nil
	}
	numbers, err := w.readGroups(fields)
	if err != nil {
		return nil, err
	}
	groups, err := w.module.ranks(numbers, n)
	if err != nil {
		return nil, err
	}
	g := &grouping{groups: groups, text: string(appendGroups(nil, groups))}
	for _, one := range groups {
		if w.ranks += len(one); len(one) == 0 {
			return nil, status.New(status.InvalidArgument, "it has an empty group")
		}
	}
	const most = 1 << 24
	if w.text += len(g.text); w.ranks > most || w.text > maxText {
		return nil, status.New(status.ResourceExhausted, "the groups of the program's collectives name more than %d ranks",
			most)
	}
	w.groups[string(key)] = g
	return g, nil
}

// shapes sets operands and results, and the dimension along which they are gathered or
// split.
func (w *rewriter) shapes(c *computation, in *instruction, s *Spec, dims []int64) error {
	var order []int // the position in memory of each dimension, the same for all
	add := func(of *instruction, list *[]shape.Shape) error {
		arrays, err := of.arrays()
		if err != nil {
			return err
		}
		for _, a := range arrays {
			p, place, err := a.Physical()
			if err != nil {
				return err
			}
			if s.Op != RaggedAllToAll && s.Op != AllReduce && s.Op != CollectivePermute && s.Op != CollectiveBroadcast &&
				len(dims) > 0 {
				if order != nil && !slices.Equal(order, place) {
					return status.New(status.Unimplemented, "its operands and results are laid out in different ways")
				}
				order = place
			}
			*list = append(*list, p)
		}
		return nil
	}
	for _, id := range in.from.operands {
		if err := add(c.byID[id], &s.Operands); err != nil {
			return err
		}
	}
	if len(s.Operands) != len(in.from.operands) {
		return status.New(status.Unimplemented, "an operand of it is a tuple")
	}
	if err := add(in, &s.Results); err != nil {
		return err
	}
	switch s.Op {
	case AllGather, ReduceScatter:
		if len(dims) != 1 {
			return status.New(status.InvalidArgument, "it is along dimensions %v, want one", dims)
		}
	case AllToAll:
		if len(dims) == 0 {
			s.Dim = -1
			return nil
		}
	default:
		return nil
	}
	if len(dims) != 1 || dims[0] < 0 || dims[0] >= int64(len(order)) {
		return status.New(status.InvalidArgument, "it is along dimensions %v of arrays of %d", dims, len(order))
	}
	s.Dim = order[dims[0]]
	return nil
}

// order makes the instructions that wait for other devices wait for each other, in each
// computation in the order in which the compiler wrote them.
func (w *rewriter) order() error {
	if err := w.findWaiting(); err != nil {
		return err
	}
	for _, c := range w.computations {
		if c.wrapper {
			continue
		}
		var last *instruction
		for _, in := range c.instructions {
			if in.drop || !w.waits(in) {
				continue
			}
			if last != nil && !slices.Contains(in.control, last.id) {
				in.control = append(in.control, last.id)
			}
			last = in
		}
	}
	return nil
}

func (w *rewriter) waits(in *instruction) bool {
	if in.spec != "" {
		return len(in.from.operands) > 0
	}
	return slices.ContainsFunc(in.called, func(id int64) bool { return w.byID[id].waits })
}

// findWaiting marks the computations that contain a collective, directly or by calls.
func (w *rewriter) findWaiting() error {
	callers := map[int64][]*computation{}
	for _, c := range w.computations {
		for _, in := range c.instructions {
			if in.drop || in.spec != "" {
				continue
			}
			for _, id := range in.called {
				callers[id] = append(callers[id], c)
			}
		}
	}
	var todo []*computation
	for _, c := range w.computations {
		if c.waits {
			todo = append(todo, c)
		}
	}
	for len(todo) > 0 {
		c := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, caller := range callers[c.id] {
			if !caller.waits {
				caller.waits = true
				todo = append(todo, caller)
			}
		}
	}
	for _, c := range w.computations {
		for _, in := range c.instructions {
			if in.drop || in.spec != "" || !w.waits(in) {
				continue
			}
			switch in.opcode {
			case "while", "conditional", "call", "async-start", "async-update", "async-done":
			default:
				return status.New(status.Unimplemented, "%s holds a collective in a %s, want it in loops, branches and calls alone",
					in.name, in.opcode)
			}
		}
	}
	return nil
}
