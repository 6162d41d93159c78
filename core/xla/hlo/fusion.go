package hlo

import (
	"maps"

	"github.com/openpathways/pathways/core/status"
)

// immediate is the largest number of elements of a constant that is part of a fusion's code.
const immediate = 8

// fusion returns the cost of a fusion: the work inside it, and the memory that enters and
// leaves it.
func (a *analysis) fusion(in *instruction) (Cost, error) {
	inside, err := a.called(in, 0)
	if err != nil {
		return nil, err
	}
	c := a.computations[in.called[0]]
	cost := Cost{}
	maps.Copy(cost, inside)
	if in.fusionKind == "kCustom" {
		for _, part := range c.instructions {
			if part.opcode == "gather" || part.opcode == "scatter" {
				return a.instruction(part)
			}
		}
	}
	total := cost.outputs(in, c.root)
	for _, part := range c.instructions {
		if part.opcode == "constant" && part.shape.elements() > immediate {
			total += part.shape.bytes()
		}
	}
	for i := range int64(len(c.parameters)) {
		p := c.parameters[i]
		if p == nil {
			return nil, status.New(status.InvalidArgument, "computation %d has no parameter %d", c.id, i)
		}
		total += a.input(cost, p, int(i))
	}
	cost[BytesAccessed] = total
	return cost, nil
}

// outputs adds the bytes that a fusion writes, for each part of its result, and returns their sum. If the root updates
// an operand in place, it writes only the update.
func (cost Cost) outputs(in, root *instruction) float64 {
	written := func(of *instruction) float64 {
		if of.opcode == "dynamic-update-slice" {
			return of.operand(1).bytes()
		}
		return of.shape.bytes()
	}
	total := 0.0
	leaves(in.shape, func(s Shape, place []int) {
		size := s.bytes()
		switch {
		case len(place) == 0:
			size = written(root)
		case len(place) == 1 && root.opcode == "tuple" && place[0] < len(root.operands):
			size = written(root.operands[place[0]])
		}
		total += size
		cost[outputBytes(place)] = size
	})
	cost[outputBytes(nil)] = total
	in.shape.each(nil, func(s Shape, place []int) {
		if s.Tuple == nil || len(place) == 0 {
			return
		}
		sum := 0.0
		leaves(s, func(leaf Shape, _ []int) { sum += leaf.bytes() })
		cost[outputBytes(place)] = sum
	})
	return total
}

// input adds the bytes that a fusion reads of its parameter i, and returns them.
func (a *analysis) input(cost Cost, p *instruction, i int) float64 {
	read := 0.0
	if p.shape.Tuple == nil {
		read = a.reads(p, 0)
	} else {
		leaves(p.shape, func(_ Shape, place []int) {
			size := a.reads(p.element(place), 0)
			cost[operandBytes(i, place)] = size
			read += size
		})
	}
	cost[operandBytes(i, nil)] = read
	cost[operandUtilization(i)] = 1
	return read
}

// leaves calls f for each shape in s that is not a tuple.
func leaves(s Shape, f func(s Shape, place []int)) {
	s.each(nil, func(s Shape, place []int) {
		if s.Tuple == nil {
			f(s, place)
		}
	})
}

// element returns the instruction that extracts the part at place from a tuple, or from the
// innermost part that is extracted.
func (in *instruction) element(place []int) *instruction {
	for _, i := range place {
		for _, user := range in.users {
			if user.opcode == "get-tuple-element" && user.tupleIndex == int64(i) {
				in = user
				break
			}
		}
	}
	return in
}

// reads returns the bytes read from a fusion's parameter: each slice reads its part, each
// broadcast reads all of it again, and all other users together read it once.
func (a *analysis) reads(p *instruction, depth int) float64 {
	if depth > deepest {
		return 0
	}
	size, shared := 0.0, false
	share := func() {
		if !shared {
			shared = true
			size += p.shape.bytes()
		}
	}
	for _, user := range p.users {
		first := user.operands[0] == p
		switch user.opcode {
		case "fusion":
			if len(user.called) == 0 || a.computations[user.called[0]] == nil {
				continue
			}
			inner := a.computations[user.called[0]]
			for _, at := range user.operandIndices(p) {
				if q := inner.parameters[int64(at)]; q != nil {
					size += a.reads(q, depth+1)
				}
			}
		case "slice":
			size += user.shape.bytes()
		case "dynamic-slice":
			if first {
				size += user.shape.bytes()
			} else {
				share()
			}
		case "dynamic-update-slice":
			if !first {
				share() // operand 0 becomes the result
			}
		case "broadcast", "reshape":
			size += p.shape.bytes()
		default:
			share()
		}
	}
	return size
}
