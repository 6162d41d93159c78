package collective

import (
	"encoding/binary"
	"maps"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport/pages"
)

// Board is memory that the processes of one host share for the blocks of their
// collectives. A sender writes a letter into the receiver's ring, which holds a
// small block, or says where a large one lies (area). It wakes the receiver only
// when one of its meetings may be complete: a receiver that sleeps says with how
// many more letters it can go on. So a meeting of many processes costs each of them
// one wake, not one for each block.
//
// Each member has a place, and the others know it before the first gang that they
// share; between two members every block begins with a letter, so both sides know
// where to look. What a process writes there is trusted as much as the
// process is: it holds arrays of the same programs.
//
// # What is guaranteed, and why
//
// Letters between two members come whole, once, and in the order of post. A ring has one writer, who holds the lock of
// its outbox, and one reader, who holds mu; each moves its own counter, when the bytes are written and when they have
// been read. A letter that finds the ring full waits in the outbox, and those behind it do too (busy), so that none
// passes it.
//
// No member sleeps while it could go on. A receiver reads its rings, says with how many letters it can go on (want),
// and then looks at the count of letters again (take); a sender counts its letter and then looks at want (ringBell). Of
// the two, the one that looks last sees what the other did: the receiver does not sleep, or it is woken. A letter that
// comes between this look and the sleep has changed the count on which the receiver sleeps, which then returns at once.
// One that nothing awaits is counted too; it wakes the receiver early, and does no other harm.
//
// No post waits, for room or for a member: a letter without room stays in this process, and one for a member that is
// lost is dropped. So a slow or dead member holds up only calls that need its blocks, and the engine fails those.
//
// The memory is unmapped when nothing uses it any more. Every writer and reader is counted: by inside between enter and
// leave, by busy for a queue, by awake for a goroutine that lingers, and by done for the poller; Close waits for all
// four, and closed keeps others out.
type Board struct {
	data   []byte
	unmap  func() // nil if the memory is not this member's alone
	bells  bells
	places int
	self   int
	done   chan struct{}
	closed atomic.Bool
	met    atomic.Pointer[members]

	out  []outbox // by place
	area area     // of this member
	// inside counts who writes to the board or reads blocks on it, which Close waits for.
	inside atomic.Int64
	sizes  sizes

	lending lending

	mu      sync.Mutex
	seen    uint32 // arrivals that are certainly taken
	waits   map[mail]wait
	early   map[mail]letter  // for a meeting that has yet to start
	open    map[*meeting]int // blocks that are missing
	awake   int              // who lingers, and is woken instead of the poller
	live    map[uint64]bool  // gangs that have begun
	highest uint64           // of those and of ended ones
}

// members are the processes that are known, and is never changed.
type members struct {
	index map[uint64]int // process to place
	from  []int          // places, without gaps
}

type outbox struct {
	mu    sync.Mutex
	queue []queued // letters that found the ring full
	busy  bool     // a goroutine writes the queue
	dead  bool     // the member is lost
}

type queued struct {
	key  mail
	form form
	data []byte
}

// form is the type of a letter.
type form uint32

const (
	isHere form = iota // the block
	lies               // size, place in the sender's area, and slot
	comes              // size; the block comes by the exchange

	referBytes = 24
)

// mail is a block's key among one engine's.
type mail struct {
	from     int
	id, part uint64
}

type wait struct {
	m    *meeting
	peer int // in table.peers
}

// Where things are: a page that says what this is; a bell for each member: how many blocks have come for it, at how
// many it wants to be woken, how often a lingering goroutine was woken, and on which processor the member works, each
// on a line of its own; a ring for each pair: how far it is written, how far read, and its bytes.
const (
	boardMagic   = 0x70617468_77617935
	boardPage    = 4096
	bellBytes    = 4 * 64
	ringHeader   = 128
	ringBytes    = 16 << 10
	mailHeader   = 24             // size, form, gang, part
	mailMax      = 2 << 10        // bytes of a block that is in its letter
	skip         = math.MaxUint32 // as a size: go on at the ring's begin
	placesMax    = 64             // so that a bit for each fits into a word
	retryPause   = 50 * time.Microsecond
	lingerTime   = time.Millisecond // a turn, see patience
	sleepForEver = 1 << 30
)

