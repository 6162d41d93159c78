package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/content"
)

// fetched is an artifact that a worker sends to the client's process.
func (s *script) fetched(artifact, transfer uint64) ([]byte, error) {
	s.t.Helper()
	var got []byte
	done := make(chan error, 1)
	content.Receive(s.client, firstWorker, transfer, 1<<30, func(parts []*content.Memory, err error) {
		if err == nil {
			got = bytes.Clone(parts[0].Data)
			for _, m := range parts {
				m.Release()
			}
		}
		done <- err
	})
	s.tell(wire.KindGive, &wire.Give{Artifact: artifact, To: clientProcess, Transfer: transfer})
	return got, <-done
}

// asXLA is a driver whose executables, where they were loaded, serialize to what does not run, as XLA's for CPUs do.
type asXLA struct{ device.Driver }

func (d asXLA) Load(ctx context.Context, serialized []byte) (device.Executable, error) {
	x, err := d.Driver.Load(ctx, serialized)
	return onceLoaded{x}, err
}

type onceLoaded struct{ device.Executable }

func (onceLoaded) Serialize() (device.Bytes, error) {
	return device.NewBytes([]byte("it does not run"), nil), nil
}

// A worker asks for an artifact that it is to load, again where it is refused, says that it has it, sends it to another
// worker as it came, and says so when it has it no more.
func TestWorkerFetchesAndPassesOn(t *testing.T) {
	drivers := simDrivers(t, 1, 1, sim.Options{})
	p := addOne()
	x := statustest.Value(drivers[0].Compile(t.Context(), p.Source(), sim.CompileOptions([]int{0}))).OK(t)
	made, err := x.Serialize()
	serialized := made.Data
	if x.Close(); err != nil {
		t.Fatal(err)
	}
	drivers[0] = asXLA{drivers[0]}
	s := start(t, drivers, func(c *worker.Config) { c.DeviceID = nil })
	load := &wire.Load{Session: 1, Program: 1, Devices: []*wire.Devices{{Count: 1}}, Name: p.Name,
		Outputs:  []*wire.Array{{Dtype: uint32(shape.F32), Dims: []int64{4}}},
		Loadable: &wire.Loadable{Form: wire.Loadable_NATIVE, Artifact: 9, Kept: true}}
	s.tell(wire.KindLoad, load)
	s.until("a question", func() bool { return s.wanted == 1 })
	content.Refuse(s.client, firstWorker, 100, status.New(status.Unavailable, "it has gone meanwhile"))
	s.tell(wire.KindSource, &wire.Source{Artifact: 9, Content: &wire.Content{Process: clientProcess, Transfer: 100}})
	s.until("another question", func() bool { return s.wanted == 2 })
	sent := make(chan error, 1)
	content.Send(s.client, firstWorker, 101, [][]byte{serialized}, func(err error) { sent <- err })
	s.tell(wire.KindSource, &wire.Source{Artifact: 9, Content: &wire.Content{Process: clientProcess, Transfer: 101}})
	s.until("the worker to have it", func() bool { return len(s.had) == 2 && s.had[0].No && !s.had[1].No })
	statustest.Check(t, <-sent)
	load.Session = 2 // which asks for nothing
	s.tell(wire.KindLoad, load)
	put := s.put(2, 1, 1, []int{0}, ramp)
	run := s.dispatch(2, wire.KindRun, &wire.Run{Op: 2, Program: 1, Inputs: []uint64{1}, FirstOutput: 2}, 0)
	for _, g := range []uint64{put, run} {
		statustest.Check(t, s.wait(g, 0))
	}
	s.dispatch(2, wire.KindFree, &wire.Free{Objects: []uint64{1, 2}}, 0)
	if got, err := s.fetched(9, 102); err != nil || !bytes.Equal(got, serialized) {
		t.Errorf("it sends %d bytes, %v, want the %d that it got", len(got), err, len(serialized))
	}
	s.tell(wire.KindForget, &wire.Forget{Session: 1, Programs: []uint64{1}})
	s.tell(wire.KindForget, &wire.Forget{Session: 2, Programs: []uint64{1}})
	s.until("the worker to have it no more", func() bool { return len(s.had) == 3 && s.had[2].No })
	statustest.Fails(t, "what it does not have", statustest.Of(s.fetched(9, 103)), status.Unavailable)
	statustest.Equal(t, s.wanted, 2, "how often it asked")
}

// A controller that has started again may have told a worker to receive something, and not the other process to send
// it, or the other way round. So the worker gives that up, and asks again.
func TestWorkerGivesUpWhatAnEarlierControllerHadProcessesSend(t *testing.T) {
	p := addOne()
	s := start(t, simDrivers(t, 1, 1, sim.Options{}), func(c *worker.Config) { c.DeviceID = nil })
	compile := &wire.Compile{Op: 7, Format: p.Source().Format, Options: sim.CompileOptions([]int{0}), Inline: 1,
		Places: []*wire.Place{{Worker: firstWorker}}, Code: p.Source().Code}
	s.tell(wire.KindCompile, compile)
	s.until("a program that is kept", func() bool { return len(s.compiled) == 1 && s.compiled[0].Loadable.GetKept() })
	s.tell(wire.KindGive, &wire.Give{Artifact: 7, To: clientProcess, Transfer: 100})
	compile.Op, compile.Code = 8, nil
	compile.Text = &wire.Content{Size: 1 << 20, Sha256: make([]byte, 32), Process: clientProcess, Transfer: 101}
	s.tell(wire.KindCompile, compile)
	s.tell(wire.KindLoad, &wire.Load{Session: 1, Program: 1, Devices: []*wire.Devices{{Count: 1}}, Name: p.Name,
		Loadable: &wire.Loadable{Form: wire.Loadable_NATIVE, Artifact: 9, Kept: true}})
	s.until("a question", func() bool { return s.wanted == 1 })
	nowhere := &wire.Source{Artifact: 9, Content: &wire.Content{Process: clientProcess, Transfer: 102}}
	s.tell(wire.KindSource, nowhere)

	s.tell(wire.KindRestarted, new(wire.Heartbeat)) // has no fields
	s.until("another question, and no program", func() bool { return s.wanted == 2 && len(s.compiled) == 2 })
	statustest.Fails(t, "the program whose text does not come", s.compiled[1].Status.Err(), status.Unavailable)
	receive := func(transfer uint64) error {
		got := make(chan error, 1)
		content.Receive(s.client, firstWorker, transfer, 1<<30, func(_ []*content.Memory, err error) { got <- err })
		return <-got
	}
	statustest.Fails(t, "what it was to send before", receive(100), status.Unavailable)
	send := func(transfer uint64) error {
		sent := make(chan error, 1)
		content.Send(s.client, firstWorker, transfer, [][]byte{[]byte("no executable")}, func(err error) { sent <- err })
		return <-sent
	}
	for _, transfer := range []uint64{101, 102} {
		statustest.Fails(t, fmt.Sprint("what it waited for before, transfer ", transfer), send(transfer), status.Unavailable)
	}
	nowhere.Content.Transfer = 103
	s.tell(wire.KindSource, nowhere)
	statustest.Checkf(t, send(103), "what it has asked for again")
	nowhere.Content.Transfer = 104 // a second answer
	s.tell(wire.KindSource, nowhere)
	statustest.Fails(t, "what it has not asked for", send(104), status.Unavailable)
}
