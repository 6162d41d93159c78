package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
	"github.com/openpathways/pathways/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// near is a session on a far controller.
type near struct {
	t        *testing.T
	far      *far
	exchange *noExchange
	cluster  Cluster
	ends     chan Ended
}

func connect(t *testing.T) *near { return connectWith(t, nil) }

func connectWith(t *testing.T, hurry func() bool) *near {
	t.Helper()
	return connectTo(t, newFar(), hurry)
}

// connectOn is connect where the second device is another worker's, and the tenant has a quota of host memory.
func connectOn(t *testing.T, second uint64, hostMemory int64) *near {
	t.Helper()
	f := newFar()
	f.welcome.Devices[1].Worker, f.welcome.HostMemory = second, hostMemory
	return connectTo(t, f, nil)
}

func connectTo(t *testing.T, f *far, hurry func() bool) *near {
	t.Helper()
	n := &near{t: t, far: f, exchange: new(noExchange), ends: make(chan Ended, 100)}
	n.far.keep = true
	var err error
	n.cluster, err = Connect(context.Background(), Config{Dialer: n.far, Hello: &wire.Hello{}, Hurry: hurry,
		Exchange: func(*wire.Welcome) (transport.Exchange, error) { return n.exchange, nil },
		Notify: func(es []Ended) {
			for _, e := range es {
				n.ends <- e
			}
		}})
	statustest.OK(t, err)
	t.Cleanup(func() {
		n.cluster.Close()
		if !n.exchange.closed {
			t.Error("the exchange was not closed")
		}
	})
	return n
}

// says has the controller send a message.
func (n *near) says(kind wire.Kind, m proto.Message) {
	payload := statustest.Value(proto.Marshal(m)).OK(n.t)
	n.far.say <- message{kind, payload}
}

// came returns the messages of a kind that the controller got.
func (n *near) came(kind wire.Kind) [][]byte {
	n.far.mu.Lock()
	defer n.far.mu.Unlock()
	return n.far.all(kind)
}

// comes waits until the controller has got so many messages of a kind, and returns them.
func (n *near) comes(kind wire.Kind, many int) [][]byte {
	n.far.mu.Lock()
	defer n.far.mu.Unlock()
	for len(n.far.all(kind)) < many {
		n.far.came.Wait()
	}
	return n.far.all(kind)
}

func (n *near) end() Ended {
	n.t.Helper()
	select {
	case e := <-n.ends:
		return e
	case <-time.After(30 * time.Second):
		n.t.Fatal("nothing ends")
		return Ended{}
	}
}

func (n *near) quiet() {
	n.t.Helper()
	// What the controller says is read in order: when a compile is answered, all
	// before it has been heard.
	done := make(chan error, 1)
	before := len(n.came(wire.KindCompile))
	go func() {
		_, err := n.cluster.Compile(context.Background(), CompileSpec{})
		done <- err
	}()
	n.comes(wire.KindCompile, before+1)
	n.says(wire.KindCompiled, &wire.Compiled{Op: uint64(before + 1), Info: &wire.ProgramInfo{}})
	statustest.OK(n.t, <-done)
	if len(n.ends) > 0 {
		n.t.Fatalf("%v ends too early", <-n.ends)
	}
}

// zeros fills a shard.
func zeros(_ uint32, _ []byte, written func(error)) { written(nil) }

var errLost = status.New(status.Unavailable, "worker w is gone")

