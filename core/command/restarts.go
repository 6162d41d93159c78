package command

// This file decides when the processes of a cluster are restarted. It uses no clock and no
// processes: its caller reports what happened and when, in nanoseconds, and asks what is
// due.

// The rules of restarting.
const (
	second = int64(1e9)
	// A process that has run for steadyAfter before it died can run: its earlier deaths no
	// longer count.
	steadyAfter = 60 * second
	// The same of the controller, which is there at once: with what it has kept it can run if it has had its cluster back,
	// and sessions wait for it.
	controllerSteadyAfter = 10 * second
	// The pause before a restart doubles each time, from firstRestart to lastRestart.
	firstRestart, lastRestart = second / 10, 10 * second
	// A process that dies before it is steady is restarted at most mostRestarts times in a
	// row, which takes about half a minute plus the time for which the process runs.
	mostRestarts = 10
)

// restarts is the state of a cluster's processes.
type restarts struct{ each []*restart }

type restart struct {
	name   string
	steady int64 // steadyAfter, or controllerSteadyAfter
	since  int64 // when it was last started
	down   bool
	pause  int64 // before the next restart
	due    int64 // when it is restarted, if it is down
	deaths int   // in a row, each before it was steady
	failed bool  // whether it died too often to be restarted
}

// verdict is the consequence of a death.
type verdict uint8

const (
	startsAgain verdict = iota // it is restarted after a pause
	givenUp                    // it died too often
)

// add adds a running process.
func (r *restarts) add(name string, now int64) {
	steady := steadyAfter
	if name == controllerName {
		steady = controllerSteadyAfter
	}
	r.each = append(r.each, &restart{name: name, steady: steady, since: now, pause: firstRestart})
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

// died reports that a process has ended, for any reason, and returns the consequence; in is
// the time until it is restarted.
func (r *restarts) died(name string, now int64) (v verdict, in int64) {
	p := r.find(name)
	p.down = true
	if now-p.since >= p.steady {
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

// due returns the processes to start now.
func (r *restarts) due(now int64) (names []string) {
	for _, p := range r.each {
		if p.down && !p.failed && now >= p.due {
			names = append(names, p.name)
		}
	}
	return names
}

// started reports that a process was restarted.
func (r *restarts) started(name string, now int64) {
	p := r.find(name)
	p.down, p.since = false, now
}
