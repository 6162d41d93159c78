package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

// gang is one run of a program on all its devices. The island's lock guards it.
type gang struct {
	prog   *parsed
	seq    uint64 // of its island
	id     int32
	joins  bool  // whether it has shards of other members
	key    joint // of Island.launch, when it joins
	print  string
	cost   time.Duration
	ids    []int
	shards []*shard // by place in the program; nil until its member comes
	came   int      // number of shards that are not nil
	here   int      // number of shards that occupy their device and have their inputs
	last   *finish  // of shards that start now; more may join it
}

// shard is one device's part of a gang.
type shard struct {
	gang    *gang
	on      *dev
	in      []*storage
	inputs  []*event // of in
	out     []*storage
	done    event
	queued  bool
	since   time.Duration // queued
	missing int           // number of inputs that are not ready
	temp    bool          // whether temporary bytes are charged
	over    bool
	finish  *finish  // once it has started
	brought [][]byte // by Program.Calls
	err     error    // its final error, if known when it starts
	late    error    // an error that occurred while its results were made
}

// finish is the end of shards that started at the same time.
type finish struct {
	gang   *gang
	shards []*shard
	entry  *entry
	made   bool // whether commit has begun
}

// gang returns the gang that this execution makes or joins. The caller holds the island's
// lock.
func (x *executable) gang(r device.Run) (*gang, error) {
	d := x.drv
	joins := x.prog.gang && len(x.ids) > len(x.local)
	key := joint{d.member.Epoch, int(r.LaunchID)}
	if joins {
		if len(d.is.losses) > 0 {
			for _, id := range x.ids {
				if err := d.is.losses[joint{d.member.Epoch, id}]; err != nil {
					return nil, err
				}
			}
		}
		if was := d.is.launch[key]; was != nil {
			if was.print != x.print {
				return nil, status.New(status.InvalidArgument, "launch %d is program %q on other members", r.LaunchID,
					was.prog.Name)
			}
			if was.shards[x.place[0]] != nil {
				return nil, status.New(status.InvalidArgument,
					"launch %d was executed by this member before: want each number once in an epoch", r.LaunchID)
			}
			return was, nil
		}
	}
	d.is.seq++
	g := &gang{prog: x.prog, seq: d.is.seq, id: r.LaunchID, joins: joins, key: key, print: x.print, ids: x.ids,
		cost: x.prog.cost, shards: make([]*shard, len(x.ids))}
	if j := d.options.Jitter; j > 0 {
		g.cost += time.Duration(d.is.rng.Int64N(int64(j)))
	}
	return g, nil
}

// advance lets the next computation of the queue occupy the device.
func (d *dev) advance() {
	for d.head == nil && len(d.queue) > 0 {
		s := d.queue[0]
		d.queue[0] = nil
		d.queue = d.queue[1:]
		if s.over {
			continue
		}
		d.head = s
		s.missing = 1
		for _, e := range s.inputs {
			if !e.fired.Load() {
				s.missing++
				e.when(s.arrive)
			}
		}
		s.arrive()
	}
}

// arrive counts an input that is ready, and starts what can start.
func (s *shard) arrive() {
	if s.missing--; s.missing > 0 || s.over {
		return
	}
	g := s.gang
	if !g.prog.gang {
		g.start(s)
		return
	}
	if g.here++; g.here == len(g.shards) {
		g.start(g.shards...)
	}
}

// start runs shards: it determines whether they can run, and schedules their end.
func (g *gang) start(shards ...*shard) {
	var failed error
	cost := g.cost
	for _, s := range shards {
		s.err = s.on.runs.next()
		if s.err == nil {
			s.err = g.prog.fail
		}
		early := s.on.lost
		for _, e := range s.inputs {
			if early == nil {
				early = e.err
			}
		}
		if early == nil && g.prog.Temp > 0 {
			if early = s.on.charge(s.on.mems[0], g.prog.Temp); early == nil {
				s.temp = true
			}
		}
		if early != nil { // the shard never runs
			s.err, cost = early, 0
		}
		if failed == nil {
			failed = s.err
		}
		for k, out := range s.out {
			in := out.takes
			out.inPlace = in != nil && g.prog.inPlace[k] && in.refs == 1 && !in.shared && in.data != nil
		}
	}
	if g.prog.gang && failed != nil {
		for _, s := range shards {
			if s.err == nil {
				s.err = failed
			}
		}
	}
	is := shards[0].on.drv.is
	begins := is.moment()
	for _, s := range shards {
		begins = max(begins, s.since)
	}
	if s := shards[0]; len(g.prog.Calls) > 0 && s.err == nil { // of one device
		is.set(begins+cost, nil, s.meet)
		return
	}
	if f := g.last; f != nil && !f.entry.taken && f.entry.at == begins+cost {
		f.shards = append(f.shards, shards...)
	} else {
		g.last = &finish{gang: g, shards: shards}
		g.last.entry = is.set(begins+cost, g.last.compute, g.last.commit)
	}
	for _, s := range shards {
		s.finish = g.last
	}
}

