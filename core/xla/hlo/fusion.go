package hlo

import "github.com/openpathways/pathways/core/status"

// Constants of a fusion up to this many elements are part of its code.
const immediate = 8

// fusion counts the cost of a fusion: the work inside, and of the memory what goes
// in and out.
func (a *analysis) fusion(in *instruction) (Cost, error) {
	inside, err := a.called(in, 0)
	if err != nil {
		return nil, err
	}
	c := a.computations[in.called[0]]
	cost := Cost{}
	for k, v := range inside {
		cost[k] = v
	}
	if in.fusionKind == "kCustom" {
		for _, part := range c.instructions {
			if part.opcode == "gather" || part.opcode == "scatter" {
				return a.instruction(part)
			}
		}
	}

	// What the root writes into an operand in place is the update alone.
	written := func(of *instruction) float64 {
		if of.opcode == "dynamic-update-slice" {
			return of.operand(1).bytes()
		}
		return of.shape.bytes()
	}
	total := 0.0
	in.shape.each(nil, func(s Shape, place []int) {
		if s.Tuple != nil {
			return
		}
		size := s.bytes()
		switch {
		case len(place) == 0:
			size = written(c.root)
		case len(place) == 1 && c.root.opcode == "tuple" && place[0] < len(c.root.operands):
			size = written(c.root.operands[place[0]])
		}
		total += size
		cost[outputBytes(place)] = size
	})
	cost[outputBytes(nil)] = total
	if in.shape.Tuple != nil {
		in.shape.each(nil, func(s Shape, place []int) {
			if s.Tuple == nil || len(place) == 0 {
				return
			}
			sum := 0.0
			leaves(s, func(leaf Shape, _ []int) { sum += leaf.bytes() })
			cost[outputBytes(place)] = sum
		})
	}

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
		read := 0.0
		if p.shape.Tuple == nil {
			read = a.reads(p, 0)
		} else {
			leaves(p.shape, func(_ Shape, place []int) {
				size := a.reads(p.element(place), 0)
				cost[operandBytes(int(i), place)] = size
				read += size
			})
		}
		total += read
		cost[operandBytes(int(i), nil)] = read
		cost[operandUtilization(int(i))] = 1
	}
	cost[BytesAccessed] = total
	return cost, nil
}

// leaves calls f for each shape in s that is no tuple.
func leaves(s Shape, f func(s Shape, place []int)) {
	s.each(nil, func(s Shape, place []int) {
		if s.Tuple == nil {
			f(s, place)
		}
	})
}

// element is what takes the part at a place out of a tuple, as far as that is
// taken apart.
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

// reads counts the bytes read of a fusion's parameter: slices read their part,
// whoever spreads it reads it again, and all others share one reading.
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
