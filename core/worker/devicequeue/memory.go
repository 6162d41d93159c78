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
// to count when both are true: the driver has released its buffer (goes), and no computation or
// copy that has begun still reads or writes it (users). The second matters because a driver
// keeps the memory of a buffer that was closed as long as something reads it. What a
// computation donates is the exception: its outputs take the same memory over, so it is
// deducted when they are added, and it is not counted as read.
//
// That is a check: the controller has admitted what comes here, and knows that there is room, since it counts an array
// until its last user has ended. A part for which there is none all the same, bytes that are leaving put aside, fails:
// nothing that the device could wait for is sure to make any.

// memory counts the bytes of arrays, where Config.MemoryLimit bounds them.
type memory struct {
	limit   int64 // 0: nothing is counted
	used    int64
	leaving int64   // of used: bytes that go as soon as work under way is done with them
	arrays  charges // that make up used
}

type charges map[*Charge]struct{}

// Charge is the bytes of one shard. They count until the shard's buffer was released and
// nothing under way reads or writes them. A nil Charge is that of bytes that do not count.
type Charge struct {
	of      *memory
	bytes   int64
	session uint32
	what    string // made it
	users   int    // computations and copies under way that read or write it
	going   bool   // its shard is in no table, has failed, or is being donated
	gone    bool   // its buffer was released
}

// charge counts output k of a part.
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

// use has the bytes count until done, also where the buffer was released.
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

// leaves records that a shard's bytes go once nothing uses them.
func (c *Charge) leaves() {
	if c != nil && !c.going {
		c.going = true
		c.of.leaving += c.bytes
	}
}

// stays takes back leaves, of a shard that was not donated after all.
func (c *Charge) stays() {
	if c != nil && c.going && !c.gone {
		c.going = false
		c.of.leaving -= c.bytes
	}
}

// goes records that a shard's buffer was released.
func (c *Charge) goes() {
	if c != nil && !c.gone {
		c.leaves()
		c.gone = true
		c.settle()
	}
}

// Leaving calls each for the bytes of arrays that were freed, or have failed, and are still in use. Bytes are counted
// only if there is a limit.
func (q *Queue) Leaving(each func(session uint32, bytes int64)) {
	for c := range q.room.arrays {
		if c.going {
			each(c.session, c.bytes)
		}
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

// fits returns nil if there is room for the outputs of the first part, in place of what it donates.
//
// Errors: RESOURCE_EXHAUSTED.
func (q *Queue) fits(p Part) error {
	m, r := &q.room, p.Gang.Recipe
	if m.limit == 0 || r.Bytes == 0 {
		return nil
	}
	more := r.Bytes
	for _, in := range q.inputs {
		if in.Donated && in.Shard.charge != nil {
			more -= in.Shard.charge.bytes
		}
	}
	if m.used-m.leaving+more <= m.limit {
		return nil
	}
	return status.New(status.ResourceExhausted,
		"%s makes %s, and the arrays of a device may have %s, of which %s are in use%s; "+
			"free arrays that are no longer needed, or start the worker with a larger --memory-limit",
		r.Name, shape.BytesText(more), shape.BytesText(m.limit), shape.BytesText(m.used-m.leaving), m.holders(q.config.Owner))
}

// holders names those that have the most bytes, and whose they are.
func (m *memory) holders(owner func(session uint32) string) string {
	type holder struct {
		session uint32
		what    string
	}
	bytes, count := map[holder]int64{}, map[holder]int{}
	for c := range m.arrays {
		if c.going {
			continue
		}
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
