package cluster_test

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/grant"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

var (
	sizes     = flag.Int("sizes", usually(14, 100), "how many things of random sizes are sent")
	sizesFrom = flag.Uint64("sizes-from", 5, "the seed of the first of them; 0: any")
)

// largest is the size of the longest of them.
const largest = 200 << 20

// sizeOf returns a size from 0 to largest: near one where something else is done than below, or as often of each order
// of magnitude.
func sizeOf(r *rand.Rand) int {
	at := []int{0, 16 << 10, 128 << 10, 256 << 10, 1 << 20, 8 << 20, 32 << 20, 64 << 20, 65 << 20, largest}
	if r.IntN(3) == 0 {
		return min(max(at[r.IntN(len(at))]+r.IntN(3)-1, 0), largest)
	}
	return int(math.Exp2(r.Float64()*math.Log2(largest))) - 1
}

// sender is a session that sends things of random sizes.
type sender struct {
	*session
	cluster *cluster.Local
	r       *rand.Rand
	run     *client.Remote
	in      uint64
}

func newSender(t *testing.T, l *cluster.Local, name string) *sender {
	s := &sender{session: connect(t, l, name), cluster: l}
	s.run, s.in = s.program(addOne, 0), s.vector([]int{0}, ramp)
	return s
}

// Things of random sizes are sent by several sessions at the same time: arrays, programs, and messages. All arrive as
// they were, or their operation fails with a sentence, and no other. `make soak` sends more.
func TestThingsOfRandomSizes(t *testing.T) {
	const sessions = 2
	first := *sizesFrom
	if first == 0 {
		first = 1 + rand.Uint64N(1<<32)
	}
	l, _ := countedCluster(t, 2, nil)
	var all sync.WaitGroup
	for i := range uint64(sessions) {
		s := newSender(t, l, fmt.Sprint("sender ", i))
		all.Go(func() {
			for seed := first + i; seed < first+uint64(*sizes); seed += sessions {
				s.r = rand.New(rand.NewPCG(seed, 0))
				what, err := s.send()
				if err != nil {
					t.Errorf("%s: %.300v; it does so again with -sizes-from %d -sizes 1", what, err, seed)
				}
			}
			s.adds(s.run, 0)
		})
	}
	all.Wait()
}

// send sends something, and returns what it was and what was wrong.
func (s *sender) send() (string, error) {
	size := sizeOf(s.r)
	kind := things[s.r.IntN(len(things))]
	return fmt.Sprintf("%s of %d bytes", kind.name, size), kind.send(s, size)
}

// things are all that a session sends of any size. What sends one returns an error if it has neither arrived as it was
// nor failed with a sentence, where it is too long for a message.
var things = []struct {
	name string
	send func(s *sender, size int) error
}{
	{"array", (*sender).array}, {"program", (*sender).text}, {"line", (*sender).line}, {"options", (*sender).options},
	{"handlers", (*sender).handlers}, {"inputs", (*sender).inputs}, {"put's memory", (*sender).put},
	{"transfer's memory", (*sender).transfer}, {"graph's line", (*sender).graph}, {"kind of slice", (*sender).slice},
	{"session's name", (*sender).name},
}

// array puts an array on one worker, moves it to the other, and reads it there.
func (s *sender) array(size int) error {
	sent := make([]byte, size)
	for i := 0; i < size; i += 1 + size/5000 {
		sent[i] = byte(s.r.Uint32())
	}
	bytesOf := shape.Shape{DType: shape.U8, Dims: []int64{int64(size)}}
	x := s.Array(bytesOf, []int{0}, func(int) []byte { return sent })
	m := &wire.Transfer{Object: s.Objects(1), Array: &wire.Array{Dtype: uint32(bytesOf.DType), Dims: bytesOf.Dims},
		Moves: []*wire.Move{{Source: x, From: 0, To: 1}}}
	token := s.Tokens(1)
	if err := s.Transfer(m, token); err != nil {
		return err
	}
	if err := s.Wait(token); err != nil {
		return err
	}
	got, err := s.Read(m.Object, 1, int64(size))
	if err == nil && !bytes.Equal(got, sent) {
		err = fmt.Errorf("other bytes arrive")
	}
	s.Free([]uint64{x, m.Object})
	return err
}

// text compiles a program for all workers, and runs it.
func (s *sender) text(size int) error {
	r, err := s.Compile(s.T.Context(), padded(size, 0, 1))
	if err != nil {
		return err
	}
	s.adds(r, 0, 1)
	s.Forget(r.ID)
	return nil
}

// bounded checks the end of an operation whose message may be too long.
func bounded(size int, err error) error {
	code := status.CodeOf(err)
	switch refused := code == status.InvalidArgument || code == status.ResourceExhausted; {
	case err == nil && size > wire.MaxFrame:
		return fmt.Errorf("it was taken, and no frame holds it")
	case err != nil && (size < 1000<<10 || !refused || !strings.Contains(err.Error(), "at most")):
		return err
	}
	return nil
}

