package collective

import (
	"crypto/rand"
	"encoding/binary"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// Members of a board copy long blocks from where they lie in the memory of another member, by a call of the system
// (process_vm_readv), if the system lets them. That is one copy of each byte, where an area takes one to write and one
// to read. What is written into the area then is a table of the block's pieces, by address. Blocks that are folded go
// by areas: the system takes longer to find memory that is in pages of 4 KiB, as that of arrays is which a client has
// put, than a copy into an area that stays in the cache.
//
// A member that shows a block so must keep its memory as it is until all readers are through. Blocks of one round are
// read when the blocks of the next one come, as those in areas are; and a round that moves nothing follows the last.
//
// Memory is never read that is not there: the system looks at each address. It may be other memory, though, once the
// calls of the member that showed it have ended. They end early only if its gang has failed there, and so has failed as
// a whole: no one sees the results.
//
// Whether a member may read another's memory depends on the system (user, Yama, seccomp, process namespaces), so each
// tries it when the first block of another's comes that lies in an area: a number of 8 bytes that the other has drawn
// must be where it says. The answer is for the other, which decides how it shows its blocks: all else is the same in
// both ways.

// probe is what a member shows to be tried. It lies on the board.
type probe struct {
	process, address, number atomic.Uint64
	readers                  atomic.Uint64 // places of members that have read the number
}

func (b *Board) probe(place int) *probe {
	return (*probe)(unsafe.Pointer(b.bell(place, probeLine)))
}

// offer shows a number to the other members. The address of what Go has allocated does not change.
func (b *Board) offer() {
	b.number = new(uint64)
	var drawn [8]byte
	_, _ = rand.Read(drawn[:]) // never fails
	*b.number = binary.LittleEndian.Uint64(drawn[:]) | 1
	p := b.probe(b.self)
	p.process.Store(uint64(os.Getpid()))
	p.address.Store(address(b.number))
	p.number.Store(*b.number)
}

// address is where other processes find what p points at, as long as it is there.
func address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// try finds out, once, whether this member may read the memory of another one, and tells it. The caller holds mu.
func (b *Board) try(place int) {
	if b.tried&(1<<place) != 0 {
		return
	}
	b.tried |= 1 << place
	p := b.probe(place)
	number := p.number.Load()
	var got [8]byte
	if err := (remote{p, p.address.Load()}).read(got[:], dense(0, 8), dense(0, 8)); err == nil &&
		binary.NativeEndian.Uint64(got[:]) == number {
		p.readers.Or(1 << b.self)
	}
}

// remote is memory of another process.
type remote struct {
	of      *probe
	address uint64
}

// vectors is how many ranges one call of the system takes.
const vectors = 1024

// read copies a region of remote memory into a region of dst, of as many bytes.
func (r remote) read(dst []byte, d, s region) error {
	if d, s = d.like(s), s.like(d); d.bytes() == 0 {
		return nil
	}
	for at := int64(0); at < d.count; {
		n := min(d.count-at, vectors)
		into, from := make([]unix.Iovec, n), make([]unix.RemoteIovec, n)
		for i := range n {
			into[i].Base = &dst[d.off+(at+i)*d.stride]
			into[i].SetLen(int(d.run))
			from[i] = unix.RemoteIovec{Base: uintptr(r.address) + uintptr(s.off+(at+i)*s.stride), Len: int(d.run)}
		}
		if err := r.all(into, from); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// all reads all ranges, each as long as the one it goes to. The system may read fewer bytes at a time.
func (r remote) all(into []unix.Iovec, from []unix.RemoteIovec) error {
	for len(into) > 0 {
		n, err := unix.ProcessVMReadv(int(r.of.process.Load()), into, from, 0)
		if err == nil && n == 0 {
			err = unix.EFAULT
		}
		if err != nil {
			return status.New(status.Unavailable, "memory of process %d of this host cannot be read: %w", r.of.process.Load(),
				err)
		}
		for ; len(into) > 0 && n >= from[0].Len; into, from = into[1:], from[1:] {
			n -= from[0].Len
		}
		if n > 0 {
			into[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(into[0].Base), n))
			into[0].SetLen(from[0].Len - n)
			from[0].Base += uintptr(n)
			from[0].Len -= n
		}
	}
	return nil
}

// A piece of a table: where it is in the block, and where in memory.
const pieceBytes = 5 * 8

// showDirect tells peers where the pieces of a block are, unless one of them cannot read there, or the area has no room
// for the table.
func (m *meeting) showDirect(board *Board, k mail, s *pack, peers []int, readers uint64) bool {
	if readers&^board.probe(board.self).readers.Load() != 0 {
		return false
	}
	at, table := board.area.take(int64(len(s.pieces))*pieceBytes, readers)
	if table == nil {
		return false
	}
	for i, p := range s.pieces {
		t, r := table[i*pieceBytes:], p.from.reg
		where := uint64(0)
		if r.bytes() > 0 {
			where = address(&m.memory(p.from)[r.off])
		}
		for j, v := range [...]uint64{uint64(p.at), where, uint64(r.run), uint64(r.stride), uint64(r.count)} {
			binary.LittleEndian.PutUint64(t[j*8:], v)
		}
	}
	board.refer(m.table.peers, peers, k, far, at, s.bytes, int64(len(table)))
	return true
}

// isFar reports whether a piece of a block lies in the memory of another process.
func (m *meeting) isFar(r ref) bool { return r.kind == block && m.peers[r.call].letter.form == far }

// far finds a piece of a block in the memory of another process.
func (m *meeting) far(r ref) (remote, region, error) {
	f := &m.peers[r.call]
	for t := f.block.Data; len(t) >= pieceBytes; t = t[pieceBytes:] {
		v := func(j int) int64 { return int64(binary.LittleEndian.Uint64(t[j*8:])) }
		if v(0) != r.reg.off {
			continue
		}
		if reg := (region{0, v(2), v(3), v(4)}); reg.bytes() == r.reg.bytes() {
			return remote{m.gang.engine.board.probe(f.place), uint64(v(1))}, reg, nil
		}
		break
	}
	return remote{}, region{}, status.New(status.Internal, "the block of process %d has no piece of %d bytes at %d",
		m.table.peers[r.call], r.reg.bytes(), r.reg.off)
}

// pull copies a piece from the memory of another process.
func (m *meeting) pull(to, from ref) error {
	memory, reg, err := m.far(from)
	if err != nil {
		return err
	}
	return memory.read(m.memory(to), to.reg, reg)
}

// directRun is how long the runs of a piece are at least: the system takes longer for many short ones.
const directRun = 4 << 10

// isDirect reports whether the blocks of a group's rounds are long enough to be read in the memory of those who show
// them. All processes of the group find the same.
func (b *builder) isDirect(total int64) bool {
	switch b.spec.Op {
	case spmd.AllToAll, spmd.CollectivePermute:
	case spmd.AllGather:
		if len(b.members) > gatherDirect {
			return false
		}
	default: // what many read, what is folded, or what lies elsewhere than the program says
		return false
	}
	return b.sizes.direct > 0 && total >= b.sizes.direct
}

// gatherDirect is up to how many processes an all-gather reads directly: more of them read an area faster, in which a
// block is in the cache that they share.
const gatherDirect = 6

// directly has the rounds' blocks be read in memory, and adds the round after which that is over: who has read
// another's block tells it so.
func (b *builder) directly() {
	for k := range b.table.rounds {
		out := &b.table.rounds[k].out
		out.direct = true
		for _, p := range out.pieces {
			out.direct = out.direct && (p.from.reg.count == 1 || p.from.reg.run >= directRun)
		}
	}
	l := b.layout()
	for p, places := range b.members {
		for i, x := range b.spec.Operands {
			if x.Bytes() > 0 {
				l.add(p, ref{kind: operand, call: b.call[places[0]], buf: i, reg: dense(0, 1)})
				break
			}
		}
	}
	b.table.rounds = append(b.table.rounds, l.meet(func(q, p int) bool { return b.reads(p, q) }))
}
