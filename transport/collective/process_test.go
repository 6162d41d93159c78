package collective

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/pages"
)

// A test binary that is started with this in its environment is one process of a
// gang: "number of processes chain-length".
const memberEnv = "COLLECTIVE_MEMBER"

var processesOfTests = map[string]func(string) error{memberEnv: member, hostEnv: host, neighborEnv: neighborProcess}

func TestMain(m *testing.M) {
	for env, process := range processesOfTests {
		if s := os.Getenv(env); s != "" {
			if err := process(s); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0") // or each process of a test ends a second later
	goleak.VerifyTestMain(m)
}

// nowhere is an exchange without peers.
type nowhere struct{ self uint64 }

func (n nowhere) refuse() error { return status.New(status.Internal, "a block left the board") }
func (n nowhere) Push(_ uint64, _ transport.Key, _ int64, _ func([]byte, func(error)), done func(error)) {
	done(n.refuse())
}
func (n nowhere) PushBytes(_ uint64, _ transport.Key, _ []byte, done func(error)) {
	if done != nil {
		done(n.refuse())
	}
}
func (n nowhere) Post(uint64, transport.Key, []byte) bool { return false }
func (n nowhere) Expect(_ uint64, _ transport.Key, _ int64, _ []byte, arrived func(transport.Block, error)) {
	arrived(transport.Block{}, n.refuse())
}
func (n nowhere) Fail(uint64, uint64, error)             {}
func (n nowhere) Peers([]*wire.Process, []uint64, error) {}
func (n nowhere) Self() uint64                           { return n.self }
func (n nowhere) Lends(uint64, int64) bool               { return false }
func (n nowhere) Close() error                           { return nil }

// job is what the processes of a gang are asked to run.
type job struct {
	self, processes, length int
	op                      spmd.Op
	bytes                   int64 // a rank brings; multiples of 8
	lends                   bool
}

// spec returns the collective, of s64.
func (j job) spec() *spmd.Spec {
	x := shape.Shape{DType: shape.S64, Dims: []int64{j.bytes / 8}}
	s := allReduce(j.processes, x)
	s.Op = j.op
	switch n := int64(j.processes); j.op {
	case spmd.AllGather:
		s.Results = []shape.Shape{{DType: shape.S64, Dims: []int64{j.bytes / 8 * n}}}
	case spmd.ReduceScatter:
		s.Results = []shape.Shape{{DType: shape.S64, Dims: []int64{j.bytes / 8 / n}}}
	}
	return s
}

// want is the last element of a result, where each rank brought its number, and a step's.
func (j job) want(step int) int64 {
	switch n := j.processes; j.op {
	case spmd.AllGather, spmd.AllToAll:
		return int64(n + step - 1)
	default:
		return int64(n*(n+1)/2 + n*(step-1))
	}
}

// member runs a chain of collectives as one of several processes, and prints the
// nanoseconds of all but the first few.
func member(s string) error {
	var j job
	if _, err := fmt.Sscan(s, &j.self, &j.processes, &j.length, &j.op, &j.bytes, &j.lends); err != nil {
		return err
	}
	f := os.NewFile(3, "board")
	b, err := OpenBoard(f, j.self-1)
	if err != nil {
		return err
	}
	defer b.Close()
	for i := range j.processes {
		b.Meet(uint64(i+1), i)
	}
	e := New(nowhere{uint64(j.self)}, 1, b)
	defer e.Close()
	spec := j.spec()
	e.Begin(Gang{ID: 1, Launch: 1, Ranks: blocked(j.processes, j.processes)})
	in, out := inHugePages(spec.Operands[0].Bytes()), inHugePages(spec.Results[0].Bytes())
	if j.lends {
		if in, out, err = inHeap(b, int64(len(in)), int64(len(out))); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	wg.Add(1)
	var begin, end time.Time
	var used [2]time.Duration
	var failed error
	step, warm := 0, min(10, j.length)
	c := Call{Launch: 1, Spec: spec, Operands: [][]byte{in}, Results: [][]byte{out}}
	c.Done = func(err error) {
		if step > 0 && err == nil {
			last := len(elements[int64](out)) - 1
			if got, want := elements[int64](out)[last], j.want(step); got != want {
				err = status.New(status.Internal, "step %d: got %d, want %d", step, got, want)
			}
		}
		if step == warm {
			begin, used[0] = time.Now(), processor()
		}
		if failed = err; err != nil || step == j.length+warm {
			end, used[1] = time.Now(), processor()
			wg.Done()
			return
		}
		x := elements[int64](in)
		for p := 1; p <= j.processes; p++ { // the last element of each part
			x[max(1, len(x)*p/j.processes)-1] = int64(j.self + step)
		}
		step++
		e.Enter(c)
	}
	c.Done(nil)
	wg.Wait()
	fmt.Println(end.Sub(begin).Nanoseconds(), (used[1] - used[0]).Nanoseconds())
	return failed
}

// inHeap returns memory that a member lends its peers, the operand in a pool. It stays until the process ends.
func inHeap(b *Board, in, out int64) (operand, result []byte, err error) {
	h, err := newHeap(out)
	if err != nil {
		return nil, nil, err
	}
	_ = pages.Collapse(h.data)
	h.put()
	at, err := h.arena.Make(int(in))
	if err != nil {
		return nil, nil, err
	}
	b.Lend(int(h.file.Fd()), h.data, h.pool)
	return at.Data, h.data, nil
}

// inHugePages returns zeroed memory as that of arrays is on a worker. It stays until the process ends.
func inHugePages(n int64) []byte {
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return aligned(n)
	}
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // a hint
	clear(b)                                // or what is read of it would be one page of zeros
	return b
}

// processor returns the processor time that this process has used.
func processor() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// processes starts a gang of real processes and returns the nanoseconds of a chain, and of the processors for it.
func processes(tb testing.TB, j job) (took, used int64) {
	f := statustest.Value(CreateBoard(j.processes)).OK(tb)
	defer f.Close()
	// They inherit a worker's timer slack (capi/lib/monitor.c): else the monitor thread of each would wake every 70 µs.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	statustest.OK(tb, unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(5*time.Millisecond), 0, 0, 0))
	defer func() { statustest.Check(tb, unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0)) }() // the usual one
	outs, all := make([]bytes.Buffer, j.processes), make([]*exec.Cmd, j.processes)
	for i := range all {
		all[i] = exec.Command(os.Args[0], "-test.run=^$")
		all[i].Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d %d %d %t", memberEnv, i+1, j.processes, j.length, j.op,
			j.bytes, j.lends))
		all[i].ExtraFiles = []*os.File{f}
		all[i].Stdout, all[i].Stderr = &outs[i], &outs[i]
		statustest.OK(tb, all[i].Start())
	}
	for i, c := range all {
		if err := c.Wait(); err != nil {
			tb.Errorf("process %d: %v: %s", i+1, err, outs[i].String())
		}
	}
	for i := range outs {
		var ns, cpu int64
		if _, err := fmt.Sscan(outs[i].String(), &ns, &cpu); err != nil {
			tb.Fatalf("process %d says %q", i+1, outs[i].String())
		}
		took, used = max(took, ns), used+cpu
	}
	return took, used
}

