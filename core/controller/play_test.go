package controller

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
)

// chain defines graph 1 of a session: so many runs of program 1, of which each
// reads what the one before made, and the last is kept.
func (b *bed) chain(nodes int) []Action {
	m := &wire.Graph{Graph: 1, Inputs: 1, Outputs: []uint64{uint64(nodes) + 1}}
	for i := range nodes {
		m.Nodes = append(m.Nodes, &wire.Node{Run: &wire.Run{Program: 1, Inputs: []uint64{uint64(i) + 1}}, Makes: 1})
	}
	return b.say(b.client, wire.KindGraph, m)
}

// A play, and a run, is one message from the client and one to each worker, whatever the nodes,
// and a definition too; its bytes grow neither with workers nor with shards.
func TestPlayIsOneMessageToEachWorker(t *testing.T) {
	const nodes = 128
	sizes := map[wire.Kind]int{}
	for _, size := range []struct{ workers, each int }{{1, 1}, {1, 2}, {2, 2}, {8, 2}, {64, 2}, {1, 4096}, {64, 64}} {
		workers := size.workers
		b := newBed(t, Config{}, workers, size.each)
		b.program(workers * size.each)
		count := func(kind wire.Kind, actions []Action) {
			t.Helper()
			sent := map[uint64]int{}
			for _, a := range actions {
				if a.Kind != Send {
					continue
				}
				if a.Wire != kind {
					t.Errorf("a message of kind %d to %v, want kind %d alone", a.Wire, a.To, kind)
				}
				for _, to := range a.To {
					sent[to]++
				}
				if sizes[kind] == 0 {
					sizes[kind] = len(a.Payload)
				}
				statustest.Equal(t, len(a.Payload), sizes[kind],
					"bytes of a message of kind %d for %d workers, and for 1", kind, workers)
			}
			for _, w := range b.workers {
				if sent[w] != 1 || len(sent) != workers {
					t.Fatalf("messages to each of %d workers: %v, want one", workers, sent)
				}
			}
		}
		count(wire.KindGraph, b.chain(nodes))
		count(wire.KindPlayed, b.say(b.client, wire.KindPlay,
			&wire.Play{Op: 2, Graph: 1, Nodes: nodes, First: 2, Inputs: []uint64{1}}))
		statustest.Equal(t, b.st.gangs.Len(), nodes, "gangs are under way")
		count(wire.KindDispatch,
			b.say(b.client, wire.KindRun, &wire.Run{Op: 2 + nodes, Program: 1, FirstOutput: 3, Inputs: []uint64{1}}))
		// What the chain began with, and what it keeps.
		statustest.Equal(t, len(b.st.sessions[1].objects)-1, 2, "arrays of the session")
	}
}

// Of nodes whose results cannot be asked for, the client hears with what it can wait
// for: an end that it may ask for, a failure, or that nothing is under way.
func TestEndsOfInnerNodesAreReportedWithOthers(t *testing.T) {
	const nodes = 5
	b := newBed(t, Config{}, 1, 1)
	b.program(1)
	b.chain(nodes)
	op, object := uint64(2), uint64(2)
	for _, c := range []struct {
		reports []int // nodes that end, one after the other; -n where node n fails
		told    []int // how many ends each Flush tells
	}{
		{[]int{1, 2, 3, 4, 5}, []int{0, 0, 0, 0, 5}},
		{[]int{1, 2, -3, 4, 5}, []int{0, 0, 3, 0, 2}},
		{[]int{1, -5, 3, 2, 4}, []int{0, 2, 0, 0, 3}},
		{[]int{5, 1, 2, 3, 4}, []int{1, 0, 0, 0, 4}},
	} {
		before := b.st.gang
		b.say(b.client, wire.KindPlay, &wire.Play{Op: op, Graph: 1, Nodes: nodes, First: object, Inputs: []uint64{1}})
		var told []int
		var ended []uint64
		for _, node := range c.reports {
			m := new(wire.Completed)
			if node > 0 {
				m.Ok = []uint64{before + uint64(node)}
			} else {
				m.Failed = []*wire.Failure{{Number: before + uint64(-node), Status: &wire.Status{Code: 13, Message: "burnt"}}}
			}
			b.say(b.workers[0], wire.KindCompleted, m)
			n := len(ended)
			for _, a := range b.step(Event{Kind: Flush}) {
				ends := new(wire.Completed)
				if err := ends.Parse(a.Payload); err != nil || a.Wire != wire.KindCompleted {
					t.Fatalf("message of kind %d: %v", a.Wire, err)
				}
				ended = append(ended, ends.Ok...)
				for _, f := range ends.Failed {
					ended = append(ended, f.Number)
				}
			}
			told = append(told, len(ended)-n)
		}
		statustest.EqualSlices(t, told, c.told, "ends of nodes %v: the client was told of", c.reports)
		slices.Sort(ended)
		for i := range ended {
			if ended[i] != op+uint64(i) {
				t.Fatalf("ends of nodes %v: the client heard of operations %v, of %d to %d", c.reports, ended, op, op+nodes-1)
			}
		}
		op, object = op+nodes, object+nodes
	}
}

