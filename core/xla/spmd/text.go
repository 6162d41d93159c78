package spmd

import (
	"slices"
	"strconv"
	"strings"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// Bounds on the input, far above those of real programs.
const (
	maxRanks = 1 << 16
	maxText  = 64 << 20 // of all specs of a program
)

// String formats the spec as text that ParseSpec parses: words such as
//
//	all-reduce site=2 groups=0:4/4:4 reduction=sum type=f32 in=f32[2,3] out=f32[2,3]
//
// A group consists of runs of ranks, first:count:step; a run of pairs is
// source>target:count:step. A count and step of 1 are omitted. No character has a meaning in
// MLIR or needs escaping.
func (s *Spec) String() string { return s.write(string(appendGroups(nil, s.Groups))) }

// Name is what errors call the collective.
func (s *Spec) Name() string {
	return "collective " + strconv.Itoa(s.Site) + " of the program (" + s.Op.String() + ")"
}

// write implements String, given the text of the groups.
func (s *Spec) write(groups string) string {
	b := []byte(s.Op.String())
	word := func(name string) { b = append(append(append(b, ' '), name...), '=') }
	number := func(name string, n int) {
		word(name)
		b = strconv.AppendInt(b, int64(n), 10)
	}
	number("site", s.Site)
	if groups != "" {
		word("groups")
		b = append(b, groups...)
	}
	if len(s.Pairs) > 0 {
		word("pairs")
		b = appendPairs(b, s.Pairs)
	}
	if s.Reduction != 0 {
		word("reduction")
		b = append(b, s.Reduction.String()...)
	}
	if s.DType != shape.Invalid {
		word("type")
		b = append(b, s.DType.String()...)
	}
	if s.Dim != 0 {
		number("dim", s.Dim)
	}
	if len(s.Operands) > 0 {
		word("in")
		b = appendShapes(b, s.Operands)
	}
	if len(s.Results) > 0 {
		word("out")
		b = appendShapes(b, s.Results)
	}
	if s.Replicas != 0 {
		number("replicas", s.Replicas)
	}
	if s.Parts != 0 {
		number("parts", s.Parts)
	}
	return string(b)
}

func appendRun(b []byte, count, step int) []byte {
	if count > 1 {
		b = strconv.AppendInt(append(b, ':'), int64(count), 10)
		if step != 1 {
			b = strconv.AppendInt(append(b, ':'), int64(step), 10)
		}
	}
	return b
}

// run returns how many of n values, from the first on, increase by the same step. at
// returns a value.
func run(n int, at func(i int) int) (count, step int) {
	if n < 2 {
		return n, 1
	}
	step = at(1) - at(0)
	for count = 2; count < n && at(count)-at(count-1) == step; count++ {
	}
	if count == 2 && step != 1 {
		return 1, 1 // as short, and the second value may begin a longer run
	}
	return count, step
}

func appendGroups(b []byte, groups [][]int) []byte {
	for i, g := range groups {
		if i > 0 {
			b = append(b, '/')
		}
		for j := 0; j < len(g); {
			if j > 0 {
				b = append(b, ',')
			}
			count, step := run(len(g)-j, func(i int) int { return g[j+i] })
			b = appendRun(strconv.AppendInt(b, int64(g[j]), 10), count, step)
			j += count
		}
	}
	return b
}

func appendPairs(b []byte, pairs [][2]int) []byte {
	for j := 0; j < len(pairs); {
		if j > 0 {
			b = append(b, ',')
		}
		count, step := run(len(pairs)-j, func(i int) int { return pairs[j+i][0] })
		other, rise := run(len(pairs)-j, func(i int) int { return pairs[j+i][1] })
		if step != rise {
			count = 1
		}
		count = min(count, other)
		b = strconv.AppendInt(b, int64(pairs[j][0]), 10)
		b = strconv.AppendInt(append(b, '>'), int64(pairs[j][1]), 10)
		b = appendRun(b, count, step)
		j += count
	}
	return b
}

func appendShapes(b []byte, shapes []shape.Shape) []byte {
	for i, s := range shapes {
		if i > 0 {
			b = append(b, '/')
		}
		b = append(b, s.String()...)
	}
	return b
}

// ParseSpec parses the text that String returns, and checks that the spec describes a valid
// collective. Otherwise it returns INVALID_ARGUMENT.
func ParseSpec(text string) (*Spec, error) {
	s := &Spec{}
	words := strings.Split(text, " ")
	op := slices.Index(opNames[1:], words[0])
	if op < 0 {
		return nil, badText(words[0], "the name of a collective")
	}
	s.Op = Op(op + 1)
	seen := map[string]bool{}
	for _, word := range words[1:] {
		name, value, found := strings.Cut(word, "=")
		if !found || seen[name] {
			return nil, badText(word, "name=value, each name once")
		}
		seen[name] = true
		if err := s.parse(name, value); err != nil {
			return nil, err
		}
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Spec) parse(name, value string) (err error) {
	switch name {
	case "site":
		s.Site, err = parseInt(value, -1)
	case "groups":
		s.Groups, err = parseGroups(value)
	case "pairs":
		s.Pairs, err = parsePairs(value)
	case "reduction":
		r := slices.Index(reductionNames[1:], value)
		if r < 0 {
			return badText(value, "a reduction")
		}
		s.Reduction = Reduction(r + 1)
	case "type":
		s.DType, err = parseDType(value)
	case "dim":
		s.Dim, err = parseInt(value, -1)
	case "in":
		s.Operands, err = parseShapes(value)
	case "out":
		s.Results, err = parseShapes(value)
	case "replicas":
		s.Replicas, err = parseInt(value, 1)
	case "parts":
		s.Parts, err = parseInt(value, 1)
	default:
		return badText(name, "a field of a collective")
	}
	return err
}

func badText(got, want string) error {
	const most = 80
	if len(got) > most {
		got = got[:most] + "…"
	}
	return status.New(status.InvalidArgument, "text of a collective: %q, want %s", got, want)
}

func parseInt(text string, least int) (int, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || int(n) < least {
		return 0, badText(text, "a number")
	}
	return int(n), nil
}

// parseRun parses ":count:step", which may be omitted.
func parseRun(text string) (count, step int, err error) {
	if text == "" {
		return 1, 1, nil
	}
	first, second, found := strings.Cut(text, ":")
	if count, err = parseInt(first, 1); err != nil || !found {
		return count, 1, err
	}
	n, err := strconv.ParseInt(second, 10, 32)
	if err != nil {
		return 0, 0, badText(second, "a step")
	}
	return count, int(n), nil
}

// checkRun bounds the values of a run to ranks.
func checkRun(first, count, step int) bool {
	last := first + (count-1)*step
	return count <= maxRanks && first >= 0 && first < maxRanks && last >= 0 && last < maxRanks
}

func parseGroups(text string) (groups [][]int, err error) {
	total := 0
	for one := range strings.SplitSeq(text, "/") {
		var g []int
		for part := range strings.SplitSeq(one, ",") {
			head, tail, _ := strings.Cut(part, ":")
			first, err := parseInt(head, 0)
			if err != nil {
				return nil, err
			}
			count, step, err := parseRun(tail)
			if err != nil {
				return nil, err
			}
			if total += count; !checkRun(first, count, step) || total > maxRanks {
				return nil, badText(part, "ranks")
			}
			for i := range count {
				g = append(g, first+i*step)
			}
		}
		groups = append(groups, g)
	}
	return groups, nil
}

func parsePairs(text string) (pairs [][2]int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		ends, tail, _ := strings.Cut(part, ":")
		source, target, found := strings.Cut(ends, ">")
		if !found {
			return nil, badText(part, "source>target")
		}
		from, err := parseInt(source, 0)
		if err != nil {
			return nil, err
		}
		to, err := parseInt(target, 0)
		if err != nil {
			return nil, err
		}
		count, step, err := parseRun(tail)
		if err != nil {
			return nil, err
		}
		if !checkRun(from, count, step) || !checkRun(to, count, step) || len(pairs)+count > maxRanks {
			return nil, badText(part, "ranks")
		}
		for i := range count {
			pairs = append(pairs, [2]int{from + i*step, to + i*step})
		}
	}
	return pairs, nil
}

var dtypeByName = func() map[string]shape.DType {
	m := map[string]shape.DType{}
	for t := shape.Pred; t <= shape.F6E3M2FN; t++ {
		if t.Bits() > 0 {
			m[t.String()] = t
		}
	}
	return m
}()

func parseDType(text string) (shape.DType, error) {
	t, known := dtypeByName[text]
	if !known {
		return t, badText(text, "an element type")
	}
	return t, nil
}

func parseShapes(text string) (shapes []shape.Shape, err error) {
	for one := range strings.SplitSeq(text, "/") {
		name, dims, found := strings.Cut(one, "[")
		dims, closed := strings.CutSuffix(dims, "]")
		if !found || !closed {
			return nil, badText(one, "a shape")
		}
		var s shape.Shape
		if s.DType, err = parseDType(name); err != nil {
			return nil, err
		}
		for dim := range strings.SplitSeq(dims, ",") {
			if dims == "" {
				break
			}
			n, err := strconv.ParseInt(dim, 10, 64)
			if err != nil {
				return nil, badText(one, "a shape")
			}
			s.Dims = append(s.Dims, n)
		}
		shapes = append(shapes, s)
	}
	return shapes, nil
}
