package devicequeue

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// The bytes of an array count from the moment that the part which makes it begins. They stop
// to count when both are true: the driver has let go of its buffer (goes), and no computation or
// copy that has begun still reads or writes it (users). The second matters because a driver
// keeps the memory of a buffer that was closed as long as something reads it. What a
// computation donates is the exception: its outputs take the same memory over, so it is
// deducted when they are added, and it is not counted as read.
//
// A part that does not fit waits in these cases, and in no other, since nothing else can make
// room without a part behind it beginning first:
//
//   - a computation is under way: its end may let bytes go;
//   - bytes are leaving: whatever still uses them ends by itself;
//   - its client may have freed arrays and not said so yet: until Impatient, once a gang.
//
// Frees that stand behind it in the queue would be a fourth, and a circle. So freeAhead does
// them now, if no part in between names the array.

// memory counts the bytes of arrays, where Config.MemoryLimit bounds them.
type memory struct {
	limit   int64 // 0: nothing is counted
	used    int64
	leaving int64   // of used: bytes that go as soon as what is under way is through with them
	arrays  charges // that make up used

	// A part for which there is no room, and for which nothing under way makes any, waits
	// for frees: clients tell of what they let go of in batches, behind what they submit next.
	hopeful  uint64 // the gang of such a part
	hopeless bool   // Impatient was called for it
}

type charges map[*Charge]struct{}

// Charge is the bytes of one shard. They count until the shard's buffer was let go of and
// nothing under way reads or writes them. A nil Charge is that of bytes that do not count.
type Charge struct {
	of      *memory
	bytes   int64
	session uint32
	what    string // made it
	users   int    // computations and copies under way that read or write it
	going   bool   // its shard is in no table, or has failed
	gone    bool   // its buffer was let go of
}

// charge counts a shard: what a part makes as number k.
func (q *Queue) charge(s *Shard, p Part, k int) {
	m, r := &q.room, p.Gang.Recipe
	if m.limit == 0 || k >= len(r.Sizes) || r.Sizes[k] == 0 {
		return
	}
	s.charge = &Charge{of: m, bytes: r.Sizes[k], session: p.Gang.Session, what: r.Name}
	m.used += s.charge.bytes
	m.arrays[s.charge] = struct{}{}
}

// Writing has the bytes of a shard that is about to be filled count until Written, also
// where it is freed.
func (q *Queue) Writing(s *Shard) *Charge { return s.charge.use() }

// Written ends what Writing began.
func (q *Queue) Written(c *Charge) { c.done() }

// use has the bytes count until done, also where the buffer was let go of.
func (c *Charge) use() *Charge {
	if c != nil {
		c.users++
	}
	return c
}

func (c *Charge) done() {
	if c != nil {
		c.users--
		c.settle()
	}
}

// leaves takes note that a shard's bytes go once nothing uses them.
func (c *Charge) leaves() {
	if c != nil && !c.going {
		c.going = true
		c.of.leaving += c.bytes
	}
}

// goes takes note that a shard's buffer was let go of.
func (c *Charge) goes() {
	if c != nil && !c.gone {
		c.leaves()
		c.gone = true
		c.settle()
	}
}

// settle stops counting the bytes, once, when nothing is left that needs them.
func (c *Charge) settle() {
	if _, counted := c.of.arrays[c]; counted && c.gone && c.users == 0 {
		delete(c.of.arrays, c)
		c.of.used -= c.bytes
		c.of.leaving -= c.bytes
	}
}

// fits decides whether there is room for what the first part makes, in place of what it
// donates. Otherwise the part waits, or fails where nothing can make room.
//
// Errors: RESOURCE_EXHAUSTED.
func (q *Queue) fits(p Part) (w Wait, arm bool, err error) {
	m, r := &q.room, p.Gang.Recipe
	if m.limit == 0 || r.Bytes == 0 {
		return Wait{}, false, nil
	}
	more := r.Bytes
	for _, in := range q.inputs {
		if in.Donated && in.Shard.charge != nil {
			more -= in.Shard.charge.bytes
		}
	}
	if m.used+more <= m.limit {
		return Wait{}, false, nil
	}
	if more <= m.limit { // otherwise nothing helps
		if q.freeAhead(); m.used+more <= m.limit {
			return Wait{}, false, nil
		}
		fresh := m.hopeful != p.Gang.ID
		switch {
		case q.flying > 0 || m.leaving > 0:
			return Wait{For: Room}, false, nil
		case fresh || !m.hopeless:
			m.hopeful, m.hopeless = p.Gang.ID, false
			return Wait{For: Room}, fresh, nil
		}
	}
	return Wait{}, false, status.New(status.ResourceExhausted,
		"%s makes %s, and the arrays of a device may have %s, of which %s are in use%s; "+
			"free arrays that are no longer needed, or start the worker with a larger --memory-limit",
		r.Name, shape.BytesText(more), shape.BytesText(m.limit), shape.BytesText(m.used), m.holders(q.config.Owner))
}

// Impatient tells that the time of Action.Arm is over for a gang.
func (q *Queue) Impatient(gang uint64) {
	if q.room.hopeful == gang {
		q.room.hopeless = true
	}
}

// freeAhead lets go of what parts further back free and nothing before them names. It
// changes no result, since nothing else could name these arrays in between.
func (q *Queue) freeAhead() {
	type name struct {
		session uint32
		object  uint64
	}
	named := map[name]bool{}
	for _, p := range q.parts[q.head:] {
		g := p.Gang
		switch g.Recipe.Kind {
		case Free:
			t := q.table(g.Session)
			for _, object := range g.Objects {
				if !named[name{g.Session, object}] {
					q.release(t, object)
				}
			}
		case Run, Transfer:
			for _, object := range g.reads(p.Index) {
				named[name{g.Session, object}] = true
			}
			for k := range g.Recipe.Makes {
				named[name{g.Session, g.First + uint64(k)}] = true
			}
		}
	}
}

// holders names those that have the most bytes, and whose they are.
func (m *memory) holders(owner func(session uint32) string) string {
	type holder struct {
		session uint32
		what    string
	}
	bytes, count := map[holder]int64{}, map[holder]int{}
	for c := range m.arrays {
		h := holder{c.session, c.what}
		bytes[h] += c.bytes
		count[h]++
	}
	var all []holder
	for h := range bytes {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b holder) int {
		return cmp.Or(cmp.Compare(bytes[b], bytes[a]), cmp.Compare(a.session, b.session), strings.Compare(a.what, b.what))
	})
	const most = 4 // that are named
	var b strings.Builder
	for i, h := range all {
		if i == most {
			fmt.Fprintf(&b, ", and %d more", len(all)-i)
			break
		}
		separator := ","
		if i == 0 {
			separator = ":"
		}
		fmt.Fprintf(&b, "%s %s in %d of %s, %s", separator, shape.BytesText(bytes[h]), count[h], h.what,
			owner(h.session))
	}
	return b.String()
}
