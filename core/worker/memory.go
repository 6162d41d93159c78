package worker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// memory counts the bytes of a device's arrays, where Config.MemoryLimit bounds
// them. What makes arrays is begun when they fit; until then the queue stands
// still, as long as something in flight may make room. The queue owns it.
type memory struct {
	limit   int64 // 0: nothing is counted
	used    int64
	leaving int64     // of it, bytes that were let go of and that something in flight still reads
	short   bool      // the first of the queue waits for room
	last    uint64    // the gang that waits although nothing in flight makes room
	since   time.Time // that it does
	arrays  charges   // all
}

type charges map[*charge]struct{}

// charge is the bytes of one shard, until nothing reads them.
type charge struct {
	of      *memory
	bytes   int64
	session uint32
	what    string // that made it
	readers int    // computations and copies under way that read it, or write it
	going   bool   // nobody can name it any more
	gone    bool   // its buffer was let go of
}

// charge counts a shard.
func (q *queue) charge(s *shard, session uint32, bytes int64, what string) {
	m := &q.room
	if m.limit == 0 || bytes == 0 {
		return
	}
	s.charge = &charge{of: m, bytes: bytes, session: session, what: what}
	m.used += bytes
	m.arrays[s.charge] = struct{}{}
}

// leaves takes note that a shard goes as soon as what reads it is through.
func (c *charge) leaves() {
	if c != nil && !c.going {
		c.going = true
		c.of.leaving += c.bytes
	}
}

// goes takes note that a shard's buffer was let go of.
func (c *charge) goes() {
	if c != nil && !c.gone {
		c.leaves()
		c.gone = true
		c.settle()
	}
}

// busy has the bytes counted until read, also where the shard goes.
func (c *charge) busy() *charge {
	if c != nil {
		c.readers++
	}
	return c
}

// read ends what busy began.
func (c *charge) read() {
	if c != nil {
		c.readers--
		c.settle()
	}
}

func (c *charge) settle() {
	if _, counted := c.of.arrays[c]; counted && c.gone && c.readers == 0 {
		delete(c.of.arrays, c)
		c.of.used -= c.bytes
		c.of.leaving -= c.bytes
	}
}

// reading takes note that a computation reads the inputs of the part that is being
// begun; it is ended by read.
func (q *queue) reading(inputs []input) []*charge {
	if q.room.limit == 0 {
		return nil
	}
	var all []*charge
	for _, in := range inputs {
		if c := in.shard.charge; c != nil && !in.donated {
			all = append(all, c.busy())
		}
	}
	return all
}

// fits says that there is room for what a part makes, in place of what it consumes.
// With false and no error the part waits: something in flight may make room.
//
// Errors: RESOURCE_EXHAUSTED.
func (q *queue) fits(g *gang, need, consumed int64, what string) (bool, error) {
	m := &q.room
	m.short = false
	if m.limit == 0 || need == 0 || m.used-consumed+need <= m.limit {
		return true, nil
	}
	if need-consumed <= m.limit { // otherwise nothing helps
		if q.freeAhead(); m.used-consumed+need <= m.limit {
			return true, nil
		}
		if q.flying > 0 || m.leaving > 0 || q.lately(g) {
			m.short = true
			return q.waits(g, "room for %s, which makes %s", what, shape.BytesText(need)), nil
		}
	}
	return false, status.New(status.ResourceExhausted, "%s makes %s, and the arrays of a device may have %s, of which %s are in use%s; free arrays that are no longer needed, or start the worker with a larger --memory-limit",
		what, shape.BytesText(need-consumed), shape.BytesText(m.limit), shape.BytesText(m.used), m.holders())
}

// Clients tell of what they let go of in batches, behind what they submit next. A
// part for which there is no room waits so long for that.
const freesCome = 100 * time.Millisecond

// lately says that the part may wait a little longer for frees to come.
func (q *queue) lately(g *gang) bool {
	m := &q.room
	if m.last != g.id {
		m.last, m.since = g.id, time.Now()
		time.AfterFunc(freesCome, func() { q.post(note{}) })
		return true
	}
	return time.Since(m.since) < freesCome
}

// freeAhead lets go of what operations further back in the queue free and nothing
// before them reads.
func (q *queue) freeAhead() {
	type name struct {
		session uint32
		object  uint64
	}
	named := map[name]bool{}
	for _, p := range q.todo[q.head:] {
		session := p.g.session
		switch work := p.g.work.(type) {
		case *free:
			t := q.table(session)
			for _, object := range work.objects {
				if s := t.shards[object]; s != nil && !named[name{session, object}] {
					delete(t.shards, object)
					q.shards.Add(-1)
					q.remove(s)
				}
			}
		case *run:
			for arg := range work.inputs {
				named[name{session, work.object(arg, work.rows[p.i])}] = true
			}
			for k := range work.program.outputs {
				named[name{session, work.first + uint64(k)}] = true
			}
		case *put:
			named[name{session, work.object}] = true
		case *fetch:
			named[name{session, work.object}] = true
		case *transfer:
			named[name{session, work.object}] = true
			for _, v := range work.parts[p.i].sends {
				named[name{session, v.source}] = true
			}
		}
	}
}

// holders names the largest of those who have arrays.
func (m *memory) holders() string {
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
	var b strings.Builder
	for i, h := range all {
		if i == 4 {
			fmt.Fprintf(&b, ", and %d more", len(all)-i)
			break
		}
		fmt.Fprintf(&b, "%s %s in %d of %s, session %d", [2]string{",", ":"}[min(1, max(0, 1-i))], shape.BytesText(bytes[h]), count[h], h.what, h.session)
	}
	return b.String()
}

// counted gives the bytes that an array takes of a device's memory. Memories of
// other kinds, on the host, are not counted.
func (q *queue) counted(a *wire.Array) int64 {
	return q.size(shape.Shape{DType: shape.DType(a.Dtype), Dims: a.Dims}, a.Memory)
}

func (q *queue) size(s shape.Shape, memory string) int64 {
	if memory != "" && memory != q.memory {
		return 0
	}
	return max(0, s.Bytes())
}
