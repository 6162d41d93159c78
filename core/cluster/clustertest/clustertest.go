// Package clustertest helps tests of whole clusters: it has a client that waits for its
// operations, and a check of what they leave on the devices.
//
// A Session may be used from any goroutine. Only tests import it.
package clustertest

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
)

// late is how long anything may take, even on a very busy machine.
const late = time.Minute

// Session is a client in a test.
type Session struct {
	client.Cluster
	T testing.TB

	mu      sync.Mutex // guards the rest
	changed *sync.Cond
	ended   map[uint64]error
	token   uint64
}

// Begin begins a session, which ends with the test.
func Begin(t testing.TB, connect func(client.Notify) (client.Cluster, error)) *Session {
	t.Helper()
	s := &Session{T: t, ended: map[uint64]error{}}
	s.changed = sync.NewCond(&s.mu)
	c := statustest.Value(connect(func(batch []client.Ended) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, e := range batch {
			s.ended[e.Token] = e.Err
		}
		s.changed.Broadcast()
	})).OK(t)
	s.Cluster = c
	t.Cleanup(func() { c.Close() })
	return s
}

// Tokens returns the first of n new consecutive tokens.
func (s *Session) Tokens(n int) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.token + 1
	s.token += uint64(n)
	return first
}

// Ended reports whether an operation has ended, and returns its error.
func (s *Session) Ended(token uint64) (err error, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err, over = s.ended[token]
	return err, over
}

// Wait blocks until an operation has ended.
func (s *Session) Wait(token uint64) error {
	s.T.Helper()
	late := time.AfterFunc(late, func() { panic(fmt.Sprintf("operation %d has not ended", token)) })
	defer late.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if err, ok := s.ended[token]; ok {
			delete(s.ended, token)
			return err
		}
		s.changed.Wait()
	}
}

// Array makes an object with these bytes on each device.
func (s *Session) Array(sh shape.Shape, devices []int, data func(d int) []byte) uint64 {
	s.T.Helper()
	p := &client.PutSpec{Object: s.Objects(1), Shape: sh, Token: s.Tokens(1)}
	for _, d := range devices {
		p.Devices = append(p.Devices, uint32(d))
	}
	p.Fill = func(d uint32, dst []byte, written func(error)) {
		copy(dst, data(int(d)))
		written(nil)
	}
	statustest.OK(s.T, s.Put(p))
	statustest.OK(s.T, s.Wait(p.Token))
	return p.Object
}

// Start submits a run and returns its token and its first output.
func (s *Session) Start(r *client.Remote, inputs ...uint64) (token, output uint64) {
	s.T.Helper()
	spec := &client.RunSpec{Program: r.ID, FirstOutput: s.Objects(len(r.Info.Outputs)), Inputs: inputs, Only: -1,
		Token: s.Tokens(1)}
	statustest.OK(s.T, s.Run(spec))
	return spec.Token, spec.FirstOutput
}

// Read returns the bytes of a shard.
func (s *Session) Read(object uint64, d int, size int64) ([]byte, error) {
	s.T.Helper()
	dst := make([]byte, size)
	var pin runtime.Pinner
	if size > 0 {
		pin.Pin(&dst[0])
		defer pin.Unpin()
	}
	done := make(chan error, 1)
	if err := s.Fetch(object, uint32(d), dst, func(err error) { done <- err }); err != nil {
		return nil, err
	}
	return dst, <-done
}

// Free waits until the devices' memory is free.
func Free(t testing.TB, drivers []device.Driver) {
	t.Helper()
	for i, d := range drivers {
		for k := range d.Devices() {
			statustest.Soon(t, func() int64 { return statustest.Value(d.MemoryStats(k)).OK(t).InUse }, 0,
				"bytes of worker %d device %d", i, k)
		}
	}
}

// UpTo returns 0, 1, … n-1.
func UpTo(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}
