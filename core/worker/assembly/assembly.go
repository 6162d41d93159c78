// Package assembly decides what one device does for a transfer, and in which order: it sends pieces of its arrays, and
// puts at most one shard together from pieces that other devices send.
//
// A Part is one device's part. It only decides: the caller reports what happened, by Step, and does the one thing that
// Step returns. A Part has no clock, lock or goroutine, does not touch bytes, and does not allow parallel calls. In a
// worker the owner of the device's queue makes all calls. Only core/worker imports this package.
//
// # Guarantees
//
// The shard is made once it has its place among the device's work (Begin) and all of its pieces have come. If one of
// them failed, the shard fails with the first error, but not before the last piece has come: until then a sender may be
// writing into the shard's memory, so that memory can be neither handed to the driver nor released.
//
// A part that is refused before it begins makes nothing. Pieces from other processes are requested after Begin, so none
// of them will come. Pieces from this process do come, because every device here that takes part in the transfer either
// sends its pieces or fails them. With the last one the memory that they were written to is dropped.
//
// A part that began ends once, when each of its sends has ended and its shard is made or has failed. Its error is the
// first of those.
package assembly

// Part is one device's part of a transfer.
type Part struct {
	here, away int // pieces that have yet to come: from devices of this process, and of others
	left       int // sends, and 1 for a shard that is put together, which have not ended
	shard      bool
	phase      phase
	err        error // the first of left
	spoilt     error // the first of the pieces
}

type phase uint8

const (
	waiting phase = iota // it has not begun
	begun                // pieces come
	whole                // the caller was told to make the shard, or to fail it
	refused
	over
)

// New returns a part with so many pieces to send, and a shard of pieces from devices of this
// process and of others; without pieces, there is no shard.
func New(sends, here, away int) Part {
	p := Part{here: here, away: away, left: sends, shard: here+away > 0}
	if p.shard {
		p.left++
	}
	return p
}

// EventKind is what happened.
type EventKind uint8

// The events.
const (
	// Begin: the part has its place, and its shard, if it makes one, is pending. At most once,
	// and not after Refuse.
	Begin EventKind = iota
	// Refuse: the part will not begin. At most once, and not after Begin.
	Refuse
	// Came: a piece is where it belongs, or has failed with Err. Once for each.
	Came
	// Ended: a send has ended, or the shard that was made or failed, with Err. Once for each.
	Ended
)

// Event is something that happened.
type Event struct {
	Kind EventKind
	Away bool  // of Came: the piece is from another process
	Err  error // of Came and Ended
}

// Action tells the caller what to do.
type Action uint8

// The actions.
const (
	None   Action = iota
	Expect        // request the pieces of other processes; Came follows for each
	Make          // hand the pieces to the driver; Ended follows for the shard
	Fail          // fail the shard with Spoilt, and drop its pieces; Ended follows for the shard
	Drop          // drop the pieces
	End           // the part has ended, with Err
)

// Err returns the first error with which a send or the shard ended, nil while there is none.
func (p *Part) Err() error { return p.err }

// Spoilt returns the first error of a piece, nil while there is none.
func (p *Part) Spoilt() error { return p.spoilt }

// Makes reports whether the part puts a shard together.
func (p *Part) Makes() bool { return p.shard }

// Step takes an event and returns what follows from it.
func (p *Part) Step(e Event) Action {
	switch e.Kind {
	case Begin:
		p.phase = begun
		if p.shard && p.away > 0 {
			return Expect
		}
	case Refuse:
		p.phase, p.away = refused, 0
	case Came:
		if e.Away {
			p.away--
		} else {
			p.here--
		}
		if p.spoilt == nil {
			p.spoilt = e.Err
		}
	case Ended:
		if p.err == nil {
			p.err = e.Err
		}
		if p.left--; p.left == 0 {
			p.phase = over
			return End
		}
		return None
	}
	return p.complete()
}

// complete returns the actions that follow if the last piece has come.
func (p *Part) complete() Action {
	if !p.shard || p.here+p.away > 0 {
		return None
	}
	switch p.phase {
	case begun:
		p.phase = whole
		if p.spoilt != nil {
			return Fail
		}
		return Make
	case refused:
		p.phase = over
		return Drop
	}
	return None
}
