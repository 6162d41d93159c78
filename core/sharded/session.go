// Package sharded is a session on a cluster as Go programs use it: arrays with a
// shard on each of their devices, programs, graphs of them, and waits.
//
// It is client.Cluster with futures instead of tokens and shapes instead of
// numbers. Nothing that submits waits for the other side; what it makes is pending
// until Wait says that it is there, or why it never will be, and may be given to
// programs at once. A failure stays with all that depends on it.
//
// # Ownership
//
// An Array is its session's. Free gives its memory on the devices back, when what
// was submitted before is through with it; Close gives back everything. Blocks that
// Shard gives are whoever's until they are released, also after Close.
//
// # Concurrency
//
// Everything may be called from any goroutine. Every wait ends with its context,
// with what it waits for, or with the session.
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
	ends  map[uint64]*future // under way
	owed  int                // shards lent to devices, and reads given up that have yet to end
	none  sync.Cond          // is, of either
}

// future is an operation that ends.
type future struct {
	done chan struct{}
	err  error // written before done closes
	then func()
}

// How often a session says that it lives, and how long the others may be silent.
const (
	heartbeat = time.Second
	silence   = 10 * time.Second
)

// Dial begins a session on the cluster whose controller is at an address, tcp:… or
// unix:…, with the secret that the environment names; see cluster.SecretOf.
//
// Errors: INVALID_ARGUMENT for no address, UNAVAILABLE where nobody is there, and the
// controller's refusal.
func Dial(ctx context.Context, address string) (*Session, error) {
	if address == "" {
		return nil, status.New(status.InvalidArgument, "there is no address of a cluster; set PATHWAYS_ADDRESS, or start one with pathways up")
	}
	secret, err := cluster.SecretOf(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	pool := shm.NewPool(shm.Config{})
	return Open(pool, func(notify client.Notify) (client.Cluster, error) {
		return cluster.Connect(ctx, cluster.ClientConfig{
			Address: address, Secret: secret, Name: fmt.Sprintf("%s:%d", host, os.Getpid()),
			Heartbeat: heartbeat, Silence: silence, Software: "pathways", Pool: pool,
		}, notify)
	})
}

// Open begins a session by whatever connects, such as cluster.Local.Connect. Pool is
// the memory that Pool gives.
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

// Devices is how many devices the session has: they are 0, 1, 2 …
func (s *Session) Devices() int { return len(s.cluster.Devices()) }

// Pool is the host memory of the session's arrays on their way.
func (s *Session) Pool() *shm.Pool { return s.pool }

// Lost is nil as long as the session lives, then why it does not.
func (s *Session) Lost() error { return s.cluster.Lost() }

// Close ends the session: all its arrays go, and what is under way fails. When it
// returns, nothing reads what was to be put any more, no device what was lent, and
// what came for nobody has been given back.
func (s *Session) Close() error {
	err := s.cluster.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.ends) > 0 || s.owed > 0 {
		s.none.Wait()
	}
	return err
}

// begin makes a future with its token. Then is called once when it ends, before who
// waits for it; it must not wait.
func (s *Session) begin(then func()) (uint64, *future) {
	f := &future{done: make(chan struct{}), then: then}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token++
	s.ends[s.token] = f
	return s.token, f
}

// beginAll makes futures whose tokens are in a row, from the one that it gives.
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

// undo forgets the future of what was not submitted.
func (s *Session) undo(token uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(token)
}

// forget takes an operation out of those under way. The caller holds mu.
func (s *Session) forget(token uint64) {
	delete(s.ends, token)
	s.none.Broadcast()
}

// owe counts what Close waits for beside operations.
func (s *Session) owe(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owed += n
	s.none.Broadcast()
}

// ended is the session's client.Notify.
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

// ready says that the operation has ended well.
func (f *future) ready() bool {
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
		return status.New(status.Cancelled, "the wait was given up: %w", context.Cause(ctx))
	}
}
