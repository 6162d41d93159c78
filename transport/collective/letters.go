package collective

import (
	"cmp"
	"encoding/binary"
	"runtime"
	"slices"
	"time"
)

// letter is a block, or the place of one, as a board brings it.
type letter struct {
	form form
	size int64
	data []byte // of the block, unless it comes
	spot spot   // of a block that lies in an area
}

// letter reads a letter from a place. Its data is valid for as long as m. False means that no member writes such ones.
func (b *Board) letter(from int, f form, m []byte) (l letter, ok bool) {
	switch {
	case f == isHere:
		return letter{form: f, size: int64(len(m)), data: m}, true
	case f == comes && len(m) == 8:
		return letter{form: f, size: int64(binary.LittleEndian.Uint64(m))}, true
	case f == lies && len(m) == referBytes:
		size, at := binary.LittleEndian.Uint64(m), binary.LittleEndian.Uint64(m[8:])
		slot := binary.LittleEndian.Uint64(m[16:])
		if size > areaBytes || at > areaBytes-size || slot >= slotsMax {
			return letter{}, false
		}
		data, _ := b.areaOf(from)
		return letter{f, int64(size), data[at : at+size : at+size], spot{int(slot), int64(at)}}, true
	}
	return letter{}, false
}

// free tells another member that this one is done with a block of its area.
func (b *Board) free(from int, l letter) {
	if l.form == lies {
		_, words := b.areaOf(from)
		word(words, l.spot.slot).And(^(uint64(1) << b.self))
	}
}

// expect says which blocks a round of a meeting waits for, each with its place in
// table.peers. It reports whether all of them are here already.
func (b *Board) expect(m *meeting, id, part uint64, peers []int) (all bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	missing, index := 0, b.met.Load().index
	for _, peer := range peers {
		k := mail{index[m.table.peers[peer]], id, part}
		if l, ok := b.early[k]; ok {
			delete(b.early, k)
			m.deliver(peer, k.from, l)
			continue
		}
		b.waits[k] = wait{m, peer}
		missing++
	}
	if missing > 0 {
		b.open[m] = missing
	}
	return missing == 0
}

// begin says that blocks of a gang may come. Gangs begin in the order of their numbers: a letter for a lower one that
// is not here belongs to one that has ended.
func (b *Board) begin(id uint64) {
	b.mu.Lock()
	b.live[id] = true
	b.highest = max(b.highest, id)
	b.mu.Unlock()
}

// fail returns the meetings of a gang that wait here, and takes them out of what the board waits for.
func (b *Board) fail(id uint64) (left []*meeting) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.waitsOf(id) {
		m := b.waits[k].m
		delete(b.waits, k)
		if b.open[m] > 0 {
			delete(b.open, m)
			left = append(left, m)
		}
	}
	return left
}

// waitsOf returns what a gang waits for, in an order that does not depend on the map's. The caller holds mu.
func (b *Board) waitsOf(id uint64) (all []mail) {
	for k := range b.waits {
		if k.id == id {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(x, y mail) int { return cmp.Or(cmp.Compare(x.part, y.part), cmp.Compare(x.from, y.from)) })
	return all
}

// end drops the letters of a gang.
func (b *Board) end(id uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.live, id)
	for k, l := range b.early {
		if k.id == id {
			b.free(k.from, l)
			delete(b.early, k)
		}
	}
}

// arrive takes what has come, and ends the meetings that have all their blocks.
func (b *Board) arrive() {
	b.mu.Lock()
	full := b.take(nil)
	b.mu.Unlock()
	for _, m := range full {
		m.delivered(0)
	}
}

