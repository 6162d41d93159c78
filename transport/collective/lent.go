package collective

import (
	"encoding/binary"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/transport/shm"
)

// This file has the members of a board lend each other the memory in which large arrays lie. How they read it is in
// borrowed.go.
//
// A member that lends has the arrays of its devices in files of memory: one for all that it computes, and segments of
// its pool, for arrays that have come from clients and other workers. The board says which files these are, and who has
// mapped them. Peers are told in which file and where the arrays of a call are that they read (direct.go). A segment is
// lent when a call first tells of an array in it. If filesMax files are lent already, it takes the place of the segment
// that calls have not used for the longest time.
//
// Other arrays, such as short results of computations, have stand-ins in the pool for the time of the call: operands
// are copied there, if they are few bytes (copiesMax), and parts of results are folded there.
//
// # What is guaranteed, and why
//
// All members of a group go the same way. Each tells all others where its arrays are, and whether all of them have
// mapped the files; a call goes directly if all say so, and by areas else. All decide by the same letters. A peer
// unmaps a file only when its owner has withdrawn it, which is not while a call tells of arrays in it; so what the
// owner found mapped is there when its letter comes. A member looks for files to map when it gets such letters: so the
// first call with a file goes by areas, and so do all if a system does not let one process map another's memory.
//
// What is used was lent as long as it was read. A member ends a call when all peers have said that they are through
// with its arrays. If the call fails there before, its arrays may be freed, and others be made in their place, while a
// peer reads. So each call has a lease, a word on the board that says until when that is not so, and who has read looks
// there behind it: if the lease has expired, what was read may be anything, and the call waits there for the error of
// its gang. Reading so late may give the owner pages where it has none, until it uses that place again, or until a
// segment that has gone is unmapped.
//
// A mapping keeps no memory from going back to the system: the owner of a segment that goes takes the pages out of its
// file first. Peers unmap it at their next large collective, and the memory of a member that has gone when no call
// reads it any more. They only read, and nothing but memory of the members' own: that of clients, which they use in
// place, is not lent on.

// lending is what a member of a board lends and borrows.
type lending struct {
	board        *Board
	room, copies int64 // standInsMax, copiesMax
	maps         func(process, file uint32, size, inode uint64) ([]byte, error)

	mu       sync.Mutex // nothing is opened, mapped or unmapped under it
	memory   []byte     // file 0 of this member; nil if it lends nothing
	pool     *shm.Pool  // whose segments it lends, too
	arena    *shm.Arena // of stand-ins
	standIns int64      // bytes in use
	files    map[*shm.Segment]*file
	numbers  uint64                     // that were given to files
	lent     map[int]*[filesMax]*lender // by place
	gone     map[int]struct{}           // places of members that have gone
	leased   [leasesMax]bool
	leases   uint64 // that were given
	closed   bool
}

// file is a segment that this member lends, or has lent.
type file struct {
	slot  int       // 0 if it has lost its place
	calls int       // that tell of arrays in it
	used  time.Time // when the last of them ended
}

// lease is a word of a member that has a number as long as its peers may read its arrays of a call. Numbers never come
// again.
type lease struct {
	slot   int
	number uint64 // 0 is none
}

const (
	leasesMax = 64 // at a time; calls beyond go by areas
	filesMax  = 64 // that a member lends at a time
	// filesRest is for how long no call has used a segment that loses its place to another one. Peers have to unmap the
	// one and map the other, so segments that are in use do not take turns: arrays in others go by areas.
	filesRest = time.Second
	// standInsMax is how many bytes of stand-ins a member has at a time, as many as of its area; calls beyond go by areas.
	standInsMax = areaBytes
	// copiesMax is how many bytes of operands a call copies. Whether copies of more cost less than areas, whose pieces are
	// read while they are in a cache, differs by collective: with 16 MiB each, they took from 0.60 (AllReduce of two
	// members) to 1.56 times (AllToAll of four) the processor time.
	copiesMax = 4 << 20
)

// loan is what a meeting lends its peers until it ends.
type loan struct {
	lease    lease
	arrays   [][]byte // or their stand-ins
	files    []*file  // that they are in
	standIns *shm.Block
	ready    bool // all peers have mapped the files
}

