package worker_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// A heartbeat tells what each device computes: the computation that has been there
// longest, whose it is, since when, and whether its session has ended.
func TestHeartbeatTellsWhatDevicesCompute(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, d := newInline(t)
		s.begin(&wire.Session{
			Session: 1, Client: &wire.Process{Number: clientProcess, Name: "notebook", User: "ada", Machine: "node1"}})
		says := func(w int, want *wire.Running) {
			t.Helper()
			s.until("the computation in a heartbeat", func() bool {
				all := s.running[w]
				return want == nil && len(all) == 0 || want != nil && len(all) == 1 && proto.Equal(all[0], want)
			})
		}
		spin := func(op uint64) uint64 {
			return s.dispatch(1, wire.KindRun,
				&wire.Run{Op: op, Program: slowProgram, FirstOutput: op, Trace: []byte("train.py:3")}, 0)
		}
		begun := time.Now()
		one := spin(1)
		want := &wire.Running{Devices: []uint32{0}, Gang: one, Session: 1, Client: "notebook", User: "ada", Host: "node1",
			Program: "slow", Line: "train.py:3"}
		says(0, want)
		two := spin(2)
		want.Behind, want.SinceMs = 1, 7000
		says(0, want)
		// The first heartbeat is a second late.
		statustest.Equal(t, time.Since(begun), 8*time.Second, "seven seconds were told after")
		d[0].slow.end(one, nil)
		statustest.Check(t, s.wait(one, 0))
		want.Gang, want.Behind, want.SinceMs = two, 0, 2000
		says(0, want)

		// Its client has gone, and it goes on.
		s.tell(wire.KindDrop, &wire.Drop{
			Session: 1, Status: wire.Of(status.New(status.Unavailable, "the client was killed"))})
		want.Gone, want.SinceMs = true, 5000
		says(0, want)
		d[0].slow.end(two, nil)
		says(0, nil)
		says(1, nil)
	})
}

// A line of the user's code may be any bytes, of any length. Heartbeats go on, and tell what people can read of it.
func TestHeartbeatTellsOfAnyLine(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, d := newInline(t)
		for op, line := range []string{"\xff.py:3", strings.Repeat("x", wire.MaxFrame/2)} {
			gang := s.dispatch(1, wire.KindRun,
				&wire.Run{Op: uint64(op + 1), Program: slowProgram, FirstOutput: uint64(op + 1), Trace: []byte(line)}, 0)
			s.until("the computation in a heartbeat", func() bool {
				return len(s.running[0]) == 1 && s.running[0][0].Gang == gang
			})
			got := s.running[0][0].Line
			if want := strings.ToValidUTF8(line, "\ufffd"); got[:4] != want[:4] || len(got) > 8<<10 {
				t.Errorf("the line %.20q… of %d bytes is told as %.20q… of %d", line, len(line), got, len(got))
			}
			d[0].slow.end(gang, nil)
			statustest.Check(t, s.wait(gang, 0))
		}
	})
}

// Clients send no line with short runs: where one computes, and fails, is told by the line of its program's first call.
func TestRunWithoutALineHasThatOfTheFirstCall(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, d := newInline(t)
		for op, c := range []struct{ line, want string }{
			{"", ""},
			{"train.py:3", "called at train.py:3"},
			{"train.py:4", "called at train.py:4"},
			{"", "first called at train.py:3"},
		} {
			gang := s.dispatch(1, wire.KindRun, &wire.Run{Op: uint64(op + 1), Program: slowProgram,
				FirstOutput: uint64(op + 1), Trace: []byte(c.line)}, 0)
			s.until("the computation in a heartbeat", func() bool {
				return len(s.running[0]) == 1 && s.running[0][0].Gang == gang
			})
			statustest.Equal(t, wire.Called(s.running[0][0].Line, s.running[0][0].FirstCall), c.want, "run %d, told as", op)
			d[0].slow.end(gang, status.New(status.Internal, "no luck"))
			where := " [slow, on device 0 of worker w0]"
			if c.want != "" {
				where = " [slow, " + c.want + ", on device 0 of worker w0]"
			}
			statustest.Fails(t, "the run", s.wait(gang, 0), status.Internal, "no luck"+where)
		}
	})
}

