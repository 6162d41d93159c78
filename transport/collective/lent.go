package collective

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport/pages"
)

// This file has the members of a board read large arrays where these lie, in memory that they lend each other.
//
// A member that lends has the arrays of its devices in a file of memory. Its peers map this file, and are told at which
// offsets the operands and results of a call are (direct.go).
//
// # What is guaranteed, and why
//
// All members of a group go the same way. Each tells all others where its arrays are, and whether it can read theirs;
// a call goes directly if all can, and by areas else. All decide by the same letters. A member can read another's
// memory once it has mapped it, which it does when it gets the first letter from there: so the first call of a group
// goes by areas, and so do all if a system does not let one process map another's memory.
//
// What is used was lent as long as it was read. A member ends a call when all peers have said that they are through
// with its arrays. If the call fails there before, its arrays may be freed, and others be made in their place, while a
// peer reads. So each call has a lease, a word on the board that says until when that is not so, and who has read looks
// there behind it: if the lease has expired, what was read may be anything, and the call waits there for the error of
// its gang. Reading so late may give the owner pages where it has none, until it uses that place again.
//
// The memory of a member that has gone is unmapped when no call reads it any more.

// lending is what a member of a board lends and borrows.
type lending struct {
	mu     sync.Mutex
	file   int
	inode  uint64           // of file
	memory []byte           // of this member; nil if it lends nothing
	lent   map[int]*lender  // by place
	gone   map[int]struct{} // places of members that have gone
	failed map[int]struct{} // places whose memory cannot be mapped
	words  []byte           // of this member's leases
	leased [leasesMax]bool
	leases uint64 // that were given
	closed bool
}

// lease is a word of a member that has a number as long as its peers may read its arrays of a call. Numbers never come
// again.
type lease struct {
	slot   int
	number uint64 // 0 is none
}

const leasesMax = 64 // at a time; calls beyond go by areas

// lease returns a new one; none if there is no slot.
func (l *lending) lease() lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	for slot, leased := range l.leased {
		if !leased {
			l.leases++
			l.leased[slot] = true
			word(l.words, slot).Store(l.leases)
			return lease{slot, l.leases}
		}
	}
	return lease{}
}

// expire ends a lease, before the arrays may be freed.
func (l *lending) expire(old lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	word(l.words, old.slot).Store(0)
	l.leased[old.slot] = false
}

// holds reports whether a lease of another member has not expired: then all that was read of its arrays before is what
// they contained. It is no plain load, which some processors let overtake those before it.
func (b *Board) holds(place int, l lease) bool {
	return word(b.leasesOf(place), l.slot).CompareAndSwap(l.number, l.number)
}

// lender is the memory of another member.
type lender struct {
	data  []byte
	users int
	gone  bool
}

// Lend has the peers of this member read its arrays in this memory, which lies in a file of memory of its size. File
// and memory stay for the life of the process. It is called before the first gang.
func (b *Board) Lend(file int, memory []byte) {
	var info unix.Stat_t
	if memory != nil && unix.Fstat(file, &info) == nil {
		b.lending.file, b.lending.inode, b.lending.memory = file, info.Ino, memory
	}
}

// whereabouts is a letter that says where a member's arrays of a call are.
//
//	0   its process, by which others find the file
//	4   the file
//	8   its size
//	16  its inode: a number of a process may name another one, in another namespace
//	24  1 if the member can read the memory of all others, and all its arrays are in its own
//	28  the slot of its lease
//	32  the number of its lease
//	40  where they are, 8 bytes each: of each call the operands and the results
type whereabouts []byte

const whereHeader = 40

func whereBytes(arrays int) int64 { return whereHeader + 8*int64(arrays) }

func (w whereabouts) ready() bool { return binary.LittleEndian.Uint32(w[24:]) == 1 }
func (w whereabouts) lease() (l lease, ok bool) {
	l = lease{int(binary.LittleEndian.Uint32(w[28:])), binary.LittleEndian.Uint64(w[32:])}
	return l, l.slot < leasesMax
}
func (w whereabouts) offset(i int) uint64 {
	return binary.LittleEndian.Uint64(w[whereHeader+8*i:])
}

