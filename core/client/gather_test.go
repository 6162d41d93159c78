package client

// Open puts are sent by time: their tests have time of their own, which passes only when nothing else is left to do.

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
	"github.com/openpathways/pathways/transport"
)

// rows is a Gathering that counts.
type rows struct {
	joined int
	sent   int
	gone   bool // the object has been released
}

func (r *rows) Join(*PutSpec) bool {
	if !r.gone {
		r.joined++
	}
	return !r.gone
}

func (r *rows) Sent() { r.sent++ }

// row puts one row of the object that is numbered like its token.
func (n *near) row(object uint64, device uint32, with *rows, dims ...int64) *PutSpec {
	n.t.Helper()
	s := &PutSpec{Object: object, Shape: shape.Shape{DType: shape.F32, Dims: dims}, Devices: []uint32{device}, Fill: zeros,
		Token: object, Gather: with}
	statustest.OK(n.t, n.cluster.Put(s))
	return s
}

// sent returns what the controller was sent, in order.
func (n *near) sent() (all []string) {
	n.t.Helper()
	n.far.mu.Lock()
	defer n.far.mu.Unlock()
	for _, m := range n.far.sent {
		switch m.kind {
		case wire.KindPut:
			put := wiretest.Decode[wire.Put](n.t, m.payload)
			all = append(all, fmt.Sprintf("put %d of object %d to %v", put.Op, put.Object, put.Devices))
		case wire.KindFree:
			free := wiretest.Decode[wire.Free](n.t, m.payload)
			text := fmt.Sprintf("free %v", free.Objects)
			for _, m := range free.Rows {
				text += fmt.Sprintf(" %v of %d", m.Devices, m.Object)
			}
			all = append(all, text)
		default:
			all = append(all, fmt.Sprintf("kind %d", m.kind))
		}
	}
	return all
}

func (n *near) wantSent(want ...string) {
	n.t.Helper()
	statustest.EqualSlices(n.t, n.sent(), want, "the controller was sent")
}

// Puts of one shape to several devices, one behind the other, are one operation that makes one object.
func TestPutsOfRowsAreOneOperation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := connect(t)
		var first, second rows
		a := n.row(10, 0, &first, 4)
		n.wantSent()
		b := n.row(11, 1, &second, 4)
		n.wantSent("put 1 of object 10 to [0 1]") // both devices of the session
		if a.Object != 10 || b.Object != 10 || b.Token != 10 || b.Gather != Gathering(&first) {
			t.Errorf("the rows are of objects %d and %d, and end with %d", a.Object, b.Object, b.Token)
		}
		if first.joined != 1 || first.sent != 1 || second.joined != 0 || second.sent != 0 {
			t.Errorf("the first object has %+v, the second %+v", first, second)
		}
		n.says(wire.KindCompleted, &wire.Completed{Ok: []uint64{1}})
		if e := n.end(); e.Token != 10 || e.Err != nil {
			t.Errorf("the put ends with %v", e)
		}
	})
}

// What does not fit an open put is an operation of its own, behind it.
func TestPutsThatDoNotFitAreApart(t *testing.T) {
	for name, second := range map[string]func(n *near, with *rows){
		"shape":  func(n *near, with *rows) { n.row(11, 1, with, 5) },
		"device": func(n *near, with *rows) { n.row(11, 0, with, 4) },
		"gone": func(n *near, with *rows) {
			with.gone = true
			n.row(11, 1, new(rows), 4)
		},
		"not gathered": func(n *near, _ *rows) {
			statustest.OK(n.t, n.cluster.Put(&PutSpec{Object: 11, Shape: shape.Shape{DType: shape.F32, Dims: []int64{4}},
				Devices: []uint32{1}, Fill: zeros}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				n := connect(t)
				first := new(rows)
				n.row(10, 0, first, 4)
				second(n, first)
				n.cluster.SendPuts()
				device := 1
				if name == "device" {
					device = 0
				}
				n.wantSent("put 1 of object 10 to [0]", fmt.Sprintf("put 2 of object 11 to [%d]", device))
				if first.joined != 0 || first.sent == 0 {
					t.Errorf("the first object has %+v", *first)
				}
			})
		})
	}
}

