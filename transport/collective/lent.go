package collective

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/bits"
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport/pages"
	"github.com/openpathways/pathways/transport/shm"
)

// This file has the members of a board read large arrays where these lie, in memory that they lend each other.
//
// A member that lends has the arrays of its devices in files of memory: one for all that it computes, and segments of
// its pool, for arrays that have come from clients and other workers. The board says which files these are, and who has
// mapped them. Peers are told in which file and where the operands and results of a call are (direct.go). A segment is
// lent when an array in it is first an operand of a large collective, if fewer than filesMax files are lent.
//
// # What is guaranteed, and why
//
// All members of a group go the same way. Each tells all others where its arrays are, and whether all of them have
// mapped the files; a call goes directly if all say so, and by areas else. All decide by the same letters. A peer
// unmaps a file only when its owner has withdrawn it, which is not while there are arrays in it; so what the owner
// found mapped is there when its letter comes. A member looks for files to map when it gets such letters: so the first
// call with a file goes by areas, and so do all if a system does not let one process map another's memory.
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
// reads it any more. They only read, and nothing but memory of the members' own; that of clients, which they use in
// place, is not lent on.

// lending is what a member of a board lends and borrows.
type lending struct {
	board *Board

	mu      sync.Mutex
	memory  []byte    // file 0 of this member; nil if it lends nothing
	pool    *shm.Pool // whose segments it lends, too
	files   map[*shm.Segment]int
	numbers uint64                     // that were given to files
	lent    map[int]*[filesMax]*lender // by place
	gone    map[int]struct{}           // places of members that have gone
	leased  [leasesMax]bool
	leases  uint64 // that were given
	closed  bool
}

// lease is a word of a member that has a number as long as its peers may read its arrays of a call. Numbers never come
// again.
type lease struct {
	slot   int
	number uint64 // 0 is none
}

const (
	leasesMax = 64 // at a time; calls beyond go by areas
	filesMax  = 64 // that a member lends at a time; arrays in others go by areas
)

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