// where writes the letter of this member into to, for peers at these places, and returns whether it is ready.
func (l *lending) where(to whereabouts, places []int, under lease, arrays func(yield func([]byte) bool)) (ready bool) {
	ready = under.number != 0 && l.memory != nil && l.maps(places)
	base, i := uintptr(unsafe.Pointer(unsafe.SliceData(l.memory))), 0
	for a := range arrays {
		at := uintptr(unsafe.Pointer(unsafe.SliceData(a))) - base
		if size := uintptr(len(l.memory)); at > size || uintptr(len(a)) > size-at {
			ready, at = false, 0
		}
		binary.LittleEndian.PutUint64(to[whereHeader+8*i:], uint64(at))
		i++
	}
	binary.LittleEndian.PutUint32(to, uint32(os.Getpid()))
	binary.LittleEndian.PutUint32(to[4:], uint32(l.file))
	binary.LittleEndian.PutUint64(to[8:], uint64(len(l.memory)))
	flag := uint32(0)
	if ready {
		flag = 1
	}
	binary.LittleEndian.PutUint64(to[16:], l.inode)
	binary.LittleEndian.PutUint32(to[24:], flag)
	binary.LittleEndian.PutUint32(to[28:], uint32(under.slot))
	binary.LittleEndian.PutUint64(to[32:], under.number)
	return ready
}

// maps reports whether the memory of the members at these places is mapped.
func (l *lending) maps(places []int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		if l.lent[p] == nil {
			return false
		}
	}
	return true
}

// learn maps the memory of which a letter tells, if that was not tried before.
func (l *lending) learn(place int, w whereabouts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, gone := l.gone[place]
	_, failed := l.failed[place]
	size := binary.LittleEndian.Uint64(w[8:])
	if l.memory == nil || l.lent[place] != nil || gone || failed || size == 0 || l.closed {
		return
	}
	data, err := mapLent(binary.LittleEndian.Uint32(w), binary.LittleEndian.Uint32(w[4:]), size,
		binary.LittleEndian.Uint64(w[16:]))
	if err != nil {
		if l.failed == nil {
			l.failed = map[int]struct{}{}
		}
		l.failed[place] = struct{}{}
		return
	}
	if l.lent == nil {
		l.lent = map[int]*lender{}
	}
	l.lent[place] = &lender{data: data}
}

// mapLent maps a file of memory of another process of this host, to be read.
func mapLent(process, file uint32, size, inode uint64) ([]byte, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/fd/%d", process, file))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var info unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &info); err != nil {
		return nil, err
	}
	if size != uint64(info.Size) || inode != info.Ino {
		return nil, status.New(status.InvalidArgument, "file %d of process %d is another one", file, process)
	}
	data, err := pages.Map(int(f.Fd()), info.Size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err == nil {
		_ = unix.Madvise(data, unix.MADV_DONTDUMP) // a core dump would make pages of all of it
	}
	return data, err
}

// borrow returns the memory of the member at a place, for the caller to return; nil if it has gone.
func (l *lending) borrow(place int) *lender {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := l.lent[place]
	if from != nil {
		from.users++
	}
	return from
}

func (l *lending) giveBack(from *lender) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from.users--
	from.unmapUnused()
}

// lost unmaps the memory of a member that has gone, now or when it is given back.
func (l *lending) lost(place int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(place)
}

func (l *lending) drop(place int) {
	if l.gone == nil {
		l.gone = map[int]struct{}{}
	}
	l.gone[place] = struct{}{}
	if from := l.lent[place]; from != nil {
		delete(l.lent, place)
		from.gone = true
		from.unmapUnused()
	}
}

// close unmaps all. Nobody borrows any more.
func (l *lending) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for place := range l.lent {
		l.drop(place)
	}
}

func (from *lender) unmapUnused() {
	if from.gone && from.users == 0 {
		_ = pages.Unmap(from.data)
		from.data = nil
	}
}
