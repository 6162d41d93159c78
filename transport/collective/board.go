package collective

import (
	"encoding/binary"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
)

// Board is memory that the processes of one host share for the small blocks of
// their collectives. A sender writes a block straight into the receiver's ring,
// and wakes the receiver only when one of its meetings may be complete: a
// receiver that sleeps says with how many more blocks it can go on. So a meeting
// of many processes costs each of them one wake, not one for each block.
//
// Each member has a place, and the others know it before the first gang that they
// share; between two members every small block goes by the board, so both sides
// know where to look. What a process writes there is trusted as much as the
// process is: it holds arrays of the same programs.
type Board struct {
	data   []byte
	places int
	self   int
	done   chan struct{}
	closed atomic.Bool
	met    atomic.Pointer[members]

	out []outbox // by place

	mu      sync.Mutex
	seen    uint32 // arrivals that are certainly taken
	waits   map[mail]wait
	early   map[mail][]byte  // for a meeting that has yet to start
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
	queue [][]byte // that found the ring full
	busy  bool     // somebody writes the queue
}

// mail is a block's key among one engine's.
type mail struct {
	from     int
	id, part uint64
}

type wait struct {
	m    *meeting
	peer int // in table.peers
}

// Where things are: a page that says what this is; a bell for each member: how
// many blocks have come for it, with how many it wants to be woken, and how often
// who lingers was woken, each on a line of its own; a ring for each pair: how far it is written, how far read,
// and its bytes.
const (
	boardMagic   = 0x70617468_77617931
	boardPage    = 4096
	bellBytes    = 3 * 64
	ringHeader   = 128
	ringBytes    = 16 << 10
	mailHeader   = 24             // size, gang, part
	mailMax      = 2 << 10        // bytes of a block that goes by the board
	skip         = math.MaxUint32 // as a size: go on at the ring's begin
	placesMax    = 256
	retryPause   = 50 * time.Microsecond
	lingerTime   = time.Millisecond // a turn, see patience
	sleepForEver = 1 << 30
)

// The lines of a bell. Who sleeps on which: the poller on the count, who lingers on
// the third. What is wanted is 0, or a count with wanted and perhaps wantedSoon set.
const (
	countLine = iota
	wantLine
	lingerLine

	wanted     = 1 << 63
	wantedSoon = 1 << 62 // by who lingers, not the poller
)

func boardBytes(n int) int64 {
	return boardPage + int64(n)*bellBytes + int64(n*n)*(ringHeader+ringBytes)
}

// CreateBoard makes the memory for so many processes of a host; what is not used
// of it costs nothing. Each opens the file by OpenBoard.
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

// OpenBoard maps the memory for the member at a place, which nobody else ever has.
// The file stays the caller's.
//
// Errors: INVALID_ARGUMENT where it is no board, or has no such place.
func OpenBoard(f *os.File, place int) (*Board, error) {
	var info unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &info); err != nil || info.Size < boardPage {
		return nil, status.New(status.InvalidArgument, "the file has no room for a board")
	}
	if seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, status.New(status.InvalidArgument, "the file of a board is not sealed memory")
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, status.New(status.ResourceExhausted, "a board of %d bytes could not be mapped: %w", info.Size, err)
	}
	b := &Board{data: data, self: place, done: make(chan struct{}), waits: map[mail]wait{}, early: map[mail][]byte{},
		open: map[*meeting]int{}, live: map[uint64]bool{}}
	n := binary.LittleEndian.Uint64(data[8:])
	if binary.LittleEndian.Uint64(data) != boardMagic || n < 1 || n > placesMax || info.Size != boardBytes(int(n)) {
		_ = unix.Munmap(data)
		return nil, status.New(status.InvalidArgument, "the file is not a board")
	}
	if place < 0 || place >= int(n) {
		_ = unix.Munmap(data)
		return nil, status.New(status.InvalidArgument, "place %d is not on this board, which has %d", place, n)
	}
	b.places, b.out = int(n), make([]outbox, n)
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

// Close ends the board's goroutine and unmaps it. No engine may use it any more.
func (b *Board) Close() {
	if b.closed.Swap(true) {
		return
	}
	for _, line := range []int{countLine, lingerLine} {
		b.bell(b.self, line).Add(1)
		wake(b.bell(b.self, line))
	}
	<-b.done
	// Who writes a queue or lingers sees closed.
	for ; b.used(); time.Sleep(retryPause) {
	}
	_ = unix.Munmap(b.data)
}