// lend lends arrays to the peers at some places, and writes the letter about them, which is zero before. The first so
// many are operands, whose stand-ins are copies.
func (l *lending) lend(arrays [][]byte, operands int, places []int, letter whereabouts) (n loan) {
	if l.memory == nil {
		return n
	}
	if n.lease = l.lease(); n.lease.number == 0 {
		return n
	}
	l.board.inside.Add(1) // until end
	n.arrays = make([][]byte, len(arrays))
	var size, copied int64 // of stand-ins
	for i, a := range arrays {
		if slot, at := l.find(a, &n); slot >= 0 {
			n.arrays[i] = a
			letter.put(i, slot, at)
			continue
		}
		size += standInBytes(a)
		if i < operands {
			copied = size
		}
	}
	if copied > l.copies || size > 0 && !l.standIn(&n, arrays, size, letter) || !l.areMapped(n.files, places) {
		return n
	}
	for i, a := range arrays[:operands] {
		if unsafe.SliceData(n.arrays[i]) != unsafe.SliceData(a) {
			plainly(n.arrays[i], a)
		}
	}
	n.ready = true
	letter.sign(n.lease)
	return n
}

func standInBytes(array []byte) int64 { return (int64(len(array)) + 63) &^ 63 }

// standIn makes the stand-ins of a loan, of so many bytes in all, and tells where they are.
func (l *lending) standIn(n *loan, arrays [][]byte, size int64, letter whereabouts) bool {
	l.mu.Lock()
	fits := l.standIns+size <= l.room
	if fits {
		l.standIns += size
	}
	l.mu.Unlock()
	if !fits {
		return false
	}
	block, err := l.arena.Make(int(size))
	if err != nil { // the pool has no room
		l.mu.Lock()
		l.standIns -= size
		l.mu.Unlock()
		return false
	}
	n.standIns = block
	slot := l.use(block.Segment, n)
	at := int64(0)
	for i, a := range arrays {
		if n.arrays[i] == nil && slot >= 0 {
			n.arrays[i] = block.Data[at : at+int64(len(a)) : at+int64(len(a))]
			letter.put(i, slot, block.Offset+at)
			at += standInBytes(a)
		}
	}
	return slot >= 0
}

// end ends a loan, before its arrays may be freed. It may have ended already.
func (l *lending) end(n *loan) {
	if n.lease.number == 0 {
		return
	}
	l.mu.Lock()
	word(l.board.leasesOf(l.board.self), n.lease.slot).Store(0)
	l.leased[n.lease.slot] = false
	for _, f := range n.files {
		f.calls--
		f.used = time.Now()
	}
	if n.standIns != nil {
		l.standIns -= int64(len(n.standIns.Data))
	}
	l.mu.Unlock()
	if n.standIns != nil {
		n.standIns.Release()
	}
	l.board.leave()
	*n = loan{}
}

// lease returns a new one; none if there is no slot.
func (l *lending) lease() lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	for slot, leased := range l.leased {
		if !leased {
			l.leases++
			l.leased[slot] = true
			word(l.board.leasesOf(l.board.self), slot).Store(l.leases)
			return lease{slot, l.leases}
		}
	}
	return lease{}
}

// holds reports whether a lease of another member has not expired: then all that was read of its arrays before is what
// they contained. It is no plain load, which some processors let overtake those before it.
func (b *Board) holds(place int, l lease) bool {
	return word(b.leasesOf(place), l.slot).CompareAndSwap(l.number, l.number)
}

// The words of a file that a member lends. The first is its number, which no other file of the member ever has, or 0 if
// there is none; the others are valid if the number is the same before and after. From mappedBy on, each place has a
// word: the number of the file that its member has mapped.
const (
	fileNumber = iota
	fileOf     // the process, by which others find the file, and its number for the file: 32 bits each
	fileSize
	fileInode // a number of a process may name another one, in another namespace
	mappedBy
)

// Lend has the peers of this member read its arrays in this memory, which lies in a file of memory of its size, and in
// shared segments of a pool. File and memory stay for the life of the process. It is called before the first gang.
func (b *Board) Lend(file int, memory []byte, pool *shm.Pool) {
	l := &b.lending
	l.mu.Lock()
	defer l.mu.Unlock()
	if memory != nil && l.publish(0, file, int64(len(memory))) {
		l.memory, l.pool, l.arena = memory, pool, pool.Arena("collectives", true, nil)
	}
}

// publish tells of a file.
func (l *lending) publish(slot, file int, size int64) bool {
	var info unix.Stat_t
	if unix.Fstat(file, &info) != nil {
		return false
	}
	l.numbers++
	words := l.board.fileWords(l.board.self, slot)
	word(words, fileOf).Store(uint64(os.Getpid())<<32 | uint64(file))
	word(words, fileSize).Store(uint64(size))
	word(words, fileInode).Store(info.Ino)
	word(words, fileNumber).Store(l.numbers)
	return true
}

