package cluster_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/client"
	core "github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// observed is a session with a cluster of one worker, which ends with it.
type observed struct {
	client.Cluster
	local  *core.Local
	driver device.Driver
	freed  atomic.Int64          // objects that were freed
	lost   atomic.Pointer[error] // nil: what the cluster says
	island *sim.Island           // whose time passes once the session is closed: what is under way ends
}

func observe(ctx context.Context, o sim.Options, notify client.Notify) (_ *observed, err error) {
	s := &observed{island: o.Island}
	if s.driver, err = sim.Open(o); err != nil {
		return nil, err
	}
	if s.local, err = (core.InProcess{Drivers: []device.Driver{s.driver}}).Start(ctx); err != nil {
		return nil, err
	}
	s.Cluster, err = s.local.Connect(ctx, "client", notify)
	return s, err
}

func (s *observed) Free(objects []uint64) {
	s.freed.Add(int64(len(objects)))
	s.Cluster.Free(objects)
}

func (s *observed) Lost() error {
	if err := s.lost.Load(); err != nil {
		return *err
	}
	return s.Cluster.Lost()
}

func (s *observed) Close() error {
	return meanwhile(s.island, func() error {
		err := s.Cluster.Close()
		s.local.Close()
		return errors.Join(err, s.driver.Close())
	})
}

// meanwhile lets time pass on an island until a call returns.
func meanwhile(is *sim.Island, call func() error) error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	for {
		select {
		case err := <-done:
			return err
		default:
			is.Advance(time.Second)
			runtime.Gosched()
		}
	}
}