// What the driver runs within Execute, where the queue stands still, is told, too.
func TestHeartbeatTellsWhatRunsWithinExecute(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, d := newInline(t)
		one := s.dispatch(1, wire.KindRun, &wire.Run{Op: 1, Program: sumProgram, FirstOutput: 1}, 0)
		d[0].enters(t, one)
		s.until("the computation in a heartbeat", func() bool {
			return len(s.running[0]) == 1 && s.running[0][0].Gang == one && s.running[0][0].SinceMs == 3000
		})
		s.dispatchAs(one, 1, wire.KindRun, &wire.Run{Op: 1, Program: sumProgram, FirstOutput: 1}, 1)
		statustest.Check(t, s.wait(one, 0, 1))
		s.until("a heartbeat without it", func() bool { return len(s.running[0]) == 0 && len(s.running[1]) == 0 })
	})
}

// What the driver runs within Execute waits for nothing any more, also where it had to wait before.
func TestWhatRunsWithinExecuteDoesNotWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, d := newInline(t)
		run := func(op uint64, inputs ...uint64) uint64 {
			m := &wire.Run{Op: op, Program: turnsProgram, FirstOutput: op, Inputs: inputs}
			return s.dispatch(1, wire.KindRun, m, 0)
		}
		statustest.OK(t, s.wait(run(1), 0))
		const op, object = 2, 50
		s.dispatch(1, wire.KindPut, &wire.Put{
			Op: op, Object: object, Devices: []uint32{0}, Array: &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}},
		}, 0)
		two := run(3, object)
		s.until("the device to wait for the array", func() bool { return len(s.workers[0].Waits()) == 1 })
		key := transport.Key{Space: transport.Transfers(1), ID: op}
		s.client.PushBytes(firstWorker, key, floats([]float32{1, 2, 3, 4}), nil)
		s.until("the computation in a heartbeat", func() bool {
			return len(s.running[0]) == 1 && s.running[0][0].Gang == two
		})
		if all := s.workers[0].Waits(); len(all) != 0 {
			t.Errorf("the device computes, and Waits says %+v", all)
		}
		d[0].let <- nil
		statustest.Check(t, s.wait(two, 0))
	})
}

// A program whose loop ends or not, as its arguments say, does not keep the worker from
// hearing of its controller, also where it was quick before.
func TestEndlessComputationLeavesTheConnectionAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, d := newInline(t)
		run := func(op uint64) uint64 {
			return s.dispatch(1, wire.KindRun, &wire.Run{Op: op, Program: turnsProgram, FirstOutput: op}, 0)
		}
		statustest.OK(t, s.wait(run(1), 0))
		synctest.Wait() // the queue sleeps again
		two := run(2)
		s.until("the computation in a heartbeat", func() bool {
			return len(s.running[0]) == 1 &&
				s.running[0][0].Gang == two
		})
		s.tell(wire.KindDrop, &wire.Drop{
			Session: 1, Status: wire.Of(status.New(status.Unavailable, "the client was killed"))})
		s.until("the worker to hear that the session has ended", func() bool {
			return len(s.running[0]) == 1 && s.running[0][0].Gang == two && s.running[0][0].Gone
		})
		d[0].let <- nil
		_ = s.wait(two, 0) // its session has ended before it
	})
}

// took checks the device time that a worker reported of a gang.
func (s *script) took(worker int, gang uint64, want time.Duration) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := s.spent[worker][gang]; got != want {
		s.t.Errorf("worker %d reported %v of device time for gang %d, want %v", worker, got, gang, want)
	}
}

