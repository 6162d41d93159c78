package client

import (
	"slices"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
)

// Moment is something that has happened to what a session uses.
type Moment struct {
	Kind    string    `json:"kind"` // one of those below
	At      time.Time `json:"at"`
	Worker  string    `json:"worker,omitempty"`  // its name; "" where it is about the controller
	Devices []uint32  `json:"devices,omitempty"` // of the session that it is about
	Reason  string    `json:"reason,omitempty"`  // "CODE: text"
	// Lease is how long the session is kept, of MomentDisconnected.
	Lease time.Duration `json:"-"`
}

// Kinds of moments.
const (
	MomentLost         = "lost"         // a worker: what the session had on its devices is lost
	MomentCame         = "came"         // a worker that takes the place of one that was lost
	MomentRebound      = "rebound"      // the devices are its from now on, for all that is submitted
	MomentDisconnected = "disconnected" // there is no connection to the controller; the session is kept for the lease
	MomentResumed      = "resumed"      // there is one again, and nothing was lost
	MomentRestarted    = "restarted"    // the controller, which has the session back: nothing was lost
	MomentEnded        = "ended"        // the session is lost
)

// moment tells Config.Moment. It may be called from any goroutine.
func (r *remote) moment(kind, worker string, devices []uint32, why error) {
	if r.moments == nil {
		return
	}
	m := Moment{Kind: kind, At: time.Now(), Worker: worker, Devices: devices}
	if kind == MomentDisconnected {
		m.Lease = time.Duration(r.welcome.GetLink().GetLeaseMs()) * time.Millisecond
	}
	if why != nil {
		m.Reason = status.CodeOf(why).String() + ": " + why.Error()
	}
	r.moments(m)
}

// momentsOf returns a moment for each worker of a view, with its devices.
func (r *remote) momentsOf(kind string, v *view, why error) {
	for _, w := range v.workers {
		var devices []uint32
		for _, d := range v.devices {
			if d.Worker == w.GetNumber() {
				devices = append(devices, d.Number)
			}
		}
		if len(devices) > 0 {
			r.moment(kind, w.GetName(), devices, why)
		}
	}
}

// tellLost reports workers that are lost.
func (r *remote) tellLost(processes []uint64, why error) {
	v := r.view.Load()
	lost := &view{devices: v.devices}
	for _, w := range v.workers {
		if slices.Contains(processes, w.GetNumber()) {
			lost.workers = append(lost.workers, w)
		}
	}
	r.momentsOf(MomentLost, lost, why)
}

// watch reports breaks of the connection to the controller if the session outlives them.
func (r *remote) watch() {
	if w, ok := r.conn.(transport.Watched); ok {
		w.Watch(func(why error) {
			if why != nil {
				r.moment(MomentDisconnected, "", nil, status.New(status.Unavailable,
					"the connection to the controller at %s broke: %w", r.conn.Peer(), why))
			} else {
				r.moment(MomentResumed, "", nil, nil)
			}
		})
	}
}