// runAndMove is graph 1: a run of program 1, whose result moves to another device.
func runAndMove(names ...*wire.ProgramName) *wire.Graph {
	return &wire.Graph{Graph: 1, Inputs: 1, Outputs: []uint64{3}, Names: names, Nodes: []*wire.Node{
		{Run: &wire.Run{Program: 1, Inputs: []uint64{1}}, Makes: 1},
		{Transfer: &wire.Transfer{Array: scalar, Moves: []*wire.Move{{Source: 2, From: 0, To: 1}}},
			Trace: []byte("train.py:3"), Makes: 1}}}
}

// Workers are told once a graph the name of a program whose result is moved, which is the controller's to say.
func TestWorkersKnowTheNamesOfWhatIsMoved(t *testing.T) {
	b := newBed(t, Config{}, 2, 1)
	b.program(2)
	told := 0
	for _, a := range b.say(b.client, wire.KindGraph, runAndMove()) {
		names := wiretest.Decode[wire.Graph](t, sent(a)).Names
		if len(names) != 1 || names[0].Program != 1 || names[0].Name != "p" {
			t.Errorf("worker %v is told the names %v, expected p", a.To, names)
		}
		told += len(a.To)
	}
	statustest.Equal(t, told, 2, "workers that are told of the graph")
	b = newBed(t, Config{}, 2, 1)
	b.program(2)
	b.say(b.client, wire.KindGraph, runAndMove(&wire.ProgramName{Program: 1, Name: "q"}))
	err := b.st.sessions[1].graphs[1].err
	statustest.Fails(t, "a graph with names", err, status.InvalidArgument, "not a client's to say")
}

// The error of a node that was under way when its worker was lost has the node's name and line.
func TestALostNodeIsNamed(t *testing.T) {
	b := newBed(t, Config{}, 2, 1)
	b.program(2)
	b.say(b.client, wire.KindGraph, runAndMove())
	b.say(b.client, wire.KindPlay, &wire.Play{Op: 2, Graph: 1, Nodes: 2, First: 2, Inputs: []uint64{1}})
	for _, w := range b.workers {
		b.say(w, wire.KindCompleted, &wire.Completed{Ok: []uint64{b.st.gang - 1}})
	}
	b.step(Event{Kind: Lost, Conn: b.workers[1], Err: errLeft})
	const want = " [a transfer of a result of p, called at train.py:3]"
	if all := b.st.sessions[1].failed; len(all) != 1 || !strings.HasSuffix(all[0].Status.Message, want) {
		t.Errorf("failed: %v; expected the transfer alone, with%s", all, want)
	}
}

