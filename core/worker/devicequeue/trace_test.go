package devicequeue

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/tracetest"
)

// TestTraces runs the scripts of testdata/traces. Each line of "steps" is what happens, and
// the answer is the same line with what the device is to do then beside it.
//
//	new [window=N] [memory=N]
//	steps
//
// Parts, by the number of their gang; they may say "session 2":
//
//	run 1 [reads 5,6] [donates 5] [makes 7,8] [bytes 16] [alone] [together] [pooled] [calls]
//	put 2 [makes 5] [bytes 16] [announced]
//	fetch 3 reads 5
//	free 5,6
//
// What becomes of parts that began:
//
//	launched 1 | refused 1 MESSAGE | departed 1 | ended 1 [MESSAGE]
//	filled 5 | spoiled 5 MESSAGE | read 3
//	fault 5 MESSAGE | drop 2 | copy begun | copy ended
//
// Facts, which hold from then on, and "look", after which the queue looks at them again:
//
//	failed 1 MESSAGE | loading 1 | loaded 1 | launching 1 | absent 1 | came 1 | busy | free-handed
//
// Answers: begin 1 (5, 6 donated), wait 1 for something, fail 1 with something, admit 1,
// pass, ready 1, and close 5 for the buffer of array 5.
func TestTraces(t *testing.T) {
	tracetest.Run(t, func(t *testing.T, d *datadriven.TestData) tracetest.Stage {
		c := Config{Device: 0, Worker: "w", Window: 2}
		d.MaybeScanArgs(t, "window", &c.Window)
		d.MaybeScanArgs(t, "memory", &c.MemoryLimit)
		return newStage(c)
	})
}

// stage is the caller of a Queue: it knows what the script said, and does what the Queue
// says at once.
type stage struct {
	q       *Queue
	gangs   map[uint64]*Gang
	facts   map[uint64]*Facts
	flights map[uint64]*Flight  // computations that have begun
	inputs  map[uint64][]*Shard // pinned by other parts
	pending map[uint64]*Shard   // by object, what other parts make
	busy    bool
}

// paper is a buffer of an object.
type paper struct{ object uint64 }

// owner names a session by its number alone.
func owner(session uint32) string { return fmt.Sprintf("session %d", session) }

func newStage(c Config) *stage {
	c.Owner = owner
	return &stage{q: New(c), gangs: map[uint64]*Gang{}, facts: map[uint64]*Facts{}, flights: map[uint64]*Flight{},
		inputs: map[uint64][]*Shard{}, pending: map[uint64]*Shard{}}
}

func (s *stage) Event(w *strings.Builder, line string) error {
	if err := s.happen(strings.Fields(line)); err != nil {
		return err
	}
	answer := append(s.discarded(), s.advance()...)
	fmt.Fprintf(w, "%-40s →%s\n", line, strings.Join(answer, ";"))
	return nil
}

func (s *stage) End(w *strings.Builder) {
	fmt.Fprintf(w, "%d arrays, %d computations under way", s.q.Objects(), s.q.flying)
	if s.q.room.limit > 0 {
		fmt.Fprintf(w, ", %d bytes of %d", s.q.room.used, s.q.room.limit)
	}
	w.WriteString("\n")
}

// happen has an event happen.
func (s *stage) happen(words []string) error {
	if len(words) == 0 {
		return errors.New("an empty line")
	}
	rest := words[1:]
	var id uint64
	if len(rest) > 0 {
		id, _ = strconv.ParseUint(rest[0], 10, 64)
	}
	why := func() error {
		if len(rest) < 2 {
			return nil
		}
		return status.New(status.Internal, "%s", strings.Join(rest[1:], " "))
	}
	fact := func() *Facts {
		if s.facts[id] == nil {
			s.facts[id] = new(Facts)
		}
		return s.facts[id]
	}
	switch words[0] {
	case "run", "put", "fetch", "free":
		g, err := parseGang(words)
		if err != nil {
			return err
		}
		s.gangs[g.ID] = g
		s.q.Submit(Part{Gang: g})
	case "launched":
		f := s.flights[id]
		s.q.Launched(f)
		for k, made := range f.Made {
			s.q.Fill(made, paper{f.Part.Gang.First + uint64(k)})
		}
	case "refused":
		s.q.Failed(s.flights[id], why())
		delete(s.flights, id)
	case "departed":
		s.q.Depart(s.flights[id])
	case "ended":
		err := why()
		if cause := s.q.Cause(s.flights[id].Part.Gang.Session, s.flights[id].Part.Reads()); err != nil && cause != nil {
			err = cause
		}
		s.q.Ended(s.flights[id], err)
		delete(s.flights, id)
	case "filled":
		s.q.Fill(s.pending[id], paper{id})
		delete(s.pending, id)
	case "spoiled":
		s.q.Spoil(s.pending[id], why())
		delete(s.pending, id)
	case "read":
		for _, shard := range s.inputs[id] {
			s.q.Unpin(shard)
		}
		delete(s.inputs, id)
	case "fault":
		s.q.Fault(1, id, why())
	case "drop":
		s.q.Drop(uint32(id))
	case "copy":
		if rest[0] == "begun" {
			s.q.CopyBegun()
		} else {
			s.q.CopyEnded()
		}
	case "failed":
		fact().Failed = why()
	case "loading":
		fact().Loading = true
	case "loaded":
		fact().Loading = false
	case "launching":
		fact().Launched = true
	case "absent":
		fact().Absent = 2
	case "came":
		fact().Absent = 0
	case "busy":
		s.busy = true
	case "free-handed":
		s.busy = false
	case "look":
	default:
		return errors.New("no such event")
	}
	return nil
}

