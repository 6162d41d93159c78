package command

// This file decides when the processes of a cluster are started again. It knows no
// clock and no process: whoever acts tells it what happened and when, in nanoseconds, and
// asks what is due.

// The rules of starting again.
const (
	second = int64(1e9)
	// A process that has run for so long before it died is not one that cannot run.
	steadyAfter = 60 * second
	// The pause before a process is started again doubles each time, from the first to
	// the last.
	firstRestart, lastRestart = second / 10, 10 * second
	// So often in a row a process that dies before it is steady is started again: half a
	// minute, and what the process itself takes.
	mostRestarts = 10
)

// restarts is the state of a cluster's processes.
type restarts struct{ each []*restart }

type restart struct {
	name   string
	again  bool  // it is started again
	since  int64 // when it was started last
	down   bool
	pause  int64 // before the next start
	due    int64 // where it is down: when it is started again
	deaths int   // in a row, none of them steady
	failed bool  // it is not started again any more
}

// verdict is what follows from a death.
type verdict uint8

const (
	startsAgain verdict = iota // after a pause
	givenUp                    // it died too often
	endsAll                    // it is never started again, and the others cannot be without it
)

// add adds a process that runs.
func (r *restarts) add(name string, again bool, now int64) {
	r.each = append(r.each, &restart{name: name, again: again, since: now, pause: firstRestart})
}

func (r *restarts) find(name string) *restart {
	for _, p := range r.each {
		if p.name == name {
			return p
		}
	}
	return nil
}

// isDown reports whether the death of a process is known.
func (r *restarts) isDown(name string) bool {
	p := r.find(name)
	return p == nil || p.down
}

// died says that a process has ended, by whatever reason, and returns what follows; in
// is the time until it is started again.
func (r *restarts) died(name string, now int64) (v verdict, in int64) {
	p := r.find(name)
	p.down = true
	if !p.again {
		return endsAll, 0
	}
	if now-p.since >= steadyAfter {
		p.deaths, p.pause = 0, firstRestart
	}
	if p.deaths++; p.deaths > mostRestarts {
		p.failed = true
		return givenUp, 0
	}
	in, p.due = p.pause, now+p.pause
	p.pause = min(2*p.pause, lastRestart)
	return startsAgain, in
}

// due returns the processes that are to be started now.
func (r *restarts) due(now int64) (names []string) {
	for _, p := range r.each {
		if p.down && !p.failed && p.again && now >= p.due {
			names = append(names, p.name)
		}
	}
	return names
}

// started says that a process was started again.
func (r *restarts) started(name string, now int64) {
	p := r.find(name)
	p.down, p.since = false, now
}