// While a worker says nothing, nodes that wait for their place fail with one before them that stood still, as runs do.
func TestNodesFailWithOneThatStoodStill(t *testing.T) {
	b := newBed(t, Config{Heartbeat: 1e9, StuckAfter: 10e9, FirstCome: true, Limits: Limits{Window: 1}}, 2, 1)
	b.program(2)
	b.chain(3)
	b.say(b.client, wire.KindPlay, &wire.Play{Op: 2, Graph: 1, Nodes: 3, First: 2, Inputs: []uint64{1}})
	b.told()
	for second := range int64(12) {
		b.now += 1e9
		b.say(b.workers[0], wire.KindHeartbeat, &wire.Heartbeat{Standing: []*wire.Standing{{Gang: b.st.gang, Session: 1,
			Devices: []uint32{0}, At: "collective 0 (all-reduce)", SinceMs: 1000 * second, StillMs: 1000 * second}}})
		b.step(Event{Kind: Tick})
	}
	statustest.EqualSlices(t, b.told(), []int{-2, -3, -4}, "the client heard of")
}

// A play of 128 nodes through State, from the client's frame to its end, with one
// report of each worker: processor time a node, beside that of 128 runs, in turns.
func BenchmarkPlay(b *testing.B) {
	const nodes = 128
	for _, n := range []struct{ workers, devices int }{{1, 1}, {8, 1}, {16, 8}, {128, 4}, {512, 4}} {
		for _, order := range []string{"fair", "fifo"} {
			b.Run(fmt.Sprintf("workers=%d/devices=%d/%s", n.workers, n.workers*n.devices, order), func(b *testing.B) {
				d := newBed(b, Config{FirstCome: order == "fifo"}, n.workers, n.devices)
				d.program(n.workers * n.devices)
				d.chain(nodes)
				op, object := uint64(1), uint64(1)
				var frame []byte
				report := func() {
					m := new(wire.Completed)
					for i := range uint64(nodes) {
						m.Ok = append(m.Ok, d.st.gang-nodes+1+i)
					}
					completed := mustMarshal(b, m)
					ends := new(wire.Completed)
					for _, w := range d.workers {
						statustest.OK(b, ends.Parse(completed))
						d.step(Event{Kind: Message, Conn: w, Wire: wire.KindCompleted, Message: ends, Payload: completed})
					}
					d.step(Event{Kind: Flush})
					if d.st.gangs.Len() > 0 {
						b.Fatalf("%d gangs are left", d.st.gangs.Len())
					}
				}
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				var play, runs time.Duration
				b.ReportAllocs()
				for b.Loop() {
					begun := processorTime(b)
					frame, _ = proto.MarshalOptions{}.MarshalAppend(frame[:0],
						&wire.Play{Op: op + 1, Graph: 1, Nodes: nodes, First: object + 1, Inputs: []uint64{1}})
					d.frame(d.client, wire.KindPlay, frame)
					report()
					op, object = op+nodes, object+nodes
					d.say(d.client, wire.KindFree, &wire.Free{Objects: []uint64{object}})
					play += processorTime(b) - begun

					begun = processorTime(b)
					all := &wire.Free{}
					for i := range uint64(nodes) {
						op++
						object++
						in := object - 1
						if i == 0 {
							in = 1
						}
						frame, _ = proto.MarshalOptions{}.MarshalAppend(frame[:0],
							&wire.Run{Op: op, Program: 1, FirstOutput: object, Inputs: []uint64{in}})
						d.frame(d.client, wire.KindRun, frame)
						all.Objects = append(all.Objects, object)
					}
					report()
					d.say(d.client, wire.KindFree, all)
					runs += processorTime(b) - begun
				}
				b.StopTimer()
				each := func(took time.Duration) float64 { return float64(took.Nanoseconds()) / float64(b.N) / nodes }
				b.ReportMetric(each(play), "ns/node")
				b.ReportMetric(each(runs), "ns/run")
				b.ReportMetric(runs.Seconds()/play.Seconds(), "ratio")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// A graph is drawn beside Step. What its session forgets meanwhile, as queued frees may, is not known to it any more.
func TestAGraphIsOfWhatItsSessionHasWhenItIsDefined(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		b := newBed(t, Config{}, 2, 1)
		b.program(2)
		m := &wire.Graph{Graph: 1, Inputs: 1, Outputs: []uint64{2},
			Nodes: []*wire.Node{{Run: &wire.Run{Program: 1, Inputs: []uint64{1}}, Makes: 1}}}
		ev := Event{Kind: Message, Conn: b.client, Wire: wire.KindGraph, Message: m, Payload: mustMarshal(t, m)}
		b.st.Survey(&ev)()
		if forgets {
			b.say(b.client, wire.KindForget, &wire.Forget{Programs: []uint64{1}})
		}
		b.step(ev)
		b.say(b.client, wire.KindPlay, &wire.Play{Op: 2, Graph: 1, Nodes: 1, First: 2, Inputs: []uint64{1}})
		if got, refused := b.st.gangs.Len() > 0, b.st.sessions[1].failed; got == forgets || len(refused) > 0 != forgets {
			t.Errorf("its program is forgotten: %v; the play is under way: %v, refused: %v", forgets, got, refused)
		}
	}
}

// By shares of device time, nodes of a play take turns as runs do: few are sent ahead of what is measured, and each is
// charged.
func TestNodesOfAPlayTakeTurnsByShares(t *testing.T) {
	const nodes, each = 8, 20e6 // of which two are 40 ms, and three more than the window
	b := newBed(t, Config{}, 1, 1)
	b.program(1)
	b.st.sessions[1].programs[1].of.usual = 0
	b.chain(nodes)
	first := b.st.gang + 1
	b.say(b.client, wire.KindPlay, &wire.Play{Op: 2, Graph: 1, Nodes: nodes, First: 2, Inputs: []uint64{1}})
	var ahead []int
	for i := range uint64(nodes) {
		ahead = append(ahead, b.st.gangs.Len())
		b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{first + i}, Busy: []uint64{each}})
	}
	// The second was asked for before the first was measured.
	statustest.EqualSlices(t, ahead, []int{1, 1, 2, 2, 2, 2, 2, 1}, "nodes under way")
	if got := b.st.Report().Sessions[0].DeviceNs; got != nodes*each {
		t.Errorf("the session was charged %d ns, expected %d", got, int64(nodes*each))
	}
}

// Nodes of a long play, and what is queued behind it, are performed over several Steps. Events of others come in
// between, and the session's own operations keep their order.
func TestALongPlayLetsOthersComeInBetween(t *testing.T) {
	const nodes = 5
	b := newBed(t, Config{}, 1, 1)
	b.program(1)
	b.chain(nodes)
	other := b.joinClient()
	b.st.Weigh(1) // one operation a Step
	sent := func(actions []Action) (all string) {
		statustest.Check(t, b.st.Check())
		for _, a := range actions {
			played, d := new(wire.Played), new(wire.Dispatch)
			switch {
			case a.Wire == wire.KindPlayed && proto.Unmarshal(a.Payload, played) == nil:
				all += fmt.Sprintf("node %d of %d; ", played.From, played.Count)
			case a.Wire == wire.KindDispatch && d.Parse(a.Payload) == nil:
				all += fmt.Sprintf("kind %d of session %d; ", d.Kind, d.Session)
			}
		}
		return all
	}
	all := sent(b.say(b.client, wire.KindPlay, &wire.Play{Op: 2, Graph: 1, Nodes: nodes, First: 2, Inputs: []uint64{1}}))
	all += sent(b.say(b.client, wire.KindFree, &wire.Free{Objects: []uint64{1}}))
	all += sent(b.say(other, wire.KindPut, &wire.Put{Op: 1, Object: 1, Array: scalar, Devices: []uint32{0}}))
	for b.st.More() {
		all += sent(b.step(Event{Kind: Continue}))
	}
	want := fmt.Sprintf("node 0 of 1; node 1 of 1; kind %d of session 2; node 2 of 1; node 3 of 1; node 4 of 1; "+
		"kind %d of session 1; ", wire.KindPut, wire.KindFree)
	statustest.Equal(t, all, want, "workers are sent")
}