// linger waits a while for the blocks of a meeting, before its call has to be ended
// from elsewhere: the device's own thread is woken and goes on with the
// answer, with no other between. InHand is 1 + the call's index, or free. It reports whether the blocks came: the
// meeting may have begun another round.
func (b *Board) linger(m *meeting, inHand int) (came bool) {
	b.mu.Lock()
	if b.open[m] == 0 || b.closed.Load() {
		b.mu.Unlock()
		return false
	}
	b.awake++
	bell := b.bell(b.self, lingerLine)
	end := time.Now().Add(b.patience())
	var full []*meeting
	for {
		n := bell.Load()
		full = b.take(full[:0])
		left := time.Until(end)
		last := b.open[m] == 0 || left <= 0 || b.closed.Load()
		if last {
			b.awake--
			full = b.take(full) // for the poller, if no other thread lingers
		}
		b.mu.Unlock()
		for i, f := range full {
			if f == m {
				came = true
				f.delivered(inHand)
			} else {
				f.delivered(0)
			}
			full[i] = nil
		}
		if last {
			return came
		}
		if len(full) == 0 {
			b.bells.sleep(bell, n, left)
		} else {
			end = time.Now().Add(b.patience()) // beginning their next rounds took time
		}
		b.mu.Lock()
	}
}

// patience is how long to linger: if members share processors, each of the others may need a turn on one before its
// letter comes.
func (b *Board) patience() time.Duration {
	turns := len(b.met.Load().from) / runtime.NumCPU()
	return lingerTime * time.Duration(min(max(1, turns), 8))
}

// take reads all rings and sets the bell. It returns the meetings that have got
// their last block, each with one hold left to let go. mu is held.
func (b *Board) take(full []*meeting) []*meeting {
	bell, want := b.bell(b.self, countLine), b.want(b.self)
	for {
		b.seen = bell.Load()
		for _, from := range b.met.Load().from {
			full = b.read(from, full)
		}
		more := uint32(sleepForEver)
		for _, n := range b.open {
			more = min(more, uint32(n))
		}
		if more == sleepForEver {
			more = 64 // no one waits, so it empties the rings now and then
		}
		w := b.seen + more
		if b.awake > 0 {
			want.Store(wanted | wantedSoon | uint64(w))
		} else {
			want.Store(wanted | uint64(w))
		}
		if int32(bell.Load()-w) < 0 {
			return full
		}
		want.Store(0)
	}
}

// read empties the ring of one member. mu is held.
func (b *Board) read(from int, full []*meeting) []*meeting {
	written, read, ring := b.ring(from, b.self)
	tail, head := read.Load(), written.Load()
	for tail != head {
		at := tail % ringBytes
		m := ring[at:]
		size := uint64(binary.LittleEndian.Uint32(m))
		if size == skip {
			tail += ringBytes - at
			continue
		}
		if mailHeader+size > uint64(len(m)) { // what no member writes
			tail = head
			break
		}
		k := mail{from, binary.LittleEndian.Uint64(m[8:]), binary.LittleEndian.Uint64(m[16:])}
		l, ok := b.letter(from, form(binary.LittleEndian.Uint32(m[4:])), m[mailHeader:mailHeader+size])
		if w, awaited := b.waits[k]; !ok {
		} else if awaited {
			delete(b.waits, k)
			w.m.deliver(w.peer, from, l)
			if b.open[w.m]--; b.open[w.m] == 0 {
				delete(b.open, w.m)
				full = append(full, w.m)
			}
		} else if b.live[k.id] || k.id > b.highest {
			if l.form == isHere {
				l.data = slices.Clone(l.data)
			}
			b.early[k] = l
		} else {
			b.free(from, l)
		}
		tail += (mailHeader + size + 7) &^ 7
	}
	read.Store(tail)
	return full
}

// poll takes letters while no other goroutine of this member does.
func (b *Board) poll() {
	defer close(b.done)
	bell, want := b.bell(b.self, countLine), b.want(b.self)
	var full []*meeting
	for !b.closed.Load() {
		b.mu.Lock()
		full = b.take(full[:0])
		others := b.awake > 0 // who see to what comes, and set the bell when they go
		// It is read here: letters that come after the others have gone change the bell.
		n, w := bell.Load(), want.Load()
		b.mu.Unlock()
		for i, m := range full {
			m.delivered(0)
			full[i] = nil
		}
		if len(full) > 0 {
			continue
		}
		if !others && (w == 0 || int32(n-uint32(w)) >= 0) || b.closed.Load() {
			continue
		}
		b.bells.sleep(bell, n, 0)
	}
}