// The lines of a bell. The poller sleeps on the count, a goroutine that lingers on
// the third. What is wanted is 0, or a count with wanted and perhaps wantedSoon set.
// A processor is 1 + its number, or 0 where the member works on no large collective.
const (
	countLine = iota
	wantLine
	lingerLine
	processorLine

	wanted     = 1 << 63
	wantedSoon = 1 << 62 // by who lingers, not the poller
)

// wordsAt and areasAt are where the words and the areas of the members begin.
func wordsAt(n int) int64 {
	return boardPage + int64(n)*bellBytes + int64(n*n)*(ringHeader+ringBytes)
}

// leasesAt is where the words of the members' leases begin.
func leasesAt(n int) int64 { return wordsAt(n) + int64(n)*slotsMax*8 }

// filesAt is where the words of the files that members lend begin.
func filesAt(n int) int64 { return leasesAt(n) + int64(n)*leasesMax*8 }

func fileBytes(n int) int64 { return int64(mappedBy+n) * 8 }

func areasAt(n int) int64 {
	return (filesAt(n) + int64(n)*filesMax*fileBytes(n) + hugePage - 1) &^ (hugePage - 1)
}

func boardBytes(n int) int64 { return areasAt(n) + int64(n)*areaBytes }

// areaOf returns the area and the words of a member.
func (b *Board) areaOf(place int) (data, words []byte) {
	return b.data[areasAt(b.places)+int64(place)*areaBytes:][:areaBytes:areaBytes],
		b.data[wordsAt(b.places)+int64(place)*slotsMax*8:][: slotsMax*8 : slotsMax*8]
}

// leasesOf returns the words of a member's leases.
func (b *Board) leasesOf(place int) []byte {
	return b.data[leasesAt(b.places)+int64(place)*leasesMax*8:][: leasesMax*8 : leasesMax*8]
}

// fileWords returns the words of a file that a member lends.
func (b *Board) fileWords(place, slot int) []byte {
	size := fileBytes(b.places)
	return b.data[filesAt(b.places)+int64(place*filesMax+slot)*size:][:size:size]
}

// CreateBoard makes the memory for so many processes of a host; unused parts cost nothing. Each process opens the file
// by OpenBoard.
func CreateBoard(places int) (*os.File, error) {
	if places < 1 || places > placesMax {
		return nil, status.New(status.InvalidArgument, "a board is for 1 to %d processes, not %d", placesMax, places)
	}
	fd, err := unix.MemfdCreate("pathways-board", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, status.New(status.ResourceExhausted, "shared memory for collectives could not be allocated: %w", err)
	}
	f := os.NewFile(uintptr(fd), "board")
	head := make([]byte, 16)
	binary.LittleEndian.PutUint64(head, boardMagic)
	binary.LittleEndian.PutUint64(head[8:], uint64(places))
	err = unix.Ftruncate(fd, boardBytes(places))
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		_, err = f.WriteAt(head, 0)
	}
	if err != nil {
		f.Close()
		return nil, status.New(status.ResourceExhausted, "shared memory for collectives could not be allocated: %w", err)
	}
	return f, nil
}

// OpenBoard maps the memory for the member at a place, which no other process ever has.
// The file stays the caller's.
//
// Errors: INVALID_ARGUMENT where it is no board, or has no such place.
func OpenBoard(f *os.File, place int) (*Board, error) {
	data, err := mapBoard(f)
	if err != nil {
		return nil, err
	}
	b, err := newBoard(data, place, futexes{})
	if err != nil {
		_ = pages.Unmap(data)
		return nil, err
	}
	b.unmap = func() { _ = pages.Unmap(data) }
	return b, nil
}

// mapBoard maps a board's memory.
func mapBoard(f *os.File) ([]byte, error) {
	var info unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &info); err != nil || info.Size < boardPage {
		return nil, status.New(status.InvalidArgument, "the file has no room for a board")
	}
	if seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, status.New(status.InvalidArgument, "the file of a board is not sealed memory")
	}
	data, err := pages.Map(int(f.Fd()), info.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, status.New(status.ResourceExhausted, "a board of %d bytes could not be mapped: %w", info.Size, err)
	}
	n := binary.LittleEndian.Uint64(data[8:])
	if binary.LittleEndian.Uint64(data) != boardMagic || n < 1 || n > placesMax || info.Size != boardBytes(int(n)) {
		_ = pages.Unmap(data)
		return nil, status.New(status.InvalidArgument, "the file is not a board")
	}
	_ = unix.Madvise(data[areasAt(int(n)):], unix.MADV_HUGEPAGE) // where an administrator allows it
	return data, nil
}

