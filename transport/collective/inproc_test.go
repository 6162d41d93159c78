package collective

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
)

// Members of a board in one process sleep in the time of a bubble: one that waits does not keep the other's time from
// going on, beyond what a member lingers. The engines are as on a board between processes.
func TestMembersInOneProcessSleepInABubblesTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		all := statustest.Value(NewInprocBoard(2)).OK(t)
		defer all.Close()
		var engines []*Engine
		for i := range 2 {
			b := statustest.Value(all.Open(i)).OK(t)
			defer b.Close()
			b.Meet(1, 0)
			b.Meet(2, 1)
			engines = append(engines, New(nowhere{uint64(i + 1)}, 1, b))
		}
		spec := allReduce(2, shape.Shape{DType: shape.F32})
		const launches = 3
		var wg sync.WaitGroup
		for id := range uint64(launches) {
			for i, e := range engines {
				e.Begin(Gang{ID: id + 1, Launch: int32(id + 1), Ranks: blocked(2, 2)})
				c := Call{Launch: int32(id + 1), Spec: spec, Operands: [][]byte{aligned(4)}, Results: [][]byte{aligned(4)}}
				elements[float32](c.Operands[0])[0] = float32(i + 1)
				wg.Add(1)
				c.Done = func(err error) {
					statustest.Check(t, err)
					statustest.Equal(t, elements[float32](c.Results[0])[0], 3, "rank %d of gang %d gets", i, id+1)
					wg.Done()
				}
				go func() {
					time.Sleep(time.Duration(i*int(id)) * time.Second)
					e.Enter(c)
				}()
			}
			wg.Wait()
			for _, e := range engines {
				e.End(id + 1)
			}
		}
		if _, err := all.Open(2); err == nil {
			t.Error("there is a member at a place that the board does not have")
		}
	})
}

// rung counts how often bells are rung, by word.
type rung struct {
	channels
	times sync.Map
}

func (r *rung) wake(word *atomic.Uint32) {
	n, _ := r.times.LoadOrStore(word, new(atomic.Int32))
	n.(*atomic.Int32).Add(1)
	r.channels.wake(word)
}

// A member that waited for another longer than its device lingers wakes one thread for each of the rounds that follow,
// not the board's and by that another one.
func TestRoundsWakeOneThreadEach(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		all := statustest.Value(NewInprocBoard(2)).OK(t)
		defer all.Close()
		var bells rung
		var boards []*Board
		var engines []*Engine
		for i := range 2 {
			b := statustest.Value(newBoard(all.data, i, &bells)).OK(t)
			defer b.Close()
			b.Meet(1, 0)
			b.Meet(2, 1)
			b.sizes = sizes{block: 4 << 10, piece: 4 << 10}
			boards, engines = append(boards, b), append(engines, New(nowhere{uint64(i + 1)}, 1, b))
		}
		const bytes = 64 * (4 << 10) // as many rounds
		spec := allReduce(2, shape.Shape{DType: shape.F32, Dims: []int64{bytes / 4}})
		var wg sync.WaitGroup
		for i, e := range engines {
			e.Begin(Gang{ID: 1, Launch: 1, Ranks: blocked(2, 2)})
			wg.Add(1)
			go func() {
				time.Sleep(time.Duration(i) * time.Second)
				e.Enter(Call{Launch: 1, Spec: spec, Operands: [][]byte{aligned(bytes)}, Results: [][]byte{aligned(bytes)},
					Done: func(err error) {
						statustest.Check(t, err)
						wg.Done()
					}})
			}()
		}
		wg.Wait()
		for i, b := range boards {
			if n, ok := bells.times.Load(b.bell(i, countLine)); ok && n.(*atomic.Int32).Load() > 8 {
				t.Errorf("the board's thread of member %d was woken %d times for 64 rounds", i, n.(*atomic.Int32).Load())
			}
			engines[i].End(1)
		}
	})
}

// What is mapped where a closed board was stays when the board is closed again.
func TestSecondCloseOfABoardUnmapsNothing(t *testing.T) {
	board := statustest.Value(NewInprocBoard(2)).OK(t)
	at := unsafe.Pointer(unsafe.SliceData(board.data))
	board.Close()
	const page, prot = 4096, unix.PROT_READ | unix.PROT_WRITE
	other, err := unix.MmapPtr(-1, 0, at, page, prot, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED_NOREPLACE)
	if err == unix.EEXIST {
		t.Skip("a thread has memory there already")
	}
	statustest.OK(t, err)
	board.Close()
	statustest.OKf(t, unix.Madvise(unsafe.Slice((*byte)(other), page), unix.MADV_NORMAL), "of the other memory")
	statustest.OK(t, unix.MunmapPtr(other, page))
}
