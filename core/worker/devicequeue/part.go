package devicequeue

import (
	"fmt"
	"slices"
)

// Kind says what a part is.
type Kind uint8

// The kinds of part.
const (
	Run      Kind = iota // a computation
	Transfer             // bytes come, go, or are read: no computation
	Free                 // Gang.Objects can be named no more
	Leave                // what the session has can be named no more
)

// Recipe is what all gangs that do the same have in common, such as all runs of a program.
// It must not change once a part with it was submitted.
type Recipe struct {
	Kind    Kind
	Name    string  // of the program, or of what is done; for people
	Makes   int     // how many arrays a part makes
	Sizes   []int64 // of these, the bytes that are counted; those without an entry have none
	Bytes   int64   // of all
	Donates []int   // arguments, as indices of what a part reads

	// Alone: the computation waits for other workers, and where devices are threads of one
	// pool, with a thread. So nothing else of the device may be under way.
	Alone bool
	// Together: the gang's devices are launched by one call, once all have begun.
	Together bool
	// Pooled: these devices wait for each other, each with a thread of the pool that they share.
	// So no computation of the device that is Alone may be under way.
	Pooled bool
	// Calls: the computation calls its client, which may submit operations that come after the next computation. So no
	// other part waits for its end.
	Calls bool
	// Announced: other devices of the gang wait until this one has reached it.
	Announced bool
}

// Frees is the recipe of a part that frees Gang.Objects.
var Frees = Recipe{Kind: Free, Name: "a free"}

var leaves = Recipe{Kind: Leave, Name: "the end of a session"}

// Gang is what a queue has to know about an operation of a session. The queues of all its devices share it, so it must
// not change once a part of it was submitted.
type Gang struct {
	ID      uint64
	Session uint32
	Recipe  *Recipe
	Owner   any // the caller's own
	// Objects are the objects that each part reads, by argument, or frees. It makes First, First+1 and so on: Recipe.Makes
	// of them.
	Objects []uint64
	First   uint64
	But     *Exceptions // nil in most gangs
}

// Exceptions are where a gang is not as Gang.Objects and its Recipe say.
type Exceptions struct {
	Reads     [][]uint64 // by part, instead of Gang.Objects
	MakesNone []bool     // by part: it makes nothing
	Kept      []int      // arguments that are not donated
}

// Part is a device's part of a gang: the one with this index.
type Part struct {
	Gang  *Gang
	Index int
}

func (g *Gang) reads(part int) []uint64 {
	if g.But != nil && g.But.Reads != nil {
		return g.But.Reads[part]
	}
	return g.Objects
}

// Reads returns the objects that the part reads.
func (p Part) Reads() []uint64 { return p.Gang.reads(p.Index) }

// makes reports whether a part makes the recipe's outputs.
func (g *Gang) makes(part int) bool {
	return g.Recipe.Makes > 0 && (g.But == nil || g.But.MakesNone == nil || !g.But.MakesNone[part])
}

// donates reports whether a part takes over the memory of an argument.
func (g *Gang) donates(argument int) bool {
	return slices.Contains(g.Recipe.Donates, argument) && (g.But == nil || !slices.Contains(g.But.Kept, argument))
}

// NoIndex is the Index of a Flight that is no computation.
const NoIndex = -1

// Flight is a part that has begun. That of a computation is the queue's again after Failed
// or Ended; another's, at the next call of Next. Callers read it.
type Flight struct {
	Part   Part
	Index  int      // of a computation: less than the window, and its own until it ends
	Inputs []Input  // what it reads, pinned
	Made   []*Shard // what it makes, pending

	busy []*Charge // bytes that it reads or writes until it ends
}

// Input is an array that a part reads.
type Input struct {
	Shard   *Shard
	Donated bool // the part takes its memory over
}

// flight returns a flight that is not in use. There are never more than the window.
func (q *Queue) flight() *Flight {
	if n := len(q.spareFlights) - 1; n >= 0 {
		f := q.spareFlights[n]
		q.spareFlights = q.spareFlights[:n]
		return f
	}
	f := &Flight{Index: q.flights}
	q.flights++
	return f
}

// unpin ends the use of a flight's inputs.
func (q *Queue) unpin(f *Flight) {
	for _, in := range f.Inputs {
		q.Unpin(in.Shard)
	}
	clear(f.Inputs)
	f.Inputs = f.Inputs[:0]
}

// count adds n to what is counted of a computation that is under way. Nothing waits for the
// end of one that calls its client.
func (q *Queue) count(r *Recipe, n int) {
	q.flying += n
	if r.Calls {
		return
	}
	q.begun += n
	if r.Alone {
		q.alone += n
	}
}

// land takes back the flight of a computation that is over.
func (q *Queue) land(f *Flight) {
	for _, c := range f.busy {
		c.done()
	}
	q.count(f.Part.Gang.Recipe, -1)
	clear(f.busy)
	clear(f.Made)
	f.Part = Part{}
	q.spareFlights = append(q.spareFlights, f)
}

// Cause returns why a part that had begun failed, where that is an object that it read and that has failed since, or
// was not known to have: drivers fail whatever reads it, with an error of their own.
func (q *Queue) Cause(session uint32, reads []uint64) error {
	for _, object := range reads {
		if err := q.Failure(session, object); err != nil {
			return err
		}
	}
	return nil
}

// Reason is the kind of thing that a part waits for.
type Reason uint8

// The reasons.
const (
	Nothing      Reason = iota
	Loading             // its program is being loaded
	Bytes               // the bytes of object N have yet to come
	Readers             // object N is to be read before it is donated
	Window              // all N computations that may be under way are
	Before              // what began before it has to end
	Elsewhere           // device N has yet to come to its part
	OtherDevices        // the gang's other devices have yet to come
)

// Wait says what a part waits for.
type Wait struct {
	For      Reason
	Argument int32  // of Bytes and Readers: which of what the part reads
	N        uint64 // of these: the object
}

// Text describes the wait of a part for people.
func (w Wait) Text(p Part) string {
	r := p.Gang.Recipe
	switch w.For {
	case Loading:
		return r.Name + " to be loaded"
	case Bytes:
		if r.Kind != Run {
			return fmt.Sprintf("array %d, whose bytes have yet to come", w.N)
		}
		return fmt.Sprintf("array %d, argument %d of %s, whose bytes have yet to come", w.N, w.Argument, r.Name)
	case Readers:
		return fmt.Sprintf("array %d, argument %d of %s, to be read before it is donated", w.N, w.Argument, r.Name)
	case Window:
		return fmt.Sprintf("one of %d computations under way to end", w.N)
	case Before:
		return "what began before " + r.Name + " to end"
	case Elsewhere:
		return fmt.Sprintf("device %d to come to %s", w.N, r.Name)
	case OtherDevices:
		return "the other devices of " + r.Name
	}
	return "nothing"
}