// runs runs a program, and waits for its end.
func (s *sender) runs(change func(*client.RunSpec)) error {
	spec := &client.RunSpec{Program: s.run.ID, FirstOutput: s.Objects(1), Inputs: []uint64{s.in}, Only: -1,
		Token: s.Tokens(1)}
	change(spec)
	err := s.Run(spec)
	if err == nil {
		err = s.Wait(spec.Token)
	}
	s.Free([]uint64{spec.FirstOutput})
	return err
}

// line runs a program with a line of so many bytes.
func (s *sender) line(size int) error {
	return bounded(size, s.runs(func(r *client.RunSpec) { r.Trace = bytes.Repeat([]byte("l"), size) }))
}

// numbers returns numbers of objects that are not there, which take so many bytes of a message.
func numbers(size int) []uint64 {
	all := make([]uint64, size/5)
	for i := range all {
		all[i] = 1<<34 + uint64(i)
	}
	return all
}

// refused checks the end of an operation that reads what is not there.
func refused(err error) error {
	if code := status.CodeOf(err); code != status.InvalidArgument && code != status.ResourceExhausted {
		return fmt.Errorf("what reads arrays that are not there ended with %w", err)
	}
	return nil
}

// inputs runs a program with so many bytes of inputs, which it does not take.
func (s *sender) inputs(size int) error {
	return refused(s.runs(func(r *client.RunSpec) { r.Inputs = append(numbers(size), 1<<34) }))
}

// scalar is the shape of what has no bytes to speak of.
var scalar = shape.Shape{DType: shape.F32}

// puts makes an array of a number, and waits for its end.
func (s *sender) puts(memory string) error {
	spec := &client.PutSpec{Object: s.Objects(1), Shape: scalar, Memory: memory, Devices: []uint32{0}, Token: s.Tokens(1),
		Fill: func(_ uint32, _ []byte, done func(error)) { done(nil) }}
	err := s.Put(spec)
	if err == nil {
		err = s.Wait(spec.Token)
	}
	s.Free([]uint64{spec.Object})
	return err
}

// unknown checks the end of what names a memory that no device has.
func unknown(size int, err error) error {
	if size > 0 && size <= wire.MaxFrame && status.CodeOf(err) == status.InvalidArgument {
		return nil
	}
	return bounded(size, err)
}

// put puts an array into a memory with a name of so many bytes.
func (s *sender) put(size int) error { return unknown(size, s.puts(strings.Repeat("m", size))) }

// transfer moves an array into a memory with a name of so many bytes.
func (s *sender) transfer(size int) error {
	m := &wire.Transfer{Object: s.Objects(1), Moves: []*wire.Move{{Source: s.in}}, Array: &wire.Array{
		Dtype: uint32(shape.F32), Dims: []int64{4}, Memory: strings.Repeat("m", size)}}
	token := s.Tokens(1)
	err := s.Transfer(m, token)
	if err == nil {
		err = s.Wait(token)
	}
	s.Free([]uint64{m.Object})
	return unknown(size, err)
}

// graph plays a graph whose node has a line of so many bytes.
func (s *sender) graph(size int) error {
	g := draw(1)
	out := g.run(s.run, 1)
	g.Nodes[0].Run.Trace = bytes.Repeat([]byte("l"), size)
	id, err := s.Define(g.keeps(out))
	if err == nil {
		spec := &client.PlaySpec{Graph: id, Inputs: []uint64{s.in}, First: s.Objects(1), Token: s.Tokens(1)}
		if err = s.Play(spec); err == nil {
			err = s.Wait(spec.Token)
		}
		s.Free([]uint64{spec.First})
		s.ForgetGraph(id)
	}
	return bounded(size, err)
}

// slice asks for a slice of a kind with a name of so many bytes.
func (s *sender) slice(size int) error {
	asked, err := s.Ask(placement.Want{Devices: 1, Kind: strings.Repeat("k", size)}, grant.Terms{})
	if err != nil {
		return bounded(size, err)
	}
	if _, err = asked.Wait(s.T.Context()); size == 0 {
		s.Release(asked.Number)
		return err
	}
	return unknown(size, err)
}

// name begins a session with a name of so many bytes.
func (s *sender) name(size int) error {
	c, err := s.cluster.Connect(s.T.Context(), strings.Repeat("n", size), func([]client.Ended) {})
	if err == nil {
		return c.Close()
	}
	return bounded(size, err)
}

// handlers compiles a program with a handler that it does not call.
func (s *sender) handlers(size int) error {
	spec := padded(100+s.r.IntN(1000), 0)
	spec.Handlers = []*wire.Handler{{Target: strings.Repeat("h", size)}}
	r, err := s.Compile(s.T.Context(), spec)
	if err == nil {
		s.Forget(r.ID)
	}
	return bounded(size, err)
}

// options compiles a program with options that nothing reads.
func (s *sender) options(size int) error {
	spec := padded(100+s.r.IntN(1000), 0)
	unread := []byte{0xfa, 0x7f} // field 2047, which holds bytes
	for n := uint64(size); ; n >>= 7 {
		if n < 1<<7 {
			unread = append(unread, byte(n))
			break
		}
		unread = append(unread, byte(n)|1<<7)
	}
	spec.Options = append(append(spec.Options, unread...), make([]byte, size)...)
	r, err := s.Compile(s.T.Context(), spec)
	if err == nil {
		s.Forget(r.ID)
	}
	return bounded(size, err)
}
