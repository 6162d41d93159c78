package pjrt

// #include "driver.h"
import "C"

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/device"
)

var _ device.Partitioner = (*Client)(nil)

// Partition implements device.Partitioner, for CPU devices.
func (c *Client) Partition(ctx context.Context, p device.Program, options []byte, devices int) (*device.Part, error) {
	module, err := c.partitioned(ctx, p, options, devices)
	if err != nil {
		return nil, err
	}
	part, err := partOf(module, options)
	if err != nil {
		module.Release()
	}
	return part, err
}

// partOf returns what each device of a partitioned program runs.
func partOf(module device.Bytes, options []byte) (*device.Part, error) {
	p, err := spmd.Rewrite(module.Data)
	if err != nil {
		return nil, err
	}
	one, err := p.OneDevice(options)
	if err != nil {
		return nil, err
	}
	part := &device.Part{Program: device.Program{Format: plainHLO, Code: p.Module, Partitioned: true}, Options: one,
		Collective: len(p.Collectives) > 0, Module: module}
	for _, c := range p.Constants {
		part.Constants = append(part.Constants, device.Constant{Shape: c.Shape, CopyTo: c.CopyTo})
	}
	return part, nil
}

// partitioned compiles a program for CPU devices that need not exist: those of a client that is made for this, and on
// which nothing runs, so that LLVM need not optimize. Such a client has a thread for each device; a few are kept for
// the next programs with the same number of devices.
func (c *Client) partitioned(ctx context.Context, p device.Program, options []byte, devices int) (module device.Bytes,
	err error) {
	if ctx.Err() != nil {
		return module, waitEnded(ctx)
	}
	if c.plugin.Kind() != "cpu" {
		return module, status.New(status.Unimplemented, "a program that spans workers can be split for CPU devices only, "+
			"and these are of kind %s: join the workers' devices (pathways worker --nodes), or let each worker run a program "+
			"of its own (pathways.pipeline, slices)", c.plugin.Kind())
	}
	if devices < 1 || devices > maxCPUDevices {
		return module, status.New(status.InvalidArgument, "a program for %d devices: ask for 1 to %d", devices, maxCPUDevices)
	}
	if err := c.hold(); err != nil {
		return module, err
	}
	defer c.drop()
	s, err := c.stages.get(c, devices)
	if err != nil {
		return module, err
	}
	defer c.stages.put(s)
	loaded, err := s.client.compile(p, compileoptions.ModuleOnly(options))
	if err != nil {
		return module, err
	}
	api := c.plugin.api
	defer func() { _ = c.plugin.check(C.pwdrv_loaded_destroy(api, loaded)) }()
	var compiled *C.PJRT_Executable
	if err := c.plugin.check(C.pwdrv_loaded_executable(api, loaded, &compiled)); err != nil {
		return module, err
	}
	defer func() { _ = c.plugin.check(C.pwdrv_executable_destroy(api, compiled)) }()
	return c.plugin.optimized(compiled, len(p.Code))
}

// How many idle stages are kept, and for how long.
const (
	maxStages = 2
	stageIdle = 30 * time.Second
)

// stage is a client on which programs for so many devices are compiled.
type stage struct {
	devices int
	made    sync.Once
	client  *Client
	err     error
	users   int       // guarded by stages.mu
	since   time.Time // no users; guarded by stages.mu
}

// stages are a driver's stages, the most recently used first.
type stages struct {
	mu     sync.Mutex
	all    []*stage
	closed bool
	timer  *time.Timer
}

// get returns the stage for so many devices; put takes it back.
func (s *stages) get(of *Client, devices int) (*stage, error) {
	s.mu.Lock()
	i := slices.IndexFunc(s.all, func(one *stage) bool { return one.devices == devices })
	one := &stage{devices: devices}
	if i >= 0 {
		one = s.all[i]
		s.all = slices.Delete(s.all, i, i+1)
	}
	s.all = slices.Insert(s.all, 0, one)
	one.users++
	s.mu.Unlock()
	one.made.Do(func() {
		o := ClientOptions{Devices: devices, Values: maps.Clone(of.options.Values)}
		delete(o.Values, cpuDevices)
		one.client, one.err = of.plugin.Create(o)
	})
	if one.err != nil {
		s.put(one)
		return nil, status.Wrap(one.err, "cannot partition for %d devices", devices)
	}
	return one, nil
}

func (s *stages) put(one *stage) {
	s.mu.Lock()
	one.users--
	one.since = time.Now()
	if s.timer == nil && !s.closed {
		s.timer = time.AfterFunc(stageIdle, s.sweep)
	}
	gone := s.takeIdle(one.since.Add(-stageIdle))
	s.mu.Unlock()
	closeAll(gone)
}

// sweep closes stages that have been idle for long.
func (s *stages) sweep() {
	s.mu.Lock()
	gone := s.takeIdle(time.Now().Add(-stageIdle))
	if s.timer = nil; len(s.all) > 0 && !s.closed {
		s.timer = time.AfterFunc(stageIdle, s.sweep)
	}
	s.mu.Unlock()
	closeAll(gone)
}

// takeIdle removes stages without users that are too old, too many, or could not be made.
func (s *stages) takeIdle(before time.Time) (gone []*stage) {
	kept := s.all[:0]
	for _, one := range s.all {
		if one.users == 0 && (s.closed || one.err != nil || len(kept) >= maxStages || one.since.Before(before)) {
			gone = append(gone, one)
		} else {
			kept = append(kept, one)
		}
	}
	clear(s.all[len(kept):])
	s.all = kept
	return gone
}

func closeAll(gone []*stage) {
	for _, one := range gone {
		if one.client != nil {
			_ = one.client.Close() // nothing of it is open
		}
	}
}

// close closes the idle stages; put closes the others.
func (s *stages) close() {
	s.mu.Lock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	gone := s.takeIdle(time.Time{})
	s.mu.Unlock()
	closeAll(gone)
}
