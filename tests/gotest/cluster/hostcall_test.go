package cluster

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// calling has each of n devices call function 0 of the client, and then sums what
// they got.
func calling(n int) program {
	return program{name: "calling", replicas: n, text: `module @calling {
  func.func public @main(%x: tensor<96xf32>) -> tensor<96xf32> {
    %y = stablehlo.custom_call @xla_ffi_python_cpu_callback(%x)
        {api_version = 4 : i32, backend_config = {index = 0 : ui64}} : (tensor<96xf32>) -> tensor<96xf32>
` + sumOf("%y", n) + `    return %z : tensor<96xf32>
  }
}`}
}

// startCalling is start of a run whose functions are call.
func (s *session) startCalling(r *client.Remote, call func(*client.HostCall), inputs ...uint64) (token, output uint64) {
	spec := &client.RunSpec{Program: r.ID, FirstOutput: s.Objects(len(r.Info.Outputs)), Inputs: inputs, Only: -1,
		Token: s.Tokens(1), Call: call}
	statustest.Check(s.T, s.Run(spec))
	return spec.Token, spec.FirstOutput
}

// negate is a function: it returns its argument with the signs changed.
func negate(h *client.HostCall) {
	for i, b := range h.Arguments[0].Data {
		if i%4 == 3 {
			b ^= 0x80
		}
		h.Results[0].Data[i] = b
	}
	h.Done(nil)
}

func TestHostCalls(t *testing.T) {
	for _, workers := range []int{1, 2, 4} {
		r := open(t, workers, 4/workers)
		s := r.connect(t, "client")
		p, plain := s.compile(calling(4)), s.compile(summing(4))
		x := s.Array(input, clustertest.UpTo(4), values)
		var calls atomic.Int64
		for range 10 {
			token, y := s.startCalling(p, func(h *client.HostCall) {
				calls.Add(1)
				go negate(h)
			}, x)
			statustest.OK(t, s.Wait(token))
			a := statustest.Value(s.Read(y, 3, 4*length)).OK(t)
			b, err := s.Read(y, 0, 4*length)
			if err != nil || !bytes.Equal(a, b) || bytes.Equal(a, make([]byte, len(a))) {
				t.Fatalf("the devices have %x and %x, %v", a[:8], b[:8], err)
			}
			s.Free([]uint64{y})
		}
		statustest.Equal(t, calls.Load(), 40, "calls")
		// An error of one call is the run's, and the run's alone.
		why := status.New(status.Internal, "the function has failed")
		var first atomic.Bool
		token, y := s.startCalling(p, func(h *client.HostCall) {
			if !first.Swap(true) {
				h.Done(why)
			} else {
				negate(h)
			}
		}, x)
		statustest.Fails(t, "a run with a call that fails", s.Wait(token), status.Internal)
		// A run that brings no functions fails where it calls one.
		none, v := s.Start(p, x)
		statustest.Fails(t, "a run without functions", s.Wait(none), status.FailedPrecondition)
		token, z := s.Start(plain, x)
		statustest.Check(t, s.Wait(token))
		s.Free([]uint64{x, y, v, z})
		r.free()
		r.Close()
	}
}

// A run does not end before its calls have, also where it has failed meanwhile:
// until then its functions are the client's.
func TestRunEndsAfterItsCalls(t *testing.T) {
	r := open(t, 2, 1)
	s := r.connect(t, "client")
	p, plain := s.compile(calling(2)), s.compile(summing(2))
	x := s.Array(input, clustertest.UpTo(2), values)
	held := make(chan *client.HostCall, 2)
	token, _ := s.startCalling(p, func(h *client.HostCall) { held <- h }, x)
	one, two := <-held, <-held
	r.Lose(1)
	behind, _ := s.Start(plain, x)
	// The loss is of its array: the client has heard of it.
	statustest.Equal(t, status.CodeOf(s.Wait(behind)), status.DataLoss, "a run behind the loss")
	if err, over := s.Ended(token); over {
		t.Fatalf("the run ended while two calls were under way: %v", err)
	}
	negate(one)
	negate(two)
	statustest.Fails(t, "a run with a part on a worker that was lost", s.Wait(token), status.Unavailable)
}

// A client that goes leaves nothing that waits for its functions.
func TestCallsOfDepartedClientEnd(t *testing.T) {
	r := open(t, 2, 2)
	s, other := r.connect(t, "client"), r.connect(t, "other")
	p := s.compile(calling(4))
	x := s.Array(input, clustertest.UpTo(4), values)
	held := make(chan *client.HostCall, 4)
	s.startCalling(p, func(h *client.HostCall) { held <- h }, x)
	calls := []*client.HostCall{<-held, <-held, <-held, <-held}
	s.Close()
	for _, h := range calls {
		negate(h)
	}
	q := other.compile(summing(4))
	y := other.Array(input, clustertest.UpTo(4), values)
	token, z := other.Start(q, y)
	statustest.Check(t, other.Wait(token))
	other.Free([]uint64{y, z})
	r.free()
}

// What a function of the client is called with, and what it returns, arrives whatever its size is.
func TestHostCallsOfAllSizes(t *testing.T) {
	r := open(t, 1, 1)
	s := r.connect(t, "client")
	for _, mib := range []int{0, 63, 64, 65, 200} {
		of := shape.Shape{DType: shape.U8, Dims: []int64{int64(mib) << 20}}
		p := s.compile(program{name: "called", replicas: 1, text: strings.ReplaceAll(`module @called {
  func.func public @main(%x: TYPE) -> TYPE {
    %y = stablehlo.custom_call @xla_ffi_python_cpu_callback(%x)
        {api_version = 4 : i32, backend_config = {index = 0 : ui64}} : (TYPE) -> TYPE
    return %y : TYPE
  }
}`, "TYPE", fmt.Sprintf("tensor<%dxui8>", of.Dims[0]))})
		data := make([]byte, of.Bytes())
		for i := 0; i < len(data); i += 4093 {
			data[i] = byte(i >> 12)
		}
		x := s.Array(of, []int{0}, func(int) []byte { return data })
		called := 0
		token, y := s.startCalling(p, func(h *client.HostCall) {
			called = copy(h.Results[0].Data, h.Arguments[0].Data)
			h.Done(nil)
		}, x)
		statustest.OKf(t, s.Wait(token), "%d MiB", mib)
		got, err := s.Read(y, 0, of.Bytes())
		if err != nil || called != len(data) || !bytes.Equal(got, data) {
			t.Errorf("of %d MiB %d bytes reach the function, and %d come back, %v", mib, called, len(got), err)
		}
		s.Free([]uint64{x, y})
	}
	r.free()
}