func TestTheTimeOfComputationsThatQueueOnADeviceIsCountedOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, d := newInline(t)
		slow := func(op uint64) uint64 {
			return s.dispatch(1, wire.KindRun, &wire.Run{Op: op, Program: slowProgram, FirstOutput: op}, 0)
		}
		one, two := slow(1), slow(2)
		synctest.Wait()
		for i, gang := range []uint64{one, two} {
			time.Sleep(time.Duration(3-i) * time.Second)
			d[0].slow.end(gang, nil)
			statustest.Check(t, s.wait(gang, 0))
		}
		s.took(0, one, 3*time.Second)
		s.took(0, two, 2*time.Second)
		time.Sleep(time.Second) // while the device idles
		three := slow(3)
		synctest.Wait()
		time.Sleep(time.Second)
		d[0].slow.end(three, nil)
		statustest.Check(t, s.wait(three, 0))
		s.took(0, three, time.Second)
	})
}

// A computation is charged what it took, also where what was launched after it is seen to end first: because its own
// end is told late, or because the other one ran within the call that launched it.
func TestTheTimeOfAComputationIsItsOwnWhenTheNextIsSeenToEndFirst(t *testing.T) {
	for _, c := range []struct {
		what    string
		program uint64 // of the second
	}{{"told late", slowProgram}, {"run within the call", turnsProgram}} {
		t.Run(c.what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s, d := newInline(t)
				run := func(op, program uint64) uint64 {
					return s.dispatch(1, wire.KindRun, &wire.Run{Op: op, Program: program, FirstOutput: op}, 0)
				}
				one, two := run(1, slowProgram), run(2, c.program)
				synctest.Wait()
				time.Sleep(3 * time.Second)
				if c.program == slowProgram {
					d[0].slow.end(two, nil)
					statustest.Check(t, s.wait(two, 0))
					time.Sleep(time.Second)
					d[0].slow.end(one, nil)
					statustest.Check(t, s.wait(one, 0))
					s.took(0, two, 0)
				} else {
					d[0].slow.end(one, nil)
					time.Sleep(time.Second)
					d[0].let <- nil
					statustest.Check(t, s.wait(two, 0))
					statustest.Check(t, s.wait(one, 0))
					s.took(0, two, time.Second)
				}
				s.took(0, one, 3*time.Second)
			})
		})
	}
}

func TestTheWaitForAnInputThatTheDriverBringsIsNoDeviceTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, d := newInline(t)
		d[0].brought = new(fires)
		const op, object = 1, 50
		s.dispatch(1, wire.KindPut, &wire.Put{
			Op: op, Object: object, Devices: []uint32{0}, Array: &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}},
		}, 0)
		s.client.PushBytes(firstWorker, transport.Key{Space: transport.Transfers(1), ID: op}, floats(ramp(1)), nil)
		run := s.dispatch(1, wire.KindRun,
			&wire.Run{Op: 2, Program: slowProgram, FirstOutput: 2, Inputs: []uint64{object}}, 0)
		synctest.Wait()
		time.Sleep(3 * time.Second)
		d[0].brought.fire(nil)
		time.Sleep(time.Second)
		d[0].slow.end(run, nil)
		statustest.Check(t, s.wait(run, 0))
		s.took(0, run, time.Second)
	})
}

func TestTheTimeInWhichADeviceWaitsInACollectiveIsDeviceTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, d := newInline(t)
		sum := s.dispatch(1, wire.KindRun, &wire.Run{Op: 1, Program: sumProgram, FirstOutput: 1}, 0)
		d[0].enters(t, sum)
		time.Sleep(4 * time.Second)
		s.dispatchAs(sum, 1, wire.KindRun, &wire.Run{Op: 1, Program: sumProgram, FirstOutput: 1}, 1)
		statustest.Check(t, s.wait(sum, 0, 1))
		s.took(0, sum, 4*time.Second)
		s.took(1, sum, 0)
	})
}