// used says whether somebody else than the poller is in the memory.
func (b *Board) used() bool {
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

// ring gives the ring by which one member writes to another.
func (b *Board) ring(from, to int) (written, read *atomic.Uint64, bytes []byte) {
	at := boardPage + b.places*bellBytes + (from*b.places+to)*(ringHeader+ringBytes)
	return (*atomic.Uint64)(unsafe.Pointer(&b.data[at])), (*atomic.Uint64)(unsafe.Pointer(&b.data[at+64])),
		b.data[at+ringHeader : at+ringHeader+ringBytes]
}

// post sends a block. It does not wait: where the ring is full, the block stays
// in this process until there is room.
func (b *Board) post(process, id, part uint64, data []byte) {
	to := b.met.Load().index[process]
	o := &b.out[to]
	o.mu.Lock()
	if o.busy || !b.put(to, id, part, data) {
		m := make([]byte, mailHeader+len(data))
		binary.LittleEndian.PutUint64(m[8:], id)
		binary.LittleEndian.PutUint64(m[16:], part)
		copy(m[mailHeader:], data)
		o.queue = append(o.queue, m)
		if !o.busy {
			o.busy = true
			go b.drainQueue(to)
		}
		o.mu.Unlock()
		return
	}
	o.mu.Unlock()
	b.ringBell(to)
}

// drainQueue writes what found a ring full, in order. It ends with the queue or
// the board; Close of the engine's gangs drops what nobody will read.
func (b *Board) drainQueue(to int) {
	o := &b.out[to]
	for {
		o.mu.Lock()
		for len(o.queue) > 0 {
			m := o.queue[0]
			if !b.put(to, binary.LittleEndian.Uint64(m[8:]), binary.LittleEndian.Uint64(m[16:]), m[mailHeader:]) {
				break
			}
			o.queue = o.queue[1:]
			b.ringBell(to)
		}
		if len(o.queue) == 0 || b.closed.Load() {
			o.queue, o.busy = nil, false
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		time.Sleep(retryPause)
	}
}

// put writes a block into a ring, if there is room.
func (b *Board) put(to int, id, part uint64, data []byte) bool {
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
	binary.LittleEndian.PutUint64(m[8:], id)
	binary.LittleEndian.PutUint64(m[16:], part)
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
		wake(soon)
	default:
		wake(bell)
	}
}

// expect says which blocks a round of a meeting waits for, each with its place in
// table.peers. It says whether all of them are here already.
func (b *Board) expect(m *meeting, id, part uint64, peers []int) (all bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	missing, index := 0, b.met.Load().index
	for _, peer := range peers {
		k := mail{index[m.table.peers[peer]], id, part}
		if data, ok := b.early[k]; ok {
			delete(b.early, k)
			m.deliver(peer, data)
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

// begin says that blocks of a gang may come. Gangs begin in the order of their
// numbers: what comes for a lower one that is not here is of one that has ended.
func (b *Board) begin(id uint64) {
	b.mu.Lock()
	b.live[id] = true
	b.highest = max(b.highest, id)
	b.mu.Unlock()
}

// fail gives the meetings of a gang that wait here, which wait no more.
func (b *Board) fail(id uint64) (left []*meeting) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, w := range b.waits {
		if k.id == id {
			delete(b.waits, k)
			if b.open[w.m] > 0 {
				delete(b.open, w.m)
				left = append(left, w.m)
			}
		}
	}
	return left
}

// end drops what is here of a gang.
func (b *Board) end(id uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.live, id)
	for k := range b.early {
		if k.id == id {
			delete(b.early, k)
		}
	}
}

// arrive takes what has come, and says when the poller is to be woken.
func (b *Board) arrive() {
	b.mu.Lock()
	full := b.take(nil)
	b.mu.Unlock()
	for _, m := range full {
		m.letGo(nil)
	}
}

// linger waits a while for the last blocks of a meeting, before its call has to be
// ended from elsewhere: the device's own thread is woken and goes on with the
// answer, with no other between. InHand is 1 + the call's index.
func (b *Board) linger(m *meeting, inHand int) {
	b.mu.Lock()
	if b.open[m] == 0 || b.closed.Load() {
		b.mu.Unlock()
		return
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
			full = b.take(full) // for the poller, if nobody else lingers
		}
		b.mu.Unlock()
		for i, f := range full {
			if f == m {
				f.let(nil, inHand)
			} else {
				f.letGo(nil)
			}
			full[i] = nil
		}
		if last {
			return
		}
		if len(full) == 0 {
			sleep(bell, n, left)
		}
		b.mu.Lock()
	}
}

// patience is how long to linger: where members share processors, each of the others
// may need a turn of one before it comes.
func (b *Board) patience() time.Duration {
	turns := len(b.met.Load().from) / runtime.NumCPU()
	return lingerTime * time.Duration(min(max(1, turns), 8))
}

// take reads all rings and sets the bell. It gives the meetings that have got
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
			more = 64 // nobody waits: empty the rings now and then
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
		data := m[mailHeader : mailHeader+size]
		if w, ok := b.waits[k]; ok {
			delete(b.waits, k)
			w.m.deliver(w.peer, data)
			if b.open[w.m]--; b.open[w.m] == 0 {
				delete(b.open, w.m)
				full = append(full, w.m)
			}
		} else if b.live[k.id] || k.id > b.highest {
			b.early[k] = slices.Clone(data)
		}
		tail += (mailHeader + size + 7) &^ 7
	}
	read.Store(tail)
	return full
}

// poll takes what comes while everybody else here is away.
func (b *Board) poll() {
	defer close(b.done)
	bell, want := b.bell(b.self, countLine), b.want(b.self)
	var full []*meeting
	for !b.closed.Load() {
		b.mu.Lock()
		full = b.take(full[:0])
		others := b.awake > 0 // who see to what comes, and set the bell when they go
		// Read here: when the others have gone, what has come since has changed the bell.
		n, w := bell.Load(), want.Load()
		b.mu.Unlock()
		for i, m := range full {
			m.letGo(nil)
			full[i] = nil
		}
		if len(full) > 0 {
			continue
		}
		if !others && (w == 0 || int32(n-uint32(w)) >= 0) || b.closed.Load() {
			continue
		}
		sleep(bell, n, 0)
	}
}

// sleep waits on a word until it is not n, somebody wakes it, or the time is over;
// 0 is for ever. It may return for no reason.
func sleep(word *atomic.Uint32, n uint32, most time.Duration) {
	var end *unix.Timespec
	if most > 0 {
		t := unix.NsecToTimespec(most.Nanoseconds())
		end = &t
	}
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), 0, uintptr(n), uintptr(unsafe.Pointer(end)), 0,
		0)
}

func wake(word *atomic.Uint32) { // which never blocks, so the scheduler is not told
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), 1, math.MaxInt32, 0, 0, 0)
}
