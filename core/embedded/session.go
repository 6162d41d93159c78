package embedded

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
)

// Program is a compiled computation as the core sees it.
type Program struct {
	Name    string
	Devices []int // local devices, one per row of a run
	// Collective reports whether its shards wait for each other, so that the order of
	// runs matters.
	Collective bool
	Outputs    []int64 // bytes of a shard, by output
	Temp       int64   // bytes that it takes on each device while it runs, beside arguments and outputs
	// CodeBytes is the memory that the program itself takes on each device, see code.
	CodeBytes int64
}

// kept is a Program with values derived from it that each run needs.
type kept struct {
	Program
	set   schedule.DeviceSet
	place ledger.Placement
	specs []ledger.Spec
	code  *code
}

// Session is one client's connection to the system.
type Session struct {
	id     uint32
	island *executor.Island
	memory *account
	closed atomic.Bool
	// single and sets hold the placement and the set of each single device.
	single []ledger.Placement
	sets   []schedule.DeviceSet
	*local // its slices

	mu       sync.RWMutex // guards the rest
	programs map[uint64]*kept
	last     uint64 // ID of the last program; IDs are not reused
}

// begin returns a session on an island of devices of these kinds, whose objects are
// counted in memory.
//
// Errors: ALREADY_EXISTS if memory has an owner with this id, INVALID_ARGUMENT if there
// are no devices.
func begin(id uint32, name string, kinds []string, island *executor.Island, memory *account) (*Session, error) {
	s := &Session{id: id, island: island, memory: memory, programs: map[uint64]*kept{}}
	var err error
	if s.local, err = newLocal(kinds); err != nil {
		return nil, err
	}
	if err := memory.AddOwner(ledger.Owner(id), name); err != nil {
		return nil, err
	}
	for d := range kinds {
		p, err := memory.Place(ledger.Owner(id), []int{d})
		if err != nil {
			return nil, err
		}
		s.single = append(s.single, p)
		s.sets = append(s.sets, schedule.Devices(d))
	}
	return s, nil
}

