package ledger

import "github.com/openpathways/pathways/core/status"

// Request is a computation, or an array that no computation makes.
type Request struct {
	Specs     []Spec    // the objects that it makes, all on Placement
	Placement Placement // its devices
	Taken     int64     // bytes on each device that it takes over from objects that are there
	Temp      int64     // bytes on each device that it takes beside what it reads and makes, until End
}

// Admit makes the objects of a request and begins its computation, or does neither. It writes the objects' IDs to ids,
// which is as long as Specs.
//
// Errors: INVALID_ARGUMENT for invalid specs, NOT_FOUND if the owner is not known, RESOURCE_EXHAUSTED, with need, limit
// and holders, if the limit of a device leaves no room.
func (l *Ledger) Admit(o Owner, r Request, ids []ID) error {
	a := l.owners[o]
	if a == nil {
		return status.New(status.NotFound, "owner %d is not there: it was dropped or never added", o)
	}
	for i := range r.Specs {
		if err := r.Specs[i].validate(a); err != nil {
			return err
		}
	}
	if err := l.countable(r.Specs); err != nil {
		return err
	}
	specs := r.Specs
	if r.Taken > 0 && len(specs) > 0 {
		specs = append(specs[:len(specs):len(specs)], Spec{ShardBytes: -r.Taken, Placement: r.Placement})
	}
	if d, need := l.lacks(specs, r.Temp, false); d >= 0 {
		return l.exhausted(a, labelOn(specs, d), d, need)
	}
	for i := range r.Specs {
		ids[i] = l.Charge(r.Specs[i])
	}
	l.Begin(r.Placement, r.Temp)
	l.verify()
	return nil
}