// A Put ends when its operation has ended and the user's bytes have no readers any more.
func TestPutEndsWhenItsBytesAreNoLongerRead(t *testing.T) {
	for _, failed := range []bool{false, true} {
		n := connect(t)
		n.exchange.stay = true // Fail does not end a push that is being filled
		statustest.OK(t, n.cluster.Put(&PutSpec{Object: 1, Shape: shape.Shape{DType: shape.F32}, Devices: []uint32{0, 1},
			Fill: zeros, Token: 5}))
		if failed {
			n.says(wire.KindCompleted, &wire.Completed{Failed: []*wire.Failure{{Number: 1, Status: wire.Of(errLost)}}})
		} else {
			n.says(wire.KindCompleted, &wire.Completed{Ok: []uint64{1}})
		}
		n.quiet()
		n.exchange.end(func(k transport.Key) bool { return k.Part == 0 }, nil)
		n.quiet()
		n.exchange.end(func(k transport.Key) bool { return k.Part == 1 }, nil)
		if e := n.end(); e.Token != 5 || (e.Err != nil) != failed {
			t.Errorf("the put ends with %v", e)
		}
		if len(n.came(wire.KindAbort)) != 0 {
			t.Error("the controller is told of an end that it knows")
		}
	}
}

// Bytes that do not get through end the operation at the controller too.
func TestPutWhoseBytesAreLostEndsAtTheController(t *testing.T) {
	n := connect(t)
	statustest.OK(t, n.cluster.Put(&PutSpec{Object: 1, Shape: shape.Shape{DType: shape.F32}, Devices: []uint32{0},
		Fill: zeros, Token: 5}))
	n.exchange.end(func(transport.Key) bool { return true }, errLost)
	abort := new(wire.Abort)
	if got := n.came(wire.KindAbort); len(got) != 1 || proto.Unmarshal(got[0], abort) != nil || abort.Gang != 1 ||
		status.Code(abort.Status.Code) != status.Unavailable {
		t.Errorf("the controller is told %v", got)
	}
	n.quiet()
	n.says(wire.KindCompleted, &wire.Completed{Failed: []*wire.Failure{{Number: 1, Status: wire.Of(errLost)}}})
	if e := n.end(); e.Token != 5 || status.CodeOf(e.Err) != status.Unavailable {
		t.Errorf("the put ends with %v", e)
	}
}

// A Fetch ends with its bytes, or with the operation's error, once.
func TestFetchEndsOnce(t *testing.T) {
	n := connect(t)
	done := make(chan error, 2)
	fetch := func() {
		t.Helper()
		statustest.OK(t, n.cluster.Fetch(1, 1, make([]byte, 4), func(err error) { done <- err }))
	}
	fetch()
	n.says(wire.KindCompleted, &wire.Completed{Ok: []uint64{1}})
	n.quiet()
	if len(done) != 0 {
		t.Error("a fetch ends before its bytes are there")
	}
	n.exchange.end(func(transport.Key) bool { return true }, nil)
	statustest.Check(t, <-done)
	fetch()
	n.says(wire.KindCompleted, &wire.Completed{
		Failed: []*wire.Failure{{Number: 2, Status: &wire.Status{Code: uint32(status.DataLoss), Message: "scratched"}}}})
	statustest.Fails(t, "a fetch that failed", <-done, status.DataLoss)
	statustest.Fails(t, "device 2 of 2", n.cluster.Fetch(1, 2, nil, nil), status.InvalidArgument)
}

// What may be kept for long is what the exchange says of the device's worker.
func TestExchangeLimitsWhatMayBeKept(t *testing.T) {
	n := connect(t)
	for _, lends := range []bool{false, true} {
		n.exchange.lends = lends
		if n.cluster.Lends(1, 4) != lends || n.cluster.Lends(2, 4) {
			t.Errorf("where the exchange says %v, device 1 lends: %v, and device 2 of 2: %v", lends, n.cluster.Lends(1, 4),
				n.cluster.Lends(2, 4))
		}
	}
}