// expire ends a lease, before the arrays may be freed.
func (l *lending) expire(old lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	word(l.board.leasesOf(l.board.self), old.slot).Store(0)
	l.leased[old.slot] = false
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
		l.memory, l.pool = memory, pool
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
//	16  where they are, 8 bytes each, of each call the operands and the results: the file, and from bit 8 on the offset
type whereabouts []byte

const whereHeader = 16

func whereBytes(arrays int) int64 { return whereHeader + 8*int64(arrays) }

func (w whereabouts) ready() bool { return binary.LittleEndian.Uint32(w) == 1 }
func (w whereabouts) lease() (l lease, ok bool) {
	l = lease{int(binary.LittleEndian.Uint32(w[4:])), binary.LittleEndian.Uint64(w[8:])}
	return l, l.slot < leasesMax
}
func (w whereabouts) array(i int) (file int, at uint64) {
	n := binary.LittleEndian.Uint64(w[whereHeader+8*i:])
	return int(n % filesMax), n >> 8
}

// where writes the letter of this member into to, for peers at these places, and returns whether it is ready.
func (l *lending) where(to whereabouts, places []int, under lease, arrays iter.Seq[[]byte]) (ready bool) {
	ready = under.number != 0 && l.memory != nil
	var files uint64 // a bit each
	i := 0
	for a := range arrays {
		file, at := l.find(a)
		if file < 0 {
			ready, file = false, 0
		}
		files |= 1 << file
		binary.LittleEndian.PutUint64(to[whereHeader+8*i:], uint64(at)<<8|uint64(file))
		i++
	}
	ready = ready && l.isMapped(files, places)
	flag := uint32(0)
	if ready {
		flag = 1
	}
	binary.LittleEndian.PutUint32(to, flag)
	binary.LittleEndian.PutUint32(to[4:], uint32(under.slot))
	binary.LittleEndian.PutUint64(to[8:], under.number)
	return ready
}

// find returns where an array is that is in use. File is negative if it is in none that is lent.
func (l *lending) find(array []byte) (file int, at int64) {
	if l.memory == nil {
		return -1, 0
	}
	first := uintptr(unsafe.Pointer(unsafe.SliceData(array))) - uintptr(unsafe.Pointer(unsafe.SliceData(l.memory)))
	if size := uintptr(len(l.memory)); first <= size && uintptr(len(array)) <= size-first {
		return 0, int64(first)
	}
	s, at := l.pool.Find(array)
	if s == nil {
		return -1, 0
	}
	l.mu.Lock()
	file, ok := l.files[s]
	if ok {
		l.mu.Unlock()
		return file, at
	}
	if file = l.free(); file < 0 || !l.publish(file, int(s.File.Fd()), s.Size) {
		l.mu.Unlock()
		return -1, 0
	}
	if l.files == nil {
		l.files = map[*shm.Segment]int{}
	}
	l.files[s] = file
	l.mu.Unlock()
	s.Then(func() { l.withdraw(s) })
	return file, at
}

// free returns the slot of a file that is not in use, or -1. mu is held.
func (l *lending) free() int {
	for slot := range filesMax {
		if word(l.board.fileWords(l.board.self, slot), fileNumber).Load() == 0 {
			return slot
		}
	}
	return -1
}

// withdraw tells the peers that a segment has gone, and returns its memory to the system: until they unmap it, it would
// stay.
func (l *lending) withdraw(s *shm.Segment) {
	l.mu.Lock()
	if !l.closed {
		word(l.board.fileWords(l.board.self, l.files[s]), fileNumber).Store(0)
	}
	delete(l.files, s)
	l.mu.Unlock()
	_ = unix.Fallocate(int(s.File.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, s.Size)
}

// isMapped reports whether the members at these places have mapped files of this member, a bit each.
func (l *lending) isMapped(files uint64, places []int) bool {
	for ; files != 0; files &= files - 1 {
		words := l.board.fileWords(l.board.self, bits.TrailingZeros64(files))
		number := word(words, fileNumber).Load()
		if slices.ContainsFunc(places, func(p int) bool { return word(words, mappedBy+p).Load() != number }) {
			return false
		}
	}
	return true
}

// lender is a file of another member.
type lender struct {
	number uint64
	data   []byte // nil if it could not be mapped
	users  int
	gone   bool
}

// learn maps the files that a member lends, each of which it tries once, and unmaps those that it does no longer.
func (l *lending) learn(place int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, gone := l.gone[place]; l.memory == nil || gone || l.closed {
		return
	}
	files := l.lent[place]
	if files == nil {
		if l.lent == nil {
			l.lent = map[int]*[filesMax]*lender{}
		}
		files = new([filesMax]*lender)
		l.lent[place] = files
	}
	for slot := range files {
		words, had := l.board.fileWords(place, slot), uint64(0)
		number := word(words, fileNumber).Load()
		if files[slot] != nil {
			had = files[slot].number
		}
		if number == had {
			continue
		}
		files[slot].drop()
		files[slot] = nil
		if number == 0 {
			continue
		}
		of, size, inode := word(words, fileOf).Load(), word(words, fileSize).Load(), word(words, fileInode).Load()
		if word(words, fileNumber).Load() != number { // it has just gone
			continue
		}
		data, err := mapLent(uint32(of>>32), uint32(of), size, inode)
		files[slot] = &lender{number: number, data: data}
		if err == nil {
			word(words, mappedBy+l.board.self).Store(number)
		}
	}
}

// mapLent maps a file of memory of another process of this host, to be read.
func mapLent(process, file uint32, size, inode uint64) ([]byte, error) {
	// By now it may be a pipe, whose opening would wait for a writer.
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", process, file), os.O_RDONLY|unix.O_NONBLOCK, 0)
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

// borrow returns the arrays of which a letter from a place tells, and the files that they are in, for the caller to
// give back. Bytes returns how many an array has. If they are in no file that is mapped, as when the member has gone,
// there are none.
func (l *lending) borrow(place int, w whereabouts, bytes func(i int) uint64) (arrays [][]byte, from []*lender) {
	l.mu.Lock()
	defer l.mu.Unlock()
	files := l.lent[place]
	if files == nil {
		return nil, nil
	}
	arrays = make([][]byte, (len(w)-whereHeader)/8)
	for i := range arrays {
		file, at := w.array(i)
		f, size := files[file], bytes(i)
		if f == nil || at > uint64(len(f.data)) || size > uint64(len(f.data))-at {
			l.unuse(from)
			return nil, nil
		}
		if !slices.Contains(from, f) {
			f.users++
			from = append(from, f)
		}
		arrays[i] = f.data[at : at+size : at+size]
	}
	return arrays, from
}

func (l *lending) giveBack(files []*lender) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unuse(files)
}

func (l *lending) unuse(files []*lender) {
	for _, f := range files {
		f.users--
		f.unmapUnused()
	}
}

// isGone reports whether the member at a place has gone.
func (l *lending) isGone(place int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, gone := l.gone[place]
	return gone
}

// lost unmaps the memory of a member that has gone, now or when it is given back.
func (l *lending) lost(place int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone == nil {
		l.gone = map[int]struct{}{}
	}
	l.gone[place] = struct{}{}
	l.drop(place)
}

func (l *lending) drop(place int) {
	if files := l.lent[place]; files != nil {
		delete(l.lent, place)
		for _, f := range files {
			f.drop()
		}
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

// drop unmaps a file as soon as nobody reads it. f may be nil.
func (f *lender) drop() {
	if f != nil {
		f.gone = true
		f.unmapUnused()
	}
}

func (f *lender) unmapUnused() {
	if f.gone && f.users == 0 && f.data != nil {
		_ = pages.Unmap(f.data)
		f.data = nil
	}
}