// whereabouts is a letter that says where a member's arrays of a call are.
//
//	0   1 if all its arrays are in files that it lends, and all peers have mapped these
//	4   the slot of its lease
//	8   the number of its lease
//	16  where they are, 8 bytes each: the file, and from bit 8 on the offset
type whereabouts []byte

const whereHeader = 16

func whereBytes(arrays int) int64 { return whereHeader + 8*int64(arrays) }

func (w whereabouts) ready() bool { return binary.LittleEndian.Uint32(w) == 1 }
func (w whereabouts) arrays() int { return (len(w) - whereHeader) / 8 }
func (w whereabouts) lease() (l lease, ok bool) {
	l = lease{int(binary.LittleEndian.Uint32(w[4:])), binary.LittleEndian.Uint64(w[8:])}
	return l, l.slot < leasesMax
}
func (w whereabouts) array(i int) (slot int, at uint64) {
	n := binary.LittleEndian.Uint64(w[whereHeader+8*i:])
	return int(n % filesMax), n >> 8
}
func (w whereabouts) put(i, slot int, at int64) {
	binary.LittleEndian.PutUint64(w[whereHeader+8*i:], uint64(at)<<8|uint64(slot))
}

// sign says that the arrays are ready.
func (w whereabouts) sign(l lease) {
	binary.LittleEndian.PutUint32(w, 1)
	binary.LittleEndian.PutUint32(w[4:], uint32(l.slot))
	binary.LittleEndian.PutUint64(w[8:], l.number)
}

// find returns where an array is that is in use, and has its file lent until the loan ends. Slot is negative if the
// array is in none.
func (l *lending) find(array []byte, n *loan) (slot int, at int64) {
	if len(array) == 0 {
		return 0, 0
	}
	first := uintptr(unsafe.Pointer(unsafe.SliceData(array))) - uintptr(unsafe.Pointer(unsafe.SliceData(l.memory)))
	if size := uintptr(len(l.memory)); first <= size && uintptr(len(array)) <= size-first {
		return 0, int64(first)
	}
	s, at := l.pool.Find(array)
	if s == nil {
		return -1, 0
	}
	return l.use(s, n), at
}

// use has a segment lent until a loan ends. It returns its slot, or -1 if there is none for it.
func (l *lending) use(s *shm.Segment, n *loan) (slot int) {
	l.mu.Lock()
	f := l.files[s]
	isNew := f == nil
	if isNew {
		f = &file{}
	}
	if f.slot == 0 {
		if slot = l.vacant(); slot < 0 || !l.publish(slot, int(s.File.Fd()), s.Size) {
			l.mu.Unlock()
			return -1
		}
		f.slot = slot
	}
	if isNew {
		if l.files == nil {
			l.files = map[*shm.Segment]*file{}
		}
		l.files[s] = f
	}
	if !slices.Contains(n.files, f) {
		n.files = append(n.files, f)
		f.calls++
	}
	slot = f.slot
	l.mu.Unlock()
	if isNew {
		s.Then(func() { l.withdraw(s) })
	}
	return slot
}

// vacant returns a slot for another file, or -1. mu is held.
func (l *lending) vacant() int {
	for slot := range filesMax {
		if word(l.board.fileWords(l.board.self, slot), fileNumber).Load() == 0 {
			return slot
		}
	}
	var rests *file // for the longest time
	for _, f := range l.files {
		if f.slot > 0 && f.calls == 0 && (rests == nil || f.used.Before(rests.used)) {
			rests = f
		}
	}
	if rests == nil || time.Since(rests.used) < filesRest {
		return -1
	}
	slot := rests.slot
	rests.slot = 0
	word(l.board.fileWords(l.board.self, slot), fileNumber).Store(0)
	return slot
}

// withdraw tells the peers that a segment has gone, and returns its memory to the system: until they unmap it, it would
// stay.
func (l *lending) withdraw(s *shm.Segment) {
	l.mu.Lock()
	if slot := l.files[s].slot; slot > 0 && !l.closed {
		word(l.board.fileWords(l.board.self, slot), fileNumber).Store(0)
	}
	delete(l.files, s)
	l.mu.Unlock()
	_ = unix.Fallocate(int(s.File.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, s.Size)
}

// areMapped reports whether the members at these places have mapped files of this member, and its memory.
func (l *lending) areMapped(files []*file, places []int) bool {
	mapped := func(slot int) bool {
		words := l.board.fileWords(l.board.self, slot)
		number := word(words, fileNumber).Load()
		return !slices.ContainsFunc(places, func(p int) bool { return word(words, mappedBy+p).Load() != number })
	}
	return mapped(0) && !slices.ContainsFunc(files, func(f *file) bool { return !mapped(f.slot) })
}