// The loss of the controller ends everything under way, and all that comes after.
func TestSessionIsLost(t *testing.T) {
	for name, lose := range map[string]func(n *near){
		"connection": func(n *near) { n.far.Close() },
		"goodbye":    func(n *near) { n.says(wire.KindGoodbye, &wire.Goodbye{Status: wire.Of(errors.New("the end"))}) },
		"rubbish":    func(n *near) { n.far.say <- message{wire.KindCompleted, []byte{0xff}} },
		"close":      func(n *near) { n.cluster.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			n := connect(t)
			statustest.OK(t, n.cluster.Run(&RunSpec{Program: 1, FirstOutput: n.cluster.Objects(1), Only: -1, Token: 1}))
			statustest.OK(t, n.cluster.Put(&PutSpec{Object: 2, Shape: shape.Shape{DType: shape.F32}, Devices: []uint32{0},
				Fill: zeros, Token: 2}))
			done := make(chan error, 1)
			statustest.OK(t, n.cluster.Fetch(1, 0, make([]byte, 4), func(err error) { done <- err }))
			lose(n)
			ended := map[uint64]error{}
			for range 2 {
				e := n.end()
				ended[e.Token] = e.Err
			}
			for _, err := range []error{
				ended[1], ended[2], <-done, n.cluster.Lost(), n.cluster.Run(&RunSpec{Program: 1, Only: -1})} {
				statustest.Fails(t, "the error", err, status.Unavailable)
			}
			statustest.Fails(t, "a compile", statustest.Of(n.cluster.Compile(context.Background(), CompileSpec{})),
				status.Unavailable)
			n.cluster.Free([]uint64{1})
		})
	}
}

// Without credit a submission waits until operations have ended, and no number is
// lost.
func TestCreditIsWaitedFor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := connect(t)
		n.says(wire.KindCompleted, &wire.Completed{Credit: 2})
		n.quiet()
		submitted := make(chan error, 3)
		go func() {
			for range 3 {
				submitted <- n.cluster.Run(&RunSpec{Program: 1, Only: -1})
			}
		}()
		<-submitted
		<-submitted
		n.waits()
		n.says(wire.KindCompleted, &wire.Completed{Ok: []uint64{2}})
		statustest.OK(t, <-submitted)
		for i, payload := range n.came(wire.KindRun) {
			m := new(wire.Run)
			if err := proto.Unmarshal(payload, m); err != nil || m.Op != uint64(i+1) {
				t.Errorf("operation %d has number %d, %v", i+1, m.Op, err)
			}
		}
	})
}

// A call that hurries takes of the credit that is kept for it, and never goes beyond.
func TestWhatHurriesDoesNotWaitForCredit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var hurry atomic.Bool
		n := connectWith(t, hurry.Load)
		n.says(wire.KindCompleted, &wire.Completed{Credit: hurryShare})
		n.quiet()
		submitted := make(chan error, hurryShare+1)
		go func() {
			for range hurryShare + 1 {
				submitted <- n.cluster.Run(&RunSpec{Program: 1, Only: -1})
			}
		}()
		take := func(runs int) {
			t.Helper()
			for range runs {
				statustest.OK(t, <-submitted)
			}
			synctest.Wait() // or one more would come
			if len(submitted) > 0 {
				t.Error("a run went beyond the credit")
			}
		}
		take(hurryShare - 1)
		hurry.Store(true)
		take(1)
		n.says(wire.KindCompleted, &wire.Completed{Ok: []uint64{1}})
		take(1)
	})
}

// waits checks that a third run is not sent while two are under way.
func (n *near) waits() {
	n.t.Helper()
	synctest.Wait() // or a third would come
	statustest.Equal(n.t, len(n.came(wire.KindRun)), 2, "runs that were sent")
}

// Freed objects are sent with the next submission, or alone if there is none.
func TestFreesGoWithTheNextSubmission(t *testing.T) {
	n := connect(t)
	n.cluster.Free([]uint64{1, 2})
	n.cluster.Free([]uint64{3})
	statustest.OK(t, n.cluster.Run(&RunSpec{Program: 1, Only: -1}))
	if got := n.freed(); len(got) != 3 {
		t.Errorf("freed %v before the run, want 1 to 3", got)
	}
	n.cluster.Free([]uint64{4})
	n.frees(4)
}

