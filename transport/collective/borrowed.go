package collective

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport/pages"
)

// This file maps what other members lend (lent.go), and returns it.

// lender is a file of another member.
type lender struct {
	number uint64
	data   []byte // nil if it is not mapped
	users  int
	gone   bool

	busy   bool // it is being mapped
	failed int  // how often mapping it has
	rests  int  // for how many calls it is not tried again
}

// lenderRests is for how many calls at most a file that could not be mapped is not tried again: meanwhile this process
// may have closed other files, or unmapped other memory.
const lenderRests = 1024

// found is a file of another member that this one has yet to map.
type found struct {
	*lender
	slot            int
	of, size, inode uint64
}

// learn maps the files that a member lends, and unmaps those that it does no longer.
func (l *lending) learn(place int) {
	files, old := l.look(place)
	unmapAll(old)
	for _, f := range files {
		data, err := l.maps(uint32(f.of>>32), uint32(f.of), f.size, f.inode)
		if !l.mapped(place, f, data, err) && err == nil {
			_ = pages.Unmap(data)
		}
	}
}

// look returns the files of a member that the caller has to map, and the mappings that it has to remove.
func (l *lending) look(place int) (files []found, old [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, gone := l.gone[place]; l.memory == nil || gone || l.closed {
		return nil, nil
	}
	lent := l.lent[place]
	if lent == nil {
		if l.lent == nil {
			l.lent = map[int]*[filesMax]*lender{}
		}
		lent = new([filesMax]*lender)
		l.lent[place] = lent
	}
	for slot, f := range lent {
		words := l.board.fileWords(place, slot)
		number := word(words, fileNumber).Load()
		switch {
		case f == nil && number == 0:
			continue
		case f == nil || f.number != number:
			old = append(old, f.drop()...)
			lent[slot] = nil
			if number == 0 {
				continue
			}
			f = &lender{number: number}
		case f.data != nil || f.busy:
			continue
		case f.rests > 0:
			f.rests--
			continue
		}
		at := found{f, slot, word(words, fileOf).Load(), word(words, fileSize).Load(), word(words, fileInode).Load()}
		if word(words, fileNumber).Load() == number { // or it has just gone
			f.busy = true
			lent[slot] = f
			files = append(files, at)
		}
	}
	return files, old
}

// mapped is told that a file was mapped, or why not. It returns whether it is used.
func (l *lending) mapped(place int, f found, data []byte, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.busy = false
	if err != nil {
		f.rests = min(1<<f.failed, lenderRests)
		f.failed = min(f.failed+1, 16)
		return false
	}
	if f.gone {
		return false
	}
	f.data = data
	word(l.board.fileWords(place, f.slot), mappedBy+l.board.self).Store(f.number)
	return true
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
func (l *lending) borrow(place int, w whereabouts, bytes func(i int) int64) (arrays [][]byte, from []*lender) {
	l.mu.Lock()
	defer l.mu.Unlock()
	files := l.lent[place]
	if files == nil {
		return nil, nil
	}
	arrays = make([][]byte, w.arrays())
	for i := range arrays {
		slot, at := w.array(i)
		f, size := files[slot], uint64(bytes(i))
		if f == nil || at > uint64(len(f.data)) || size > uint64(len(f.data))-at {
			return nil, nil
		}
		if !slices.Contains(from, f) {
			from = append(from, f)
		}
		arrays[i] = f.data[at : at+size : at+size]
	}
	for _, f := range from {
		f.users++
	}
	return arrays, from
}

func (l *lending) giveBack(files []*lender) {
	l.mu.Lock()
	var old [][]byte
	for _, f := range files {
		f.users--
		old = append(old, f.unused()...)
	}
	l.mu.Unlock()
	unmapAll(old)
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
	if l.gone == nil {
		l.gone = map[int]struct{}{}
	}
	l.gone[place] = struct{}{}
	old := l.drop(place)
	l.mu.Unlock()
	unmapAll(old)
}

// drop forgets the files of a member. The caller has to remove the mappings that it returns.
func (l *lending) drop(place int) (old [][]byte) {
	if files := l.lent[place]; files != nil {
		delete(l.lent, place)
		for _, f := range files {
			old = append(old, f.drop()...)
		}
	}
	return old
}

// close unmaps everything. No call borrows after it.
func (l *lending) close() {
	l.mu.Lock()
	l.closed = true
	var old [][]byte
	for place := range l.lent {
		old = append(old, l.drop(place)...)
	}
	l.mu.Unlock()
	unmapAll(old)
	if l.arena != nil {
		l.arena.Close(status.New(status.Cancelled, "the worker is stopping"))
	}
}

// drop unmaps a file once its last reader has returned it. A file without readers is left to the caller, who removes
// the mapping that drop returns. f may be nil.
func (f *lender) drop() (old [][]byte) {
	if f == nil {
		return nil
	}
	f.gone = true
	return f.unused()
}

func (f *lender) unused() (old [][]byte) {
	if f.gone && f.users == 0 && f.data != nil {
		old = [][]byte{f.data}
		f.data = nil
	}
	return old
}

func unmapAll(all [][]byte) {
	for _, data := range all {
		_ = pages.Unmap(data)
	}
}
