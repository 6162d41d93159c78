package controller

import (
	"maps"
	"slices"
)

// maxGiven is to how many workers one worker sends an artifact at a time.
const maxGiven = 4

// senders are the workers that have an artifact, and those that they send it to. The zero value has none. Frequent
// operations take a time that does not grow with workers, except to copy some pointers.
type senders struct {
	holders []*worker // that have it, in the order in which they said so
	held    map[*worker]bool
	free    [maxGiven][]*worker // those of them that send to so many others, the longest at it first
	sends   map[*worker]int     // to how many a worker sends, also one that has it no longer
	from    map[*worker]*worker // the sender, by receiver
}

// add adds a worker that has it.
func (s *senders) add(w *worker) {
	if s.held == nil {
		s.held, s.sends, s.from = map[*worker]bool{}, map[*worker]int{}, map[*worker]*worker{}
	}
	s.holders = append(s.holders, w)
	s.held[w] = true
	s.list(w)
}

// remove takes out a worker that has it no longer.
func (s *senders) remove(w *worker) {
	s.unlist(w)
	delete(s.held, w)
	s.holders = slices.DeleteFunc(s.holders, func(h *worker) bool { return h == w })
}

// list makes a holder available to pick, unless it sends to the maximum already.
func (s *senders) list(w *worker) {
	if n := s.sends[w]; n < maxGiven && s.held[w] {
		s.free[n] = append(s.free[n], w)
	}
}

func (s *senders) unlist(w *worker) {
	if n := s.sends[w]; n < maxGiven && s.held[w] {
		i := slices.Index(s.free[n], w)
		s.free[n] = slices.Delete(s.free[n], i, i+1)
	}
}

// pick returns the holder, other than to, that sends to the fewest workers; nil if all send to the maximum. One that is
// being lost sends nothing.
func (s *senders) pick(to *worker) *worker {
	for _, free := range s.free {
		for _, h := range free {
			if h != to && h.gone == nil {
				return h
			}
		}
	}
	return nil
}

// begin records that a holder sends it to a worker.
func (s *senders) begin(from, to *worker) {
	s.unlist(from)
	s.sends[from]++
	s.list(from)
	s.from[to] = from
}

// ended records that no artifact is on its way to a worker any more.
func (s *senders) ended(to *worker) {
	from := s.from[to]
	if from == nil {
		return
	}
	delete(s.from, to)
	s.unlist(from)
	if s.sends[from]--; s.sends[from] == 0 {
		delete(s.sends, from)
	}
	s.list(from)
}

// has reports whether a worker has it, sends it, or gets it.
func (s *senders) has(w *worker) bool { return s.held[w] || s.sends[w] > 0 || s.from[w] != nil }

// lost removes what is on its way to and from a lost worker, but not the worker itself.
func (s *senders) lost(w *worker) {
	s.ended(w)
	if s.sends[w] == 0 {
		return
	}
	s.unlist(w)
	delete(s.sends, w)
	s.list(w)
	maps.DeleteFunc(s.from, func(_, from *worker) bool { return from == w })
}