// An open put is sent before whatever else the session sends, and before a submission waits for credit.
func TestOpenPutIsSentFirst(t *testing.T) {
	for name, c := range map[string]struct {
		next func(n *near) error
		sent []string
	}{
		"run":      {func(n *near) error { return n.cluster.Run(&RunSpec{Program: 1, Only: -1}) }, []string{"kind 20"}},
		"transfer": {func(n *near) error { return n.cluster.Transfer(&wire.Transfer{}, 0) }, []string{"kind 22"}},
		"fetch":    {func(n *near) error { return n.cluster.Fetch(10, 0, nil, func(error) {}) }, []string{"kind 23"}},
		"forget": {func(n *near) error {
			n.cluster.Forget(1)
			return nil
		}, []string{"kind 13"}},
		"asked for": {func(n *near) error {
			n.cluster.SendPuts()
			return nil
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				n := connect(t)
				with := new(rows)
				n.row(10, 0, with, 4)
				statustest.OK(t, c.next(n))
				n.wantSent(append([]string{"put 1 of object 10 to [0]"}, c.sent...)...)
				statustest.Equal(t, with.sent, 1, "how often the caller heard that its put was sent")
			})
		})
	}
	t.Run("credit", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			n := connect(t)
			n.says(wire.KindCompleted, &wire.Completed{Credit: 1})
			synctest.Wait()
			n.row(10, 0, new(rows), 4)
			done := make(chan error, 1)
			go func() { done <- n.cluster.Run(&RunSpec{Program: 1, Only: -1}) }()
			synctest.Wait()
			n.wantSent("put 1 of object 10 to [0]")
			n.says(wire.KindCompleted, &wire.Completed{Ok: []uint64{1}})
			statustest.Check(t, <-done)
		})
	})
}

// A put leaves after a while although no thread waits for it, and soon if its rows are long, since the workers ask for
// these bytes only then.
func TestOpenPutIsSentByTime(t *testing.T) {
	for _, c := range []struct {
		elements int64
		after    time.Duration
	}{{4, 2 * gatherShort}, {1 << 20, gatherLong}} {
		bubble.Test(t, func(t *testing.T) {
			n := connect(t)
			n.row(10, 0, new(rows), c.elements)
			time.Sleep(c.after - time.Microsecond)
			synctest.Wait()
			n.wantSent()
			time.Sleep(time.Microsecond)
			synctest.Wait()
			n.wantSent("put 1 of object 10 to [0]")
		})
	}
}

// What is freed meanwhile does not close a put, and follows it.
func TestFreesWaitForAnOpenPut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := connect(t)
		with := new(rows)
		n.row(10, 0, with, 4)
		n.cluster.Free([]uint64{9})
		time.Sleep(2 * freeAfter)
		synctest.Wait()
		n.wantSent()
		n.row(11, 1, with, 4)
		time.Sleep(gatherLong)
		synctest.Wait()
		n.wantSent("put 1 of object 10 to [0 1]", "free [9]")
	})
}

// A put waits for the rows of a thread that is kept off its processor, and not for one that does something else.
func TestOpenPutWaitsForAThreadWithoutAProcessor(t *testing.T) {
	for name, c := range map[string]struct {
		took func(waited time.Duration) time.Duration
		runs bool
		sent bool // before there is another row
	}{
		"waits for a processor":   {func(time.Duration) time.Duration { return time.Second }, true, false},
		"has it for a moment":     {func(t time.Duration) time.Duration { return min(t, gatherLong/2) }, true, false},
		"computes something else": {func(waited time.Duration) time.Duration { return waited }, true, true},
		"waits for something":     {func(time.Duration) time.Duration { return time.Second }, false, true},
	} {
		for _, elements := range []int64{4, 1 << 20} {
			t.Run(fmt.Sprintf("%s/%d", name, elements), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					n := connect(t)
					begun := time.Now()
					r := n.cluster.(*remote)
					r.thread = func() int32 { return 7 }
					r.processor = func(thread int32) (time.Duration, bool) {
						statustest.Equal(t, thread, 7, "the thread that puts")
						return c.took(time.Since(begun)), c.runs
					}
					with := new(rows)
					n.row(10, 0, with, elements)
					time.Sleep(3 * gatherShort)
					synctest.Wait()
					if c.sent {
						n.wantSent("put 1 of object 10 to [0]")
						return
					}
					n.wantSent()
					n.row(10, 1, with, elements)
					n.wantSent("put 1 of object 10 to [0 1]")
				})
			})
		}
	}
}

