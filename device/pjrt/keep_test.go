//go:build invariants

package pjrt

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
)

// keeping starts to keep the blocks of some plugin, for as long as a test runs, and begins with none.
func keeping(t *testing.T) {
	t.Helper()
	plugins := plugins(t)
	stop := plugins[0].keepBlocks(isShared())
	if stop == nil {
		t.Fatalf("the blocks of %s are not kept", plugins[0].Path())
	}
	t.Cleanup(stop)
	tidyKeptNow()
}

// A process in whose environment this is has blocks that others may map: the first client of a process decides it.
const sharedEnv = "PATHWAYS_TEST_SHARED_BLOCKS"

func isShared() bool { return os.Getenv(sharedEnv) != "" }

// The tests of this file hold for blocks in a file as well, and another process finds there what a block contains.
func TestBlocksThatOtherProcessesMayMap(t *testing.T) {
	if !isShared() {
		again := exec.Command(os.Args[0], "-test.run", "Block|Memory", "-rapid.checks=20")
		again.Env = append(os.Environ(), sharedEnv+"=1")
		if out, err := again.CombinedOutput(); err != nil {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	keeping(t)
	c := client(t, plugins(t)[0], 1)
	file, lent := c.Lent()
	if file < 0 {
		t.Skip("this kernel makes no huge pages of shared memory")
	}
	block := keptBlock(nil, 4<<20)
	defer freeKept(block)
	stamp(block, 7)
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(lent)))
	at := uintptr(unsafe.Pointer(&block[0])) - begin
	f := statustest.Value(os.Open(fmt.Sprintf("/proc/self/fd/%d", file))).OK(t)
	defer f.Close()
	info := statustest.Value(f.Stat()).OK(t)
	statustest.Equal(t, info.Size(), int64(len(lent)), "bytes of the file")
	seen := make([]byte, len(block))
	statustest.Value(f.ReadAt(seen, int64(at))).OK(t)
	if !stamped(seen, 7) {
		t.Error("the file does not have what was written to the block")
	}
	host := device.Host{Data: make([]byte, 4<<20), Shape: shape.Shape{DType: shape.U8, Dims: []int64{4 << 20}},
		Semantics: device.DuringCall}
	b := put(t, c, host)
	defer b.Close()
	statustest.OK(t, b.Ready().Wait(t.Context()))
	view := b.View()
	if at := uintptr(unsafe.Pointer(&view[0])) - begin; at >= uintptr(len(lent)) {
		t.Error("an array of 4 MiB is not in the memory that is lent")
	}
}

// stamp writes into each page of a block which block it is, and stamped reports whether that is still so.
func stamp(block []byte, n uint64) {
	for at := 0; at+8 <= len(block); at += 4096 {
		binary.LittleEndian.PutUint64(block[at:], n)
	}
}

func stamped(block []byte, n uint64) bool {
	for at := 0; at+8 <= len(block); at += 4096 {
		if binary.LittleEndian.Uint64(block[at:]) != n {
			return false
		}
	}
	return true
}

