package worker

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
)

// lone is a queue whose computations are calls of a test.
func lone(t *testing.T) *queue {
	w := &Worker{gangs: map[uint64]*gang{}}
	w.report.conn, w.config.Engine = deaf{}, absent{}
	q := &queue{w: w, stopped: make(chan struct{}), flights: newFlights(4)}
	q.state = devicequeue.New(devicequeue.Config{Window: 4})
	q.box.wake, q.box.ended.L = make(chan struct{}, 1), &q.box.mu
	go q.serve()
	t.Cleanup(func() {
		q.stop()
		<-q.stopped
	})
	return q
}

// deaf is a controller that does not listen.
type deaf struct{ transport.Conn }

func (deaf) Send(wire.Kind, []byte) error { return nil }

// absent is an engine for gangs whose collectives are not entered.
type absent struct{ Engine }

func (absent) End(uint64) {}

// computes is a program that is a call.
type computes struct {
	device.Executable
	call func()
}

func (c computes) Close() {}
func (c computes) Execute(device.Run) (*device.Results, error) {
	c.call()
	return &device.Results{Outputs: [][]device.Buffer{nil}, Done: []device.Event{there{}}}, nil
}

type there struct{ device.Event }

func (there) Ready() bool                { return true }
func (there) Wait(context.Context) error { return nil }

// computation is a task with a part that makes a call.
func (q *queue) computation(id uint64, quick, collective bool, call func()) task {
	p := &program{exe: computes{call: call}, Recipe: devicequeue.Recipe{Name: "call"}, rows: rowZero}
	p.refs.Store(2)
	p.settled.Store(true)
	if quick {
		p.quick.Store(slowRuns)
	}
	g := newGang(q.w, id, 0, 1, 0)
	g.work, g.queues, g.Recipe, g.collective = &run{program: p, rows: rowZero}, []*queue{q}, &p.Recipe, collective
	g.left.Store(1)
	return task{part: devicequeue.Part{Gang: &g.Gang}}
}

// borrow waits until the queue is vacant, and makes the test its owner.
func (q *queue) borrow() {
	for {
		q.box.mu.Lock()
		vacated := q.box.owner == vacant
		if vacated {
			q.box.owner = owned
		}
		q.box.mu.Unlock()
		if vacated {
			return
		}
		time.Sleep(time.Microsecond) // its owner is busy and tells nobody when it is done
	}
}

// A queue does what it is told once and in the order of the posts, with any owner, and
// it has one owner at a time.
func TestTasksAreAppliedOnceAndInOrder(t *testing.T) {
	q := lone(t)
	const posters, each = 4, 2000
	done := 0               // of the owner: a race where there are two
	begun := [posters]int{} // of the owner, too
	var posting sync.WaitGroup
	for poster := range posters {
		posting.Go(func() {
			last := -1
			for i := range each {
				q.post(i%3 == 0, task{call: func() {
					statustest.Equal(t, last, i-1, "poster %d: task %d comes behind", poster, i)
					last = i
					done++
				}})
				quick, lends := i%5 > 0, i%2 == 0
				q.post(i%3 > 0, q.computation(uint64(poster*each+i+1), quick, lends, func() {
					if begun[poster] != i {
						t.Errorf("poster %d: part %d begins behind %d", poster, i, begun[poster]-1)
					}
					begun[poster]++
				}))
			}
		})
	}
	posting.Wait()
	q.borrow()
	if done != posters*each || begun != [posters]int{each, each, each, each} {
		t.Errorf("%d of %d tasks were applied, and of each poster's %d parts %v began", done, posters*each, each, begun)
	}
	q.goOn(q.advance(true))
}

// What is posted here is applied by the caller if the queue is vacant, and what is quick
// of the parts that can begin then, begins there, too. The queue's goroutine does the rest.
func TestPostHereLeavesWhatIsSlowToTheQueue(t *testing.T) {
	q := lone(t)
	q.borrow()
	q.goOn(q.advance(true)) // it is vacant
	mine, late := 0, make(chan struct{})
	mineToo := func() { mine++ } // a race where it is another's
	slow := q.computation(2, false, false, func() { close(late) })
	quick := q.computation(1, true, false, mineToo)
	if !q.post(true, quick, task{call: mineToo}, slow, q.computation(3, true, false, func() {})) || mine != 2 {
		t.Errorf("the caller did %d of two things", mine)
	}
	<-late
}

// What the caller's own tasks post, such as the bytes of a put that were there before, it applies as well.
func TestPostHereAppliesWhatItsTasksPost(t *testing.T) {
	q := lone(t)
	q.borrow()
	q.goOn(q.advance(true)) // it is vacant
	mine := 0               // a race where it is another's
	if !q.post(true, task{call: func() { q.now(func() { mine++ }) }}) || mine != 1 {
		t.Errorf("the caller made %d of one call", mine)
	}
}

// While another has the queue, what is posted waits for it.
func TestPostToAQueueThatIsOwned(t *testing.T) {
	q := lone(t)
	q.borrow()
	did := make(chan struct{})
	q.now(func() { close(did) })
	select {
	case <-did:
		t.Error("a call was made while another had the queue")
	default:
	}
	q.goOn(q.advance(true))
	<-did
}

// While the owner waits within the driver, a deputy applies what comes, in order, and begins
// nothing.
func TestDeputyAppliesAndBeginsNothing(t *testing.T) {
	q := lone(t)
	var did []string // of the owner
	say := func(what string) func() { return func() { did = append(did, what) } }
	applied, within, end := make(chan struct{}), make(chan struct{}), make(chan struct{})
	q.post(false, q.computation(1, false, true, func() {
		close(within)
		<-end
	}))
	<-within
	q.post(false, q.computation(2, false, false, say("begun")))
	q.box.mu.Lock()
	if q.box.owner != lent {
		t.Error("there is a deputy, for a part that it cannot begin")
	}
	q.box.mu.Unlock()
	q.soon(say("first"))
	q.soon(say("second"))
	q.now(func() { close(applied) })
	<-applied
	// A race where the deputy does not end what it began.
	statustest.EqualSlices(t, did, []string{"first", "second"}, "done while the owner waits")
	close(end)
	over := make(chan struct{})
	for {
		q.soon(func() {
			over <- struct{}{}
		})
		<-over
		q.borrow()
		ended := slices.Equal(did, []string{"first", "second", "begun"})
		q.goOn(q.advance(true))
		if ended {
			break
		}
	}
}

// Execute is quick until it was slow several times in a row.
func TestExecuteIsQuickUntilItIsSlowRepeatedly(t *testing.T) {
	p := new(program)
	slow, fast := quickTime, quickTime-1
	for i, c := range []struct {
		took  time.Duration
		quick bool
	}{{slow, false}, {fast, true}, {slow, true}, {fast, true}, {slow, true}, {slow, false}, {slow, false}, {fast, true}} {
		p.took(c.took)
		statustest.Equal(t, p.quick.Load() > 0, c.quick, "run %d: quick", i)
	}
}