// Short rows lie where their workers read them until the operation has ended, and the message says where. Otherwise
// they are pushed.
func TestShortRowsAreLaid(t *testing.T) {
	for name, c := range map[string]struct {
		elements int64
		shelf    []byte
		want     *wire.Laid
	}{
		"short":    {2, make([]byte, 100), &wire.Laid{Offset: 8}},
		"long":     {1 << 20, make([]byte, 100), nil},
		"no bytes": {0, make([]byte, 100), nil},
		"no shelf": {2, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				n := connect(t)
				n.cluster.(*remote).shelf, n.exchange.shelf = n.exchange, c.shelf
				for device := range uint32(2) {
					statustest.OK(t, n.cluster.Put(&PutSpec{Object: 10, Shape: shape.Shape{DType: shape.F32,
						Dims: []int64{c.elements}}, Devices: []uint32{1 - device}, Token: 10, Gather: new(rows),
						Fill: func(d uint32, row []byte, written func(error)) {
							for i := range row {
								row[i] = byte(d) + 1
							}
							written(nil)
						}}))
				}
				got := wiretest.Decode[wire.Put](t, n.came(wire.KindPut)[0])
				if !proto.Equal(got.Laid, c.want) {
					t.Errorf("the rows lie at %v, want %v", got.Laid, c.want)
				}
				if want := []byte{0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 0}; c.want != nil &&
					!slices.Equal(c.shelf[7:25], want) {
					t.Errorf("the rows are %v, want %v", c.shelf[7:25], want)
				}
				if pushed := len(n.exchange.ends) > 0; pushed == (c.want != nil) || n.exchange.laid > 0 != (c.want != nil) {
					t.Errorf("%d rows are pushed, and %d blocks laid", len(n.exchange.ends), n.exchange.laid)
				}
				n.exchange.end(func(transport.Key) bool { return true }, nil)
				n.says(wire.KindCompleted, &wire.Completed{Ok: []uint64{1}})
				if e := n.end(); e.Err != nil || n.exchange.laid != 0 {
					t.Errorf("the put ends with %v, and %d blocks lie", e, n.exchange.laid)
				}
			})
		})
	}
}

// The bytes of a row that are lost before the message was sent fail the operation, once the controller knows of it.
func TestRowIsLostBeforeItsPutIsSent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := connect(t)
		n.row(10, 0, new(rows), 1<<20)
		n.exchange.end(func(transport.Key) bool { return true }, errLost)
		n.wantSent()
		n.row(11, 1, new(rows), 1<<20) // which fails, too
		n.wantSent("put 1 of object 10 to [0 1]", "kind 32")
		n.says(wire.KindCompleted, &wire.Completed{Failed: []*wire.Failure{{Number: 1, Status: wire.Of(errLost)}}})
		if e := n.end(); e.Token != 10 || status.CodeOf(e.Err) != status.Unavailable {
			t.Errorf("the put ends with %v", e)
		}
	})
}

