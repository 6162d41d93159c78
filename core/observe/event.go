package observe

// Event is a step of an operation of a cluster that is no computation. Times are nanoseconds since the Unix epoch.
type Event struct {
	Kind   Kind
	Name   string // "run", "put", "fetch", "transfer", "play", "compile"; of a collective its kind, such as "all-reduce"
	Op     uint64 // the client's number of the operation; 0 if it has none
	Gang   uint64 // 0 of calls
	Worker string // "" of calls, and in the worker's own recording
	Device int32  // of collectives
	Thread int32  // of calls: the number that the system has for it
	Bytes  int64  // on this worker, of moves and collectives; 0 if not known
	Way    string // of collectives: how the bytes went, see docs/collectives; "" if it is not known
	Waited int64  // in nanoseconds: of arrivals, in the controller; of moves, on the worker, for earlier work
	Begin  int64
	End    int64
}

// Kind is what an Event is.
type Kind uint8

const (
	Call       Kind = iota // of this library, by a thread of the client
	Arrival                // of an operation at a worker; Begin is End
	Move                   // of bytes: from the client, to it, or between devices
	Collective             // of one device, from its call until its result
)

// Note records an event of a session that has ended, but for its Worker.
func (r *Recorder) Note(session uint32, e *Event) {
	list := r.recordings.Load()
	if list == nil {
		return
	}
	for _, rec := range *list {
		if rec.session == session {
			rec.note(e)
		}
	}
}

func (rec *Recording) note(e *Event) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case rec.stopped:
	case rec.events.len >= rec.limit:
		rec.dropped++
	default:
		rec.keepEvent(e)
	}
}