func parseGang(words []string) (g *Gang, err error) {
	r := new(Recipe)
	g = &Gang{Session: 1, Recipe: r}
	numbers := func(text string) (all []uint64) {
		for word := range strings.SplitSeq(text, ",") {
			n, bad := strconv.ParseUint(word, 10, 64)
			err = errors.Join(err, bad)
			all = append(all, n)
		}
		return all
	}
	rest := words[1:]
	if words[0] == "free" {
		g.Recipe, g.Objects = &Frees, numbers(rest[0])
		rest = rest[1:]
	} else {
		g.ID = numbers(rest[0])[0]
		r.Name = words[0] + rest[0]
		if rest = rest[1:]; words[0] != "run" {
			r.Kind = Transfer
		}
	}
	var donated []uint64
	for len(rest) > 0 && err == nil {
		word := rest[0]
		rest = rest[1:]
		switch word {
		case "alone":
			r.Alone = true
			continue
		case "together":
			r.Together = true
			continue
		case "pooled":
			r.Pooled = true
			continue
		case "calls":
			r.Calls = true
			continue
		case "announced":
			r.Announced = true
			continue
		}
		if len(rest) == 0 {
			return nil, fmt.Errorf("%q says nothing", word)
		}
		list := numbers(rest[0])
		rest = rest[1:]
		switch word {
		case "reads":
			g.Objects = list
		case "donates":
			donated = list
		case "makes":
			g.First, r.Makes = list[0], len(list)
		case "bytes": // of each
			for range r.Makes {
				r.Sizes, r.Bytes = append(r.Sizes, int64(list[0])), r.Bytes+int64(list[0])
			}
		case "session":
			g.Session = uint32(list[0])
		default:
			return nil, fmt.Errorf("no such word: %q", word)
		}
	}
	for k, object := range g.Objects {
		for _, d := range donated {
			if object == d {
				r.Donates = append(r.Donates, k)
			}
		}
	}
	return g, err
}

// advance does what the queue says, and tells of it.
func (s *stage) advance() (said []string) {
	say := func(f string, args ...any) { said = append(said, fmt.Sprintf(" "+f, args...)) }
	for {
		s.q.check()
		var f Facts
		if p, ok := s.q.First(); ok && s.facts[p.Gang.ID] != nil {
			f = *s.facts[p.Gang.ID]
		}
		f.Defer = s.busy
		a := s.q.Next(f)
		said = append(said, s.discarded()...)
		switch a.Kind {
		case Idle:
			return said
		case Waiting:
			say("wait %d for %s", a.Part.Gang.ID, a.Wait.Text(a.Part))
			return said
		case Ready:
			say("ready %d", a.Part.Gang.ID)
			return said
		case Begin:
			id := a.Part.Gang.ID
			var inputs []string
			for _, in := range a.Flight.Inputs {
				text := fmt.Sprint(in.Shard.Buffer.(paper).object)
				if in.Donated {
					text += " donated"
				}
				inputs = append(inputs, text)
			}
			if inputs != nil {
				say("begin %d (%s)", id, strings.Join(inputs, ", "))
			} else {
				say("begin %d", id)
			}
			if a.Part.Gang.Recipe.Kind == Run {
				s.flights[id] = a.Flight
				continue
			}
			for _, in := range a.Flight.Inputs {
				s.inputs[id] = append(s.inputs[id], in.Shard)
			}
			for k, shard := range a.Flight.Made {
				s.pending[a.Part.Gang.First+uint64(k)] = shard
			}
		case Fail:
			say("fail %d: %v", a.Part.Gang.ID, a.Err)
			s.q.Refuse(a, a.Err)
			delete(s.flights, a.Part.Gang.ID)
			said = append(said, s.discarded()...)
		case Admit:
			say("admit %d", a.Part.Gang.ID)
		case Passed:
			say("pass")
		}
	}
}

func (s *stage) discarded() (said []string) {
	for _, b := range s.q.Discarded() {
		said = append(said, fmt.Sprintf(" close %d", b.(paper).object))
	}
	return said
}
