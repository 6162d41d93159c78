// Package sharded is the Go client of a cluster: sessions, arrays with a shard on each
// of their devices, programs, and graphs of them.
//
// It wraps client.Cluster, with futures instead of tokens and with shapes. No call that
// submits waits for the cluster. The arrays that it returns are pending until Wait
// returns, with the reason if they failed, and may be passed to programs at once. If an
// array fails, everything that depends on it fails with the same error.
//
// # Ownership
//
// An Array belongs to its session. Free frees its memory on the devices once all
// operations submitted before have finished with it; Close frees everything. A block that
// Shard returns belongs to the caller until it is released, even after Close.
//
// # Concurrency
//
// Everything may be called from any goroutine. Every wait ends when its context ends,
// when what it waits for happens, or when the session ends.
package sharded

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport/shm"
)

// Session is a session on a cluster.
type Session struct {
	cluster client.Cluster
	pool    *shm.Pool

	mu    sync.Mutex // guards the rest
	token uint64
	ends  map[uint64]*future // operations in flight
	owed  int                // shards lent to devices, and cancelled reads that have not ended
	none  sync.Cond          // signaled when ends is empty and owed is 0
}

// future is an operation that ends.
type future struct {
	done chan struct{}
	err  error // written before done closes
	then func()
}

// The interval of a session's heartbeats, and how long its peers may be silent.
const (
	heartbeat = time.Second
	silence   = 10 * time.Second
)

// Dial begins a session on the cluster whose controller is at address, tcp:… or unix:…,
// with the secret that the environment names; see cluster.SecretOf.
//
// Errors: INVALID_ARGUMENT if address is empty, UNAVAILABLE if no controller listens
// there, and the controller's refusal.
func Dial(ctx context.Context, address string) (*Session, error) {
	if address == "" {
		return nil, status.New(status.InvalidArgument,
			"the address of the cluster is empty; set PATHWAYS_ADDRESS, or start a cluster with pathways up")
	}
	secret, err := cluster.SecretOf(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	pool := shm.NewPool(shm.Config{Client: true})
	return Open(pool, func(notify client.Notify) (client.Cluster, error) {
		return cluster.Connect(ctx, cluster.ClientConfig{
			Address: address, Secret: secret, Name: fmt.Sprintf("%s:%d", host, os.Getpid()),
			Heartbeat: heartbeat, Silence: silence, Software: "pathways", Pool: pool,
		}, notify)
	})
}

// Open begins a session on the cluster that connect returns, such as
// cluster.Local.Connect. Session.Pool returns pool.
func Open(pool *shm.Pool, connect func(client.Notify) (client.Cluster, error)) (*Session, error) {
	s := &Session{pool: pool, ends: map[uint64]*future{}}
	s.none.L = &s.mu
	var err error
	s.cluster, err = connect(s.ended)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Devices returns the number of the session's devices, which are 0, 1, 2 …
func (s *Session) Devices() int { return len(s.cluster.Devices()) }

// Pool returns the pool of host memory for arrays in transit.
func (s *Session) Pool() *shm.Pool { return s.pool }

// Lost returns nil while the session is alive, and then the reason why it ended.
func (s *Session) Lost() error { return s.cluster.Lost() }

// Close ends the session: all its arrays are freed and all operations in flight fail.
// When it returns, no caller's memory is read for a Put any more, no device reads lent
// memory, and data that arrived for cancelled reads has been freed.
func (s *Session) Close() error {
	err := s.cluster.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.ends) > 0 || s.owed > 0 {
		s.none.Wait()
	}
	return err
}

// begin returns a future and its token. then is called once when it ends, before any
// waiter continues; it must not block.
func (s *Session) begin(then func()) (uint64, *future) {
	f := &future{done: make(chan struct{}), then: then}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token++
	s.ends[s.token] = f
	return s.token, f
}

// beginAll returns n futures with consecutive tokens, of which first is the first.
func (s *Session) beginAll(n int) (first uint64, all []*future) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		f := &future{done: make(chan struct{})}
		s.token++
		s.ends[s.token] = f
		all = append(all, f)
	}
	return s.token - uint64(n) + 1, all
}

// undo removes the future of an operation that was not submitted.
func (s *Session) undo(token uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(token)
}

// forget removes an operation from those in flight. The caller holds mu.
func (s *Session) forget(token uint64) {
	delete(s.ends, token)
	s.none.Broadcast()
}

// owe adds n to the count of what Close waits for apart from operations.
func (s *Session) owe(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owed += n
	s.none.Broadcast()
}

// ended implements client.Notify.
func (s *Session) ended(batch []client.Ended) {
	for _, e := range batch {
		s.mu.Lock()
		f := s.ends[e.Token]
		s.mu.Unlock()
		if f == nil {
			continue
		}
		f.err = e.Err
		if f.then != nil {
			f.then()
		}
		close(f.done)
		s.mu.Lock()
		s.forget(e.Token)
		s.mu.Unlock()
	}
}

// hasSucceeded reports whether the operation has succeeded.
func (f *future) hasSucceeded() bool {
	select {
	case <-f.done:
		return f.err == nil
	default:
		return false
	}
}

func (f *future) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	default:
	}
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return status.New(status.Cancelled, "the wait was cancelled: %w", context.Cause(ctx))
	}
}