// Collectives over the board between real processes bring the right values, in letters, in areas, and from where they
// lie.
func TestCollectivesBetweenRealProcesses(t *testing.T) {
	processes(t, job{processes: 4, length: 500, op: spmd.AllReduce, bytes: 8})
	for _, op := range []spmd.Op{spmd.AllReduce, spmd.AllGather, spmd.AllToAll, spmd.ReduceScatter} {
		processes(t, job{processes: 3, length: 4, op: op, bytes: 3 << 20})
		processes(t, job{processes: 3, length: 4, op: op, bytes: 6 << 20, lends: true})
	}
}

// BenchmarkProcesses is one collective of a chain, one rank a process.
func BenchmarkProcesses(b *testing.B) {
	for _, op := range []spmd.Op{spmd.AllReduce, spmd.AllGather, spmd.AllToAll, spmd.ReduceScatter} {
		for _, size := range []int64{8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20} {
			for _, n := range []int{2, 4, 8} {
				if size < int64(8*n) && op != spmd.AllReduce {
					continue
				}
				b.Run(fmt.Sprintf("%s/%d/%d", op, size, n), func(b *testing.B) {
					j := job{processes: n, length: b.N, op: op, bytes: size}
					took, used := processes(b, j)
					b.ReportMetric(0, "ns/op")
					b.ReportMetric(float64(took)/float64(b.N)/1e3, "µs/op")
					b.ReportMetric(float64(used)/float64(b.N)/1e3, "cpu-µs/op")
				})
			}
		}
	}
}