func TestBlocksOfRandomSizesNeverOverlapAndTakeNoMoreThanWasUsedAtOnce(t *testing.T) {
	keeping(t)
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Custom(func(t *rapid.T) int {
			return rapid.IntRange(1, 6).Draw(t, "MiB")<<20 + rapid.SampledFrom([]int{-1, 0, 1}).Draw(t, "and")
		})
		base, _, _ := keptMemory()
		blocks := map[uint64][]byte{}
		for n := range uint64(rapid.IntRange(1, 60).Draw(t, "steps")) {
			victim := uint64(rapid.IntRange(0, int(n)).Draw(t, "victim"))
			old, found := blocks[victim]
			switch what := rapid.IntRange(0, 9).Draw(t, "what"); {
			case found && what < 4:
				if !stamped(old, victim) {
					t.Fatalf("block %d, of %d bytes, was written by another", victim, len(old))
				}
				freeKept(old)
				delete(blocks, victim)
			case found && what == 4:
				grown := keptBlock(old, size.Draw(t, "size"))
				if both := min(len(old), len(grown)); !stamped(grown[:both], victim) {
					t.Fatalf("block %d lost bytes when it went from %d to %d", victim, len(old), len(grown))
				}
				stamp(grown, victim)
				blocks[victim] = grown
			case what == 5:
				_, kept, _ := keptMemory()
				offerKeptNow()
				if _, still, _ := keptMemory(); still != kept {
					t.Fatalf("%d bytes are kept, of %d before they were offered", still, kept)
				}
			case what == 6:
				tidyKeptNow()
				if _, kept, _ := keptMemory(); kept != 0 {
					t.Fatalf("%d bytes are kept after all were returned", kept)
				}
			default:
				blocks[n] = keptBlock(nil, size.Draw(t, "size"))
				stamp(blocks[n], n)
			}
			if used, kept, most := keptMemory(); used+kept > most {
				t.Fatalf("%d bytes used and %d kept, more than the %d that were used at once", used, kept, most)
			}
		}
		for n, block := range blocks {
			if !stamped(block, n) {
				t.Fatalf("block %d, of %d bytes, was written by another", n, len(block))
			}
			freeKept(block)
		}
		if used, _, _ := keptMemory(); used != base {
			t.Fatalf("%d bytes are in use, %d before", used, base)
		}
	})
}

// Memory that the system was offered, and has not taken, is what the next block lies in.
func TestOfferedMemoryIsUsedAgain(t *testing.T) {
	keeping(t)
	block := keptBlock(nil, 8<<20)
	stamp(block, 1)
	freeKept(block)
	offerKeptNow()
	again := keptBlock(nil, 8<<20)
	if &again[0] != &block[0] {
		t.Errorf("the next block lies at %p, where %p was offered", again, block)
	}
	stamp(again, 2)
	if !stamped(again, 2) {
		t.Error("a block in offered memory lost what was written there")
	}
	freeKept(again)
}

func TestThreadsGetBlocksOfTheirOwn(t *testing.T) {
	keeping(t)
	var all sync.WaitGroup
	for thread := range uint64(8) {
		all.Go(func() {
			for i := range uint64(200) {
				block := keptBlock(nil, int(2+(thread+i)%3)<<20)
				stamp(block, thread<<32|i)
				if !stamped(block, thread<<32|i) {
					t.Errorf("block %d of thread %d was written by another", i, thread)
				}
				freeKept(block)
				if i%50 == 0 {
					offerKeptNow()
				}
			}
		})
	}
	all.Wait()
}

// resident is the memory that this process has, in bytes.
func resident(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	pages := statustest.Value(strconv.Atoi(strings.Fields(string(text))[1])).OK(t)
	return pages * os.Getpagesize()
}

func TestMemoryOfAFreedArrayIsKeptForTheNextAndThenReturned(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		keeping(t)
		c := client(t, p, 1)
		tidyKeptNow()
		host := device.Host{Data: make([]byte, 64<<20), Shape: shape.Shape{DType: shape.U8, Dims: []int64{64 << 20}},
			Semantics: device.DuringCall}
		for range 2 {
			b := put(t, c, host)
			if used, _, _ := keptMemory(); used < 64<<20 {
				t.Errorf("an array of 64 MiB is in %d bytes", used)
			}
			b.Close()
			statustest.Soon(t, func() int { _, kept, _ := keptMemory(); return kept }, 64<<20, "bytes that are kept")
		}
		before := resident(t)
		tidyKeptNow()
		if _, kept, _ := keptMemory(); kept != 0 || before-resident(t) < 60<<20 {
			t.Errorf("%d bytes are kept; of %d that the process had, %d are returned", kept, before, before-resident(t))
		}
	})
}