// Whether a put goes on without a worker that is lost while its row is on its way, the controller says.
func TestRowIsLostWithItsWorker(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := connect(t)
		n.row(10, 0, new(rows), 1<<20)
		n.row(10, 1, new(rows), 1<<20)
		n.says(wire.KindPeers, &wire.Peers{Gone: []uint64{n.cluster.Devices()[1].Worker}, Why: wire.Of(errLost)})
		synctest.Wait()
		n.exchange.end(func(k transport.Key) bool { return k.Part == 1 }, errLost)
		n.exchange.end(func(k transport.Key) bool { return k.Part == 0 }, nil)
		n.wantSent("put 1 of object 10 to [0 1]")
		n.says(wire.KindCompleted, &wire.Completed{Ok: []uint64{1}})
		if e := n.end(); e.Token != 10 || e.Err != nil {
			t.Errorf("the put ends with %v", e)
		}
	})
}

// Rows are gathered as far as the tenant's quota of a worker's machine goes: those of one operation need it at once.
func TestRowsKeepToTheQuotaOfHostMemory(t *testing.T) {
	const row = 16 // bytes
	for name, c := range map[string]struct {
		worker uint64 // of the second device; that of the first is 1
		quota  int64
		want   []string
	}{
		"both fit":          {1, 2 * row, []string{"put 1 of object 10 to [0 1]"}},
		"one fits":          {1, 2*row - 1, []string{"put 1 of object 10 to [0]", "put 2 of object 11 to [1]"}},
		"none fits":         {1, row - 1, []string{"put 1 of object 10 to [0]", "put 2 of object 11 to [1]"}},
		"one each":          {2, row, []string{"put 1 of object 10 to [0 1]"}},
		"there is no quota": {1, 0, []string{"put 1 of object 10 to [0 1]"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, when := range []string{"at first", "later"} {
				bubble.Test(t, func(t *testing.T) {
					n := connectOn(t, c.worker, map[string]int64{"at first": c.quota}[when])
					if when == "later" {
						n.says(wire.KindCompleted, &wire.Completed{HostMemory: c.quota})
						synctest.Wait()
					}
					n.row(10, 0, new(rows), row/4)
					n.row(11, 1, new(rows), row/4)
					n.cluster.SendPuts()
					n.wantSent(c.want...)
				})
			}
		})
	}
}

// A put to a worker that is lost fails, and none to another worker with it.
func TestRowForALostWorkerStaysAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := connect(t)
		n.says(wire.KindPeers, &wire.Peers{Gone: []uint64{n.cluster.Devices()[1].Worker}, Why: wire.Of(errLost)})
		synctest.Wait()
		n.row(10, 0, new(rows), 4)
		n.row(11, 1, new(rows), 4)
		n.wantSent("put 1 of object 10 to [0]", "put 2 of object 11 to [1]")
	})
}

// A session that is lost ends an open put as all others, and no row joins it any more.
func TestSessionIsLostWithAnOpenPut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := connect(t)
		first := new(rows)
		n.row(10, 0, first, 4)
		n.far.Close()
		if e := n.end(); e.Token != 10 || status.CodeOf(e.Err) != status.Unavailable {
			t.Errorf("the put ends with %v", e)
		}
		for _, device := range []uint32{0, 1} {
			statustest.Fails(t, fmt.Sprint("a put after the loss to device ", device), n.cluster.Put(&PutSpec{Object: 11,
				Shape: shape.Shape{DType: shape.F32, Dims: []int64{4}}, Devices: []uint32{device}, Fill: zeros,
				Gather: new(rows)}), status.Unavailable)
		}
		n.cluster.Close()
		statustest.Equal(t, first.sent, 1, "how often the caller heard that no row joins any more")
	})
}

// A shard that is freed while its object stays is told by itself, unless the object follows.
func TestFreeOfOneShard(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := connect(t)
		n.row(10, 0, new(rows), 4)
		n.cluster.SendPuts()
		n.cluster.FreeRow(10, 0)
		n.cluster.FreeRow(10, 1)
		n.cluster.FreeRow(11, 1)
		n.cluster.Free([]uint64{11})
		time.Sleep(freeAfter)
		synctest.Wait()
		n.wantSent("put 1 of object 10 to [0]", "free [] [0 1] of 10", "free [11]")
	})
}