// AddProgram registers a program and returns its ID, which is never 0.
//
// Errors: INVALID_ARGUMENT if a device is not one of the session's.
func (s *Session) AddProgram(p Program) (uint64, error) {
	for _, d := range p.Devices {
		if d < 0 || d >= len(s.single) {
			return 0, status.New(status.InvalidArgument, "program %s names device %d; this session has devices 0 to %d", p.Name,
				d, len(s.single)-1)
		}
	}
	place, err := s.memory.Place(ledger.Owner(s.id), p.Devices)
	if err != nil {
		return 0, err
	}
	q := &kept{Program: p, set: schedule.Devices(p.Devices...), place: place,
		code: &code{bytes: max(0, p.CodeBytes), label: "code of " + p.Name}}
	for _, bytes := range p.Outputs {
		q.specs = append(q.specs, ledger.Spec{ShardBytes: bytes, Placement: place, Label: p.Name})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.programs[s.last] = q
	return s.last, nil
}

// Forget removes a program. Runs of it that were submitted before continue.
func (s *Session) Forget(id uint64) {
	s.mu.Lock()
	p := s.programs[id]
	delete(s.programs, id)
	s.mu.Unlock()
	if p != nil {
		s.memory.Forget(p.code)
	}
}

// Run is one execution of a program.
type Run struct {
	Program uint64
	Only    int      // the one device to run a portable program on, or -1
	After   []uint64 // gangs that have yet to be launched and whose results are inputs
	Reads   []uint64 // gangs of which each device reads what it made there
	Nested  bool     // submitted inside a host callback of a gang that may hold its turn
	Taken   int64    // bytes on each device of the arguments whose memory the outputs take over
}

// Admitted is a run's entry in the ledger, if memory has a limit.
type Admitted struct {
	Objects []uint64 // one for each output; the caller makes the list
	// Computation is what Free takes when the run has ended; 0 if there is nothing to free.
	Computation uint64
}

// Submit assigns a run its place in the order and creates one object per output. It stores their IDs in out, which has
// room for the program's number of outputs. On an error nothing remains: the run has no turn and the objects do not
// exist.
//
// Errors: NOT_FOUND for an unknown program, INVALID_ARGUMENT for an unknown device,
// RESOURCE_EXHAUSTED if the outputs exceed a device's memory limit, which CanWait tells
// apart, UNAVAILABLE after Close.
func (s *Session) Submit(r Run, out *Admitted) (executor.Turn, error) {
	objects := out.Objects
	s.mu.RLock()
	p := s.programs[r.Program]
	s.mu.RUnlock()
	switch {
	case p == nil:
		return executor.Turn{},
			status.New(status.NotFound, "program %d is not known to this session; was its executable deleted?", r.Program)
	case len(objects) != len(p.specs):
		return executor.Turn{}, status.New(status.Internal, "program %s has %d outputs, and the caller has room for %d",
			p.Name, len(p.specs), len(objects))
	case r.Only >= len(s.single):
		return executor.Turn{}, status.New(status.InvalidArgument, "device %d is not in this session, which has %s", r.Only,
			status.Count(len(s.single), "device"))
	}
	g := schedule.Gang{Session: s.id, Devices: p.set, After: r.After, Reads: r.Reads, Collective: p.Collective}
	q := ledger.Request{Specs: p.specs, Placement: p.place, Taken: r.Taken, Temp: p.Temp}
	devices := p.Devices
	if r.Only >= 0 {
		devices = []int{r.Only}
		g.Devices = s.sets[r.Only]
		q.Placement, q.Specs = s.single[r.Only], slices.Clone(q.Specs)
		for i := range q.Specs {
			q.Specs[i].Placement = q.Placement
		}
	}
	var err error
	if out.Computation, err = s.admit(q, p.code, devices, objects); err != nil {
		return executor.Turn{}, err
	}
	turn, err := s.island.Enter(&g, r.Nested)
	if err != nil {
		for _, id := range objects {
			s.memory.Free(id)
		}
		s.memory.Free(out.Computation)
	}
	return turn, err
}

// admit has a request counted, or returns an error.
func (s *Session) admit(r ledger.Request, c *code, devices []int, objects []uint64) (computation uint64, err error) {
	if s.closed.Load() {
		return 0, executor.ErrClosed
	}
	return s.memory.Admit(ledger.Owner(s.id), r, c, devices, objects)
}

// array creates the object of an array that no run makes.
func (s *Session) array(place ledger.Placement, bytes int64, label string) (uint64, error) {
	specs := [1]ledger.Spec{{ShardBytes: bytes, Placement: place, Label: label}}
	var object [1]uint64
	_, err := s.admit(ledger.Request{Specs: specs[:], Placement: place}, nil, nil, object[:])
	return object[0], err
}

// Place creates the object of a single buffer on one device, which no run makes. Errors
// are those of Submit.
func (s *Session) Place(device int, bytes int64) (uint64, error) {
	if device < 0 || device >= len(s.single) {
		return 0, status.New(status.InvalidArgument, "device %d is not in this session, which has %s", device,
			status.Count(len(s.single), "device"))
	}
	return s.array(s.single[device], bytes, "device_put")
}

// Array creates the object of an array that no run makes, with a shard of the given
// number of bytes on each of devices. Errors are those of Submit.
func (s *Session) Array(devices []int, bytes int64, label string) (uint64, error) {
	for _, d := range devices {
		if d < 0 || d >= len(s.single) {
			return 0, status.New(status.InvalidArgument, "device %d is not in this session, which has %s", d,
				status.Count(len(s.single), "device"))
		}
	}
	place, err := s.memory.Place(ledger.Owner(s.id), devices)
	if err != nil {
		return 0, err
	}
	return s.array(place, bytes, label)
}

// Free frees an object whose last shard was freed, or what a run took that has ended.
func (s *Session) Free(object uint64) { s.memory.Free(object) }

// Island returns the island that orders the session's gangs.
func (s *Session) Island() *executor.Island { return s.island }

// Memory returns the bytes in use on a device, and its limit.
func (s *Session) Memory(device int) ledger.Usage { return s.memory.Device(device) }

// Code returns the bytes of programs' code on a device, which are among those in use.
func (s *Session) Code(device int) int64 { return s.memory.Code(device) }

// Objects returns the number of live objects.
func (s *Session) Objects() int { return s.memory.Len() }

// Stop ends submission: queued runs fail, Stop blocks until launches in progress have
// returned, and all slices are released.
func (s *Session) Stop() {
	s.local.end(executor.ErrClosed)
	s.island.Close()
}

// Close ends the session: it calls Stop and frees all of the session's objects.
func (s *Session) Close() {
	s.closed.Store(true)
	s.Stop()
	s.memory.DropOwner(ledger.Owner(s.id))
}