// newBoard makes the member at a place of a board that is mapped.
func newBoard(data []byte, place int, bells bells) (*Board, error) {
	n := int(binary.LittleEndian.Uint64(data[8:]))
	if place < 0 || place >= n {
		return nil, status.New(status.InvalidArgument, "place %d is not on this board, which has %d", place, n)
	}
	b := &Board{data: data, bells: bells, places: n, self: place, out: make([]outbox, n), done: make(chan struct{}),
		waits: map[mail]wait{}, early: map[mail]letter{}, open: map[*meeting]int{}, live: map[uint64]bool{}}
	b.area.data, b.area.words = b.areaOf(place)
	b.area.limit, b.sizes = granules, usualSizes
	b.lending.board, b.lending.maps = b, mapLent
	b.lending.room, b.lending.copies = standInsMax, copiesMax
	b.met.Store(new(members))
	go b.poll()
	return b, nil
}

// Meet says at which place another member is, or this process itself. It is told
// before any gang begins that both are in; a place that is not there is passed
// over.
func (b *Board) Meet(process uint64, place int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.met.Load()
	if _, ok := old.index[process]; ok || place < 0 || place >= b.places {
		return
	}
	now := &members{index: map[uint64]int{process: place}, from: append(slices.Clip(old.from), place)}
	maps.Copy(now.index, old.index)
	b.met.Store(now)
}

// Close ends the board's goroutine, and unmaps what OpenBoard has mapped. No engine may use it any more.
func (b *Board) Close() {
	if b.closed.Swap(true) {
		return
	}
	b.area.close()
	for _, line := range []int{countLine, lingerLine} {
		b.bell(b.self, line).Add(1)
		b.bells.wake(b.bell(b.self, line))
	}
	<-b.done
	// Goroutines that write a queue or linger see closed.
	for ; b.used(); time.Sleep(retryPause) {
	}
	b.lending.close()
	if b.unmap != nil {
		b.unmap()
	}
}

// used reports whether a goroutine other than the poller's is in the memory.
func (b *Board) used() bool {
	if b.inside.Load() > 0 {
		return true
	}
	for i := range b.out {
		b.out[i].mu.Lock()
		busy := b.out[i].busy
		b.out[i].mu.Unlock()
		if busy {
			return true
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.awake > 0
}

// enter counts the caller in, until leave, unless the board is closed.
func (b *Board) enter() bool {
	b.inside.Add(1)
	if b.closed.Load() {
		b.leave()
		return false
	}
	return true
}

func (b *Board) leave() { b.inside.Add(-1) }

// Memory returns the bytes that this member's area has of the machine's memory, at most.
func (b *Board) Memory() int64 { return b.area.bytes() }

func (b *Board) reaches(process uint64) bool {
	_, ok := b.met.Load().index[process]
	return ok
}

func (b *Board) bell(member, line int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&b.data[boardPage+member*bellBytes+line*64]))
}

func (b *Board) want(member int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&b.data[boardPage+member*bellBytes+wantLine*64]))
}

// ring returns the ring by which one member writes to another.
func (b *Board) ring(from, to int) (written, read *atomic.Uint64, bytes []byte) {
	at := boardPage + b.places*bellBytes + (from*b.places+to)*(ringHeader+ringBytes)
	return (*atomic.Uint64)(unsafe.Pointer(&b.data[at])), (*atomic.Uint64)(unsafe.Pointer(&b.data[at+64])),
		b.data[at+ringHeader : at+ringHeader+ringBytes]
}

// post sends a letter. It does not wait: where the ring is full, the letter stays
// in this process until there is room.
func (b *Board) post(process uint64, k mail, form form, data []byte) {
	if to, ok := b.write(process, k, form, data); ok {
		b.ringBell(to)
	}
}

