package wire

// Kinds of events, see Report.Event. They are for programs; the event's text is for people.
const (
	EventJoined   = "joined"   // a worker has joined
	EventLeft     = "left"     // a worker was stopped
	EventLost     = "lost"     // a worker is lost
	EventRebound  = "rebound"  // workers have taken the places of those that a session had lost
	EventRefused  = "refused"  // a process may not connect
	EventDropped  = "dropped"  // a connection broke the protocol
	EventApart    = "apart"    // a worker cannot reach another process
	EventReached  = "reached"  // it reaches it again
	EventBegan    = "began"    // a session has begun
	EventCut      = "cut"      // a session or worker has no connection, and stays
	EventMended   = "mended"   // it has one again
	EventEnded    = "ended"    // a session has ended
	EventQueued   = "queued"   // a session waits for a slice
	EventGranted  = "granted"  // a session got a slice
	EventDenied   = "denied"   // a session did not get a slice, or no memory
	EventReleased = "released" // a session released a slice
	EventFault    = "fault"    // a worker had no memory for what was admitted
	EventStuck    = "stuck"    // a gang stood still and was aborted
	EventTenants  = "tenants"  // the file of tenants was read, or cannot be used
	EventCompiled = "compiled" // a program was compiled, or found in the cache
)
