package embedded

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/store"
)

// Program is a compiled computation as the core sees it: a program of one node.
type Program struct {
	Name    string
	Devices []int // local devices, one a row of a run
	// Collective: its shards wait for each other, so the order of runs matters.
	Collective bool
	Outputs    []int64 // bytes of a shard, by output
	// The source, kept for as long as the program so that it can be compiled
	// again elsewhere. Empty for a program that was loaded from its serialized
	// form.
	Format string
	Code   []byte
}

// kept is a Program with what a run needs at hand.
type kept struct {
	Program
	set   schedule.DeviceSet
	specs []store.Spec
}

// Session is one client's connection to the system.
type Session struct {
	id     uint32
	island *executor.Island
	table  *store.Table
	closed atomic.Bool
	// single is the placement and the set of one device each.
	single []store.Placement
	sets   []schedule.DeviceSet
	*local // its slices

	mu       sync.RWMutex // guards the rest
	programs map[uint64]*kept
	last     uint64 // program number given last; none is given twice
}

// begin makes a session on an island of devices of these kinds, whose objects are
// counted in table.
//
// Errors: ALREADY_EXISTS where table has an owner with this id, INVALID_ARGUMENT for
// no devices.
func begin(id uint32, name string, kinds []string, island *executor.Island, table *store.Table) (*Session, error) {
	s := &Session{id: id, island: island, table: table, programs: map[uint64]*kept{}}
	var err error
	if s.local, err = newLocal(kinds); err != nil {
		return nil, err
	}
	for d := range kinds {
		p, err := table.Place([]int{d})
		if err != nil {
			return nil, err
		}
		s.single = append(s.single, p)
		s.sets = append(s.sets, schedule.Devices(d))
	}
	if err := table.AddOwner(store.Owner(id), name); err != nil {
		return nil, err
	}
	return s, nil
}

// AddProgram makes a program known and gives its id, never 0.
//
// Errors: INVALID_ARGUMENT where a device is not of the session.
func (s *Session) AddProgram(p Program) (uint64, error) {
	for _, d := range p.Devices {
		if d < 0 || d >= len(s.single) {
			return 0, status.New(status.InvalidArgument, "program %s names device %d; this session has devices 0 to %d", p.Name, d, len(s.single)-1)
		}
	}
	place, err := s.table.Place(p.Devices)
	if err != nil {
		return 0, err
	}
	q := &kept{Program: p, set: schedule.Devices(p.Devices...)}
	for _, bytes := range p.Outputs {
		q.specs = append(q.specs, store.Spec{ShardBytes: bytes, Placement: place, Label: p.Name})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.programs[s.last] = q
	return s.last, nil
}

// Forget lets go of a program. Runs of it that have their turn go on.
func (s *Session) Forget(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.programs, id)
}

// Run is one execution of a program.
type Run struct {
	Program uint64
	Only    int      // the one device to run a portable program on, or -1
	After   []uint64 // gangs that have yet to be launched and whose results are inputs
	Reads   []uint64 // gangs of which each device reads what it made there
	Nested  bool     // made inside a host callback of a gang that may hold its turn
}

// Submit gives a run its place and its results their objects, one an output, in
// objects, which has the program's number of outputs as its length. An error
// leaves nothing behind: no turn is held and objects name nothing.
//
// Errors: NOT_FOUND for a program that is not there, INVALID_ARGUMENT for a device
// that is not, RESOURCE_EXHAUSTED where the limit of a device's memory leaves no
// room, UNAVAILABLE after Close.
func (s *Session) Submit(r Run, objects []uint64) (executor.Turn, error) {
	s.mu.RLock()
	p := s.programs[r.Program]
	s.mu.RUnlock()
	switch {
	case p == nil:
		return executor.Turn{}, status.New(status.NotFound, "program %d is not known to this session; was its executable deleted?", r.Program)
	case len(objects) != len(p.specs):
		return executor.Turn{}, status.New(status.Internal, "program %s has %d outputs, and room was given for %d", p.Name, len(p.specs), len(objects))
	case r.Only >= len(s.single):
		return executor.Turn{}, status.New(status.InvalidArgument, "device %d is not of this session, which has %s", r.Only, status.Count(len(s.single), "device"))
	}
	specs, g := p.specs, schedule.Gang{Session: s.id, Devices: p.set, After: r.After, Reads: r.Reads, Collective: p.Collective}
	if r.Only >= 0 {
		g.Devices = s.sets[r.Only]
		specs = slices.Clone(specs)
		for i := range specs {
			specs[i].Placement = s.single[r.Only]
		}
	}
	if err := s.make(specs, objects); err != nil {
		return executor.Turn{}, err
	}
	turn, err := s.island.Enter(&g, r.Nested)
	if err != nil {
		for _, id := range objects {
			s.table.Free(id)
		}
	}
	return turn, err
}

// make makes one object a spec, or none with an error.
func (s *Session) make(specs []store.Spec, objects []uint64) error {
	if s.closed.Load() {
		return executor.ErrClosed
	}
	return s.table.Create(store.Owner(s.id), specs, objects)
}

// Place makes the object of a buffer that is made alone, on one device. Errors
// are those of Submit.
func (s *Session) Place(device int, bytes int64) (uint64, error) {
	if device < 0 || device >= len(s.single) {
		return 0, status.New(status.InvalidArgument, "device %d is not of this session, which has %s", device, status.Count(len(s.single), "device"))
	}
	specs := [1]store.Spec{{ShardBytes: bytes, Placement: s.single[device], Label: "device_put"}}
	var object [1]uint64
	err := s.make(specs[:], object[:])
	return object[0], err
}

// Array makes the object of an array that no run makes, with a shard of so many
// bytes on each of devices. Errors are those of Submit.
func (s *Session) Array(devices []int, bytes int64, label string) (uint64, error) {
	for _, d := range devices {
		if d < 0 || d >= len(s.single) {
			return 0, status.New(status.InvalidArgument, "device %d is not of this session, which has %s", d, status.Count(len(s.single), "device"))
		}
	}
	place, err := s.table.Place(devices)
	if err != nil {
		return 0, err
	}
	specs := [1]store.Spec{{ShardBytes: bytes, Placement: place, Label: label}}
	var object [1]uint64
	err = s.make(specs[:], object[:])
	return object[0], err
}

// Free gives up objects whose last shard has gone.
func (s *Session) Free(object uint64) { s.table.Free(object) }

// Island is where the session's gangs are ordered.
func (s *Session) Island() *executor.Island { return s.island }

// Memory gives the bytes in use on a device and its limit.
func (s *Session) Memory(device int) store.Usage { return s.table.Device(device) }

// Objects is the number of objects alive.
func (s *Session) Objects() int { return s.table.Len() }

// Stop ends submission: what waits fails, what is being launched is waited for,
// and slices go.
func (s *Session) Stop() {
	s.local.end(executor.ErrClosed)
	s.island.Close()
}

// Close ends the session: it stops, and all its objects go.
func (s *Session) Close() {
	s.closed.Store(true)
	s.Stop()
	s.table.DropOwner(store.Owner(s.id))
}
