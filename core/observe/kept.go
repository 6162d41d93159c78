package observe

// keptSpan and keptEvent are a Span and an Event as a recording keeps them: without pointers, for which collections of
// garbage would look through all of them, and with names by number. An event has no Worker: a worker's recording has
// its own events alone, and the code that gathers recordings adds the worker's name.
type keptSpan struct {
	program                        uint64 // ProgramID
	gang                           uint64
	submitted, launched, came, end int64
	name                           uint32
	device                         int32
}

type keptEvent struct {
	op, gang                   uint64
	bytes, waited, begins, end int64
	name                       uint32
	device, thread             int32
	kind                       Kind
	way                        uint8
}

// keep keeps a span. Called with mu.
func (rec *Recording) keep(s *Span) *keptSpan {
	return rec.spans.append(keptSpan{program: s.ProgramID, gang: s.Gang, submitted: s.Submitted, launched: s.Launched,
		came: s.Came, end: s.End, name: rec.names.spans.Of(s.Program), device: s.Device})
}

// keepEvent keeps an event. Called with mu.
func (rec *Recording) keepEvent(e *Event) {
	rec.events.append(keptEvent{op: e.Op, gang: e.Gang, bytes: e.Bytes, waited: e.Waited, begins: e.Begin, end: e.End,
		name: rec.names.events.Of(e.Name), device: e.Device, thread: e.Thread, kind: e.Kind,
		way: uint8(rec.names.ways.Of(e.Way))})
}

// take returns what was kept, but for spans that have not ended, and leaves nothing. Called with mu.
func (rec *Recording) take() (spans []Span, events []Event) {
	spans, events = make([]Span, 0, rec.spans.len), make([]Event, 0, rec.events.len)
	texts := rec.names.spans.Texts
	rec.spans.take(func(s *keptSpan) {
		if s.end != 0 {
			spans = append(spans, Span{Program: texts[s.name], ProgramID: s.program, Gang: s.gang, Device: s.device,
				Submitted: s.submitted, Launched: s.launched, Came: s.came, End: s.end})
		}
	})
	texts = rec.names.events.Texts
	ways := rec.names.ways.Texts
	rec.events.take(func(e *keptEvent) {
		events = append(events, Event{Kind: e.kind, Name: texts[e.name], Op: e.op, Gang: e.gang,
			Device: e.device, Thread: e.thread, Bytes: e.bytes, Way: ways[e.way], Waited: e.waited, Begin: e.begins, End: e.end})
	})
	return spans, events
}

// Names are texts by which records and messages name things: numbers, in the order in which they first come.
type Names struct {
	Texts   []string
	numbers map[string]uint32
	last    [2]uint32 // the two that came last
}

// Of returns the number of a text.
func (n *Names) Of(text string) uint32 {
	if len(n.Texts) > 0 { // most often it is one of the two before: events of two kinds come by turns
		switch text {
		case n.Texts[n.last[0]]:
			return n.last[0]
		case n.Texts[n.last[1]]:
			n.last[0], n.last[1] = n.last[1], n.last[0]
			return n.last[0]
		}
	}
	number, ok := n.numbers[text]
	if !ok {
		if n.numbers == nil {
			n.numbers = map[string]uint32{}
		}
		number = uint32(len(n.Texts))
		n.numbers[text] = number
		n.Texts = append(n.Texts, text)
	}
	n.last = [2]uint32{number, n.last[0]}
	return number
}