// freed returns the objects that the controller was told to free.
func (n *near) freed() (ids []uint64) {
	n.t.Helper()
	for _, payload := range n.came(wire.KindFree) {
		m := wiretest.Decode[wire.Free](n.t, payload)
		ids = append(ids, m.Objects...)
	}
	return ids
}

// frees waits until so many were.
func (n *near) frees(want int) {
	n.t.Helper()
	for many := 1; len(n.freed()) < want; many++ {
		n.comes(wire.KindFree, many)
	}
	if got := n.freed(); len(got) != want {
		n.t.Fatalf("freed %v, want %d objects", got, want)
	}
}

// What waits for credit does not hold up frees: the operations under way may wait
// for the memory.
func TestFreesPassWhoWaitsForCredit(t *testing.T) {
	for name, submit := range map[string]func(n *near, graph uint64) error{
		"run": func(n *near, _ uint64) error { return n.cluster.Run(&RunSpec{Program: 1, Only: -1}) },
		"play": func(n *near, graph uint64) error {
			return n.cluster.Play(&PlaySpec{Graph: graph, Inputs: []uint64{9}, First: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				n := connect(t)
				graph := statustest.Value(n.cluster.Define(chain(1))).OK(t)
				n.says(wire.KindCompleted, &wire.Completed{Credit: 1})
				n.quiet()
				statustest.OK(t, n.cluster.Run(&RunSpec{Program: 1, Only: -1}))
				submitted := make(chan error, 1)
				go func() { submitted <- submit(n, graph) }()
				synctest.Wait() // it waits for credit
				n.cluster.Free([]uint64{7})
				n.frees(1)
				select {
				case err := <-submitted:
					t.Fatalf("it was submitted without credit: %v", err)
				default:
				}
				n.says(wire.KindCompleted, &wire.Completed{Ok: []uint64{1}})
				statustest.Check(t, <-submitted)
			})
		})
	}
}

// Frees do not wait for a connection that is full, so that virtual time, in which
// it empties, goes on.
func TestFreesDoNotWaitForTheConnection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := connect(t)
		n.far.full = make(chan struct{})
		go func() {
			statustest.Check(t, n.cluster.Run(&RunSpec{Program: 1, Only: -1}))
		}()
		synctest.Wait()
		n.cluster.Free([]uint64{7})
		time.Sleep(time.Minute)
		close(n.far.full)
		n.frees(1)
	})
}

// A client that waits for a slow compile is told so, and may give up at any time: the
// controller is told, and an answer that still comes is dropped.
func TestSlowCompileIsReportedAndMayBeGivenUp(t *testing.T) {
	n := connect(t)
	ctx, cancel := context.WithCancel(context.Background())
	said, done := make(chan string, 1), make(chan error, 1)
	go func() {
		_, err := n.cluster.Compile(ctx,
			CompileSpec{Slow: func(worker string, since time.Duration) { said <- worker + " " + since.String() }})
		done <- err
	}()
	n.comes(wire.KindCompile, 1)
	n.says(wire.KindCompiling, &wire.Compiling{Op: 1, Worker: "w", SinceMs: 2500})
	statustest.Equal(t, <-said, "w 2.5s", "it hears of")
	cancel()
	statustest.Fails(t, "a compile that was given up", <-done, status.Cancelled)
	var m wire.Forget
	if got := n.came(wire.KindForget); len(got) != 1 || proto.Unmarshal(got[0], &m) != nil || len(m.Programs) != 1 ||
		m.Programs[0] != 1 {
		t.Errorf("the controller is told %v, want to forget program 1", m.Programs)
	}
	n.says(wire.KindCompiling, &wire.Compiling{Op: 1, Worker: "w", SinceMs: 5000})
	n.says(wire.KindCompiled, &wire.Compiled{Op: 1, Program: 1, Info: &wire.ProgramInfo{}})
	n.quiet()
	if len(said) > 0 {
		t.Errorf("who gave up hears of %q", <-said)
	}
}