// postAll is post of a letter to several of the peers. All of them have it before any is
// woken: a woken process may take this one's processor, and the others would have to wait.
func (b *Board) postAll(peers []uint64, to []int, k mail, form form, data []byte) {
	var written [placesMax]int
	n := 0
	for _, i := range to {
		if place, ok := b.write(peers[i], k, form, data); ok {
			written[n] = place
			n++
		}
	}
	for _, place := range written[:n] {
		b.ringBell(place)
	}
}

// write is post without the bell: it returns the receiver's place, and whether to ring its bell.
func (b *Board) write(process uint64, k mail, form form, data []byte) (to int, written bool) {
	k.from = b.self
	to = b.met.Load().index[process]
	o := &b.out[to]
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dead {
		return to, false
	}
	if o.busy || !b.put(to, k, form, data) {
		o.queue = append(o.queue, queued{k, form, slices.Clone(data)})
		if !o.busy {
			o.busy = true
			go b.drainQueue(to)
		}
		return to, false
	}
	return to, true
}

// refer tells several peers where a block is.
func (b *Board) refer(peers []uint64, to []int, k mail, at spot, size int64) {
	var m [referBytes]byte
	binary.LittleEndian.PutUint64(m[:], uint64(size))
	binary.LittleEndian.PutUint64(m[8:], uint64(at.at))
	binary.LittleEndian.PutUint64(m[16:], uint64(at.slot))
	b.postAll(peers, to, k, lies, m[:])
}

// readers returns the bits of processes, for take.
func (b *Board) readers(processes []uint64) (bits uint64) {
	index := b.met.Load().index
	for _, p := range processes {
		bits |= 1 << index[p]
	}
	return bits
}

// lost drops the letters that are kept for a member that has gone.
func (b *Board) lost(process uint64) {
	place, ok := b.met.Load().index[process]
	if !ok {
		return
	}
	b.area.lost(place)
	b.lending.lost(place)
	o := &b.out[place]
	o.mu.Lock()
	o.dead = true
	o.mu.Unlock()
}

// drainQueue writes what found a ring full, in order. It ends with the queue, the
// receiver or the board; Close of the engine's gangs drops what is never read.
func (b *Board) drainQueue(to int) {
	o := &b.out[to]
	for {
		o.mu.Lock()
		for len(o.queue) > 0 && !o.dead {
			q := &o.queue[0]
			if !b.put(to, q.key, q.form, q.data) {
				break
			}
			o.queue = o.queue[1:]
			b.ringBell(to)
		}
		if len(o.queue) == 0 || o.dead || b.closed.Load() {
			o.queue, o.busy = nil, false
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		time.Sleep(retryPause)
	}
}

// put writes a letter into a ring, if there is room.
func (b *Board) put(to int, k mail, form form, data []byte) bool {
	written, read, ring := b.ring(b.self, to)
	head := written.Load()
	need := uint64(mailHeader+len(data)+7) &^ 7
	at := head % ringBytes
	pad := uint64(0)
	if ringBytes-at < need {
		pad = ringBytes - at
	}
	if head+pad+need-read.Load() > ringBytes {
		return false
	}
	if pad > 0 {
		binary.LittleEndian.PutUint32(ring[at:], skip)
		at = 0
	}
	m := ring[at:]
	binary.LittleEndian.PutUint32(m, uint32(len(data)))
	binary.LittleEndian.PutUint32(m[4:], uint32(form))
	binary.LittleEndian.PutUint64(m[8:], k.id)
	binary.LittleEndian.PutUint64(m[16:], k.part)
	copy(m[mailHeader:], data)
	written.Store(head + pad + need)
	return true
}

// ringBell counts a block, and wakes its receiver when it wants so.
func (b *Board) ringBell(to int) {
	bell, want := b.bell(to, countLine), b.want(to)
	n := bell.Add(1)
	w := want.Load()
	switch {
	case w == 0 || int32(n-uint32(w)) < 0 || !want.CompareAndSwap(w, 0):
	case w&wantedSoon != 0:
		soon := b.bell(to, lingerLine)
		soon.Add(1)
		b.bells.wake(soon)
	default:
		b.bells.wake(bell)
	}
}