// compute makes the results, without the lock: only the shards' own storages
// are written, and their inputs are held.
func (f *finish) compute() {
	p := f.gang.prog
	for k, r := range p.Results {
		var sum []byte
		t, n := p.results[k].Shape.DType, p.results[k].Shape.HostBytes()
		for _, s := range f.shards {
			if s.err != nil || s.over {
				continue
			}
			out := s.out[k]
			switch brought := s.brings(k); {
			case brought != nil:
				out.data = brought
			case r.Op == "zeros":
			case r.Op == "all-reduce":
				if sum == nil {
					args := make([][]byte, len(f.gang.shards))
					for i, s := range f.gang.shards {
						args[i] = s.in[r.Args[0]].data
					}
					sum = make([]byte, n)
					r.compute(t, sum, args...)
				}
				out.data, out.shared = sum, true
			default:
				args := make([][]byte, len(r.Args))
				for i, a := range r.Args {
					args[i] = s.in[a].data
				}
				if out.inPlace {
					out.data = out.takes.data
				} else {
					out.data = make([]byte, n)
				}
				r.compute(t, out.data, args...)
			}
		}
	}
}

// commit ends the shards.
func (f *finish) commit() {
	f.made = true
	for _, s := range f.shards {
		if s.err == nil {
			s.err = s.late
		}
		s.end(s.err)
	}
}

// end ends a shard, in any state.
func (s *shard) end(err error) {
	if s.over {
		return
	}
	if f := s.finish; f != nil && f.entry.taken && !f.made { // compute is using it
		s.late = err
		return
	}
	s.over = true
	d, g := s.on, s.gang
	if s.temp {
		d.mems[0].inUse -= g.prog.Temp
	}
	for _, out := range s.out {
		if err != nil {
			out.uncharge()
			out.data = nil
		} else if out.inPlace && out.takes.done != nil { // the host's bytes live on in the output
			out.done, out.takes.done = out.takes.done, nil
			d.drv.borrowed[out] = struct{}{}
		}
		out.takes = nil
		out.release()
	}
	for _, in := range s.in {
		in.release()
	}
	s.in, s.inputs, s.out = nil, nil, nil
	d.drv.pending--
	if d.drv.gangs[g]--; d.drv.gangs[g] == 0 {
		delete(d.drv.gangs, g)
	}
	s.done.fire(err)
	if d.head == s {
		d.head = nil
		d.advance()
	}
}

// abort ends all shards of the gang that are not done, on all members.
func (g *gang) abort(is *Island, err error) {
	if is.launch[g.key] == g {
		delete(is.launch, g.key)
	}
	for _, s := range g.shards {
		if s != nil {
			s.end(err)
		}
	}
}

// String names the gang in errors.
func (g *gang) String() string { return fmt.Sprintf("launch %d of %q", g.id, g.prog.Name) }

// Hang returns nil if no gangs are deadlocked, and otherwise an ABORTED error that names
// each gang of a cycle, the devices that it occupies and the device that it waits for. It
// does not wait for anything; call Settle first, so that all other work has ended.
func (is *Island) Hang() error {
	is.mu.Lock()
	defer is.mu.Unlock()
	return is.hang()
}

func (is *Island) hang() error {
	done := map[*gang]bool{} // gangs that lead to no cycle
	for d := range is.drivers {
		for _, v := range d.devs {
			if v.head == nil || done[v.head.gang] {
				continue
			}
			if circle := v.head.gang.circle(nil, done); circle != nil {
				var text []string
				for i, g := range circle {
					next := circle[(i+1)%len(circle)]
					text = append(text, fmt.Sprintf("%v holds devices %v and waits for %v", g, g.occupied(), next))
				}
				slices.Sort(text)
				return status.New(status.Aborted,
					"gangs wait for each other: %s. Launch gangs that share devices in one order on all of them",
					strings.Join(text, "; "))
			}
		}
	}
	return nil
}

// circle follows the waits of a gang and returns the gangs of a cycle, or nil.
func (g *gang) circle(path []*gang, done map[*gang]bool) []*gang {
	if i := slices.Index(path, g); i >= 0 {
		return path[i:]
	}
	if done[g] {
		return nil
	}
	path = append(path, g)
	for _, s := range g.shards {
		if s == nil || s.over || s.finish != nil {
			continue
		}
		if head := s.on.head; head != nil && head != s && s.queued && head.gang != g {
			if c := head.gang.circle(path, done); c != nil {
				return c
			}
		}
		for _, e := range s.inputs {
			if o := e.owner; o != nil && s.on.head == s && o != g {
				if c := o.circle(path, done); c != nil {
					return c
				}
			}
		}
	}
	done[g] = true
	return nil
}

// occupied returns the ids of the devices that the gang occupies.
func (g *gang) occupied() (ids []int) {
	for _, s := range g.shards {
		if s != nil && s.on.head == s {
			ids = append(ids, s.on.id)
		}
	}
	return ids
}
