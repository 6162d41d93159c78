package worker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// A worker tells when each computation began and ended while it is asked to, and nothing before and after.
func TestWorkerTellsWhatAWatchedDeviceDoes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, d := newInline(t)
		slow := func(op uint64, took time.Duration) {
			gang := s.dispatch(1, wire.KindRun, &wire.Run{Op: op, Program: slowProgram, FirstOutput: op}, 0)
			synctest.Wait()
			time.Sleep(took)
			d[0].slow.end(gang, nil)
			statustest.Check(t, s.wait(gang, 0))
		}
		told := func() []*wire.Doing {
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			all := s.doing
			s.doing = nil
			return all
		}
		begun := time.Now() // of both workers, too
		slow(1, 1500*time.Millisecond)
		statustest.EqualSlices(t, told(), nil, "without being asked it tells")
		s.tellOne(0, wire.KindWatch, &wire.Watch{Devices: []uint32{0, 7}, Bars: 2, Ms: 3500})
		slow(2, 100*time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		slow(3, 50*time.Millisecond)
		time.Sleep(time.Until(begun.Add(2 * time.Second)))
		want := &wire.Doing{NowNs: 2e9, Programs: []string{"slow"}, Lanes: []*wire.Doing_Lane{{Sessions: []uint32{1, 1},
			Programs: []uint32{0, 0}, Runs: []uint32{1, 1}, GapNs: []uint64{15e8, 1e8}, Ns: []uint64{1e8, 5e7}}}}
		if got := told(); len(got) != 1 || !proto.Equal(got[0], want) {
			t.Errorf("it tells %v, want %v", got, want)
		}
		for op := range uint64(6) { // two and two are too short to be told apart, and two bars fit
			slow(4+op, 300*time.Microsecond)
			if op%2 == 1 {
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(time.Until(begun.Add(3 * time.Second)))
		want = &wire.Doing{NowNs: 3e9, Programs: []string{"slow"}, Lanes: []*wire.Doing_Lane{{Sessions: []uint32{1, 1},
			Programs: []uint32{0, 0}, Runs: []uint32{2, 2}, GapNs: []uint64{2e9 + 16e5, 1e6}, Ns: []uint64{6e5, 6e5},
			Dropped: 2}}}
		if got := told(); len(got) != 1 || !proto.Equal(got[0], want) {
			t.Errorf("it tells %v, want %v", got, want)
		}
		time.Sleep(3 * time.Second)
		if got := told(); len(got) == 0 || len(got[len(got)-1].Lanes) > 0 {
			t.Errorf("while it is asked to, it tells %v", got)
		}
		slow(10, time.Second)
		time.Sleep(2 * time.Second)
		statustest.EqualSlices(t, told(), nil, "after it was asked to, it tells")
	})
}
