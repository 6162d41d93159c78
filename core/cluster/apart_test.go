package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/inproc"
)

// thereAndBack has a new client move an array from a worker to another and back. It
// returns the first error.
func thereAndBack(t *testing.T, l *cluster.Local, one, other string) error {
	t.Helper()
	ended := make(chan error, 3)
	s, err := l.Connect(t.Context(), "probe", func(batch []client.Ended) {
		for _, e := range batch {
			ended <- e.Err
		}
	})
	if err != nil {
		return err
	}
	defer s.Close()
	device := map[string]uint32{}
	for _, d := range s.Devices() {
		if d.Local == 0 {
			device[fmt.Sprint("worker-", d.Worker-1)] = d.Number
		}
	}
	from, to := device[one], device[other]
	f32 := shape.Shape{DType: shape.F32, Dims: []int64{4}}
	const data = "sixteen bytes so"
	first := s.Objects(3)
	if err := s.Put(&client.PutSpec{
		Object: first, Shape: f32, Devices: []uint32{from}, Token: 1, Fill: func(_ uint32, dst []byte, written func(error)) {
			copy(dst, data)
			written(nil)
		}}); err != nil {
		return err
	}
	for i, way := range [][2]uint32{{from, to}, {to, from}} {
		source := first + uint64(i)
		m := &wire.Transfer{Object: source + 1, Array: &wire.Array{Dtype: uint32(f32.DType), Dims: f32.Dims},
			Moves: []*wire.Move{{Source: source, From: way[0], To: way[1]}}}
		if err := s.Transfer(m, uint64(2+i)); err != nil {
			return err
		}
	}
	got, fetched := make([]byte, len(data)), make(chan error, 1)
	if err := s.Fetch(first+2, from, got, func(err error) { fetched <- err }); err != nil {
		return err
	}
	for range 3 {
		if e := <-ended; err == nil {
			err = e
		}
	}
	if e := <-fetched; err == nil {
		err = e
	}
	if err == nil && string(got) != data {
		err = fmt.Errorf("other bytes came back: %q", got)
	}
	return err
}

// Two workers are cut off from each other, and not from the controller: what is between
// them waits or fails, in bounded time, with an error that names both; status shows the
// pair; and when they meet again, new operations go well.
func TestWorkersThatWereCutOffMeetAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		drivers := simulatedOn(t, 3, sim.Options{Devices: 1, Island: sim.NewIsland(sim.Real, 1)})
		l := start(t, cluster.InProcess{Drivers: drivers, Heartbeat: silence / 4, Patience: apartFor,
			Network: &inproc.Conditions{Delay: func(string, string) time.Duration { return time.Millisecond },
				Silence: silence}})
		apart := func() (pairs []string) {
			for _, is := range l.Report().Islands {
				for _, w := range is.Workers {
					for _, a := range w.Last.GetApart() {
						pairs = append(pairs, w.Process.Name+" "+a.Name)
					}
				}
			}
			return pairs
		}

		l.Part("worker-0", "worker-1")
		time.AfterFunc(apartFor/2, func() { l.Meet("worker-0", "worker-1") })
		begun := time.Now()
		if err := thereAndBack(t, l, "worker-0", "worker-1"); err != nil || time.Since(begun) < apartFor/2 {
			t.Errorf("they were apart for a short time: %v after %v", err, time.Since(begun))
		}

		l.Part("worker-0", "worker-1")
		begun = time.Now()
		for range 2 { // while they wait, and after they gave up
			err := thereAndBack(t, l, "worker-0", "worker-1")
			statustest.Fails(t, "they are apart", err, status.Unavailable, "(worker-0)", "(worker-1)")
		}
		if d := time.Since(begun); d > 2*apartFor {
			t.Errorf("it took %v to fail", d)
		}
		statustest.Checkf(t, thereAndBack(t, l, "worker-0", "worker-2"), "others go on")
		time.Sleep(2 * apartFor)
		statustest.Equal(t, fmt.Sprint(apart()), "[worker-0 worker-1 worker-1 worker-0]", "status shows as apart")

		l.Meet("worker-0", "worker-1")
		statustest.Checkf(t, thereAndBack(t, l, "worker-0", "worker-1"), "they have met again")
		time.Sleep(silence)
		statustest.EqualSlices(t, apart(), nil, "status shows as apart")
	})
}
