package collective

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/transport"
)

// A test binary that is started with this in its environment is one process of a
// gang: "number of processes chain-length".
const memberEnv = "COLLECTIVE_MEMBER"

func TestMain(m *testing.M) {
	if s := os.Getenv(memberEnv); s != "" {
		if err := member(s); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
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

// member runs a chain of scalar all-reduces as one of several processes, and
// prints the nanoseconds of all but the first ten.
func member(s string) error {
	var self, processes, length int
	if _, err := fmt.Sscan(s, &self, &processes, &length); err != nil {
		return err
	}
	f := os.NewFile(3, "board")
	b, err := OpenBoard(f, self-1)
	if err != nil {
		return err
	}
	defer b.Close()
	for i := range processes {
		b.Meet(uint64(i+1), i)
	}
	e := New(nowhere{uint64(self)}, 1, b)
	defer e.Close()
	x := shape.Shape{DType: shape.S64}
	spec := allReduce(processes, x)
	spec.Reduction = spmd.Sum
	e.Begin(Gang{ID: 1, Launch: 1, Ranks: blocked(processes, processes)})
	in, out := aligned(8), aligned(8)
	var wg sync.WaitGroup
	wg.Add(1)
	var begin, end time.Time
	var failed error
	step := 0
	c := Call{Launch: 1, Spec: spec, Operands: [][]byte{in}, Results: [][]byte{out}}
	c.Done = func(err error) {
		if step > 0 && err == nil {
			if want := int64(processes*(processes+1)/2 + processes*(step-1)); elements[int64](out)[0] != want {
				err = status.New(status.Internal, "step %d: got %d, want %d", step, elements[int64](out)[0], want)
			}
		}
		if step == 10 {
			begin = time.Now()
		}
		if failed = err; err != nil || step == length+10 {
			end = time.Now()
			wg.Done()
			return
		}
		elements[int64](in)[0] = int64(self + step)
		step++
		e.Enter(c)
	}
	c.Done(nil)
	wg.Wait()
	fmt.Println(end.Sub(begin).Nanoseconds())
	return failed
}

// processes starts a gang of real processes and gives the nanoseconds of a chain.
func processes(tb testing.TB, n, length int) int64 {
	f, err := CreateBoard(n)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	outs, all := make([]bytes.Buffer, n), make([]*exec.Cmd, n)
	for i := range all {
		all[i] = exec.Command(os.Args[0], "-test.run=^$")
		all[i].Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d", memberEnv, i+1, n, length))
		all[i].ExtraFiles = []*os.File{f}
		all[i].Stdout, all[i].Stderr = &outs[i], &outs[i]
		if err := all[i].Start(); err != nil {
			tb.Fatal(err)
		}
	}
	for i, c := range all {
		if err := c.Wait(); err != nil {
			tb.Errorf("process %d: %v: %s", i+1, err, outs[i].String())
		}
	}
	ns, err := strconv.ParseInt(string(bytes.TrimSpace(outs[0].Bytes())), 10, 64)
	if err != nil {
		tb.Fatalf("process 1 says %q", outs[0].String())
	}
	return ns
}

// A chain over the board between real processes gives the right sums.
func TestProcesses(t *testing.T) { processes(t, 4, 500) }

// BenchmarkProcesses is one scalar all-reduce of a chain, one rank a process.
func BenchmarkProcesses(b *testing.B) {
	for _, n := range []int{2, 4, 8} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportMetric(float64(processes(b, n, b.N))/float64(b.N), "ns/all-reduce")
		})
	}
}
