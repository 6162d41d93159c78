package transport

import (
	"errors"
	"fmt"

	"github.com/openpathways/pathways/core/status"
)

// Lost is the cause of a Conn's error where the peer ended it without a word, or does
// nothing any more. What says it of a peer that the reader knows: "closed the
// connection …".
type Lost struct{ Peer, What string }

// Error implements error.
func (e *Lost) Error() string { return e.Peer + " " + e.What }

// LostPeer is the error of a Conn with a Lost, UNAVAILABLE.
func LostPeer(peer, format string, args ...any) error {
	return status.New(status.Unavailable, "%w", &Lost{Peer: peer, What: fmt.Sprintf(format, args...)})
}

// ByName is the error of a connection for callers that name its peer in front of it: the peer is "it" there, and not an
// address.
func ByName(err error) error {
	var lost *Lost
	if errors.As(err, &lost) {
		return status.New(status.CodeOf(err), "it %s", lost.What)
	}
	return err
}

// Ended is what Lost says of a connection that has ended without a goodbye. More is not known: the peer's process has
// ended, or it lives and has given the connection up, or something between them has cut it.
const Ended = "closed the connection without a goodbye: it has died, was cut off, or had heard nothing for too long"

// Anew is Lost's text for a connection whose peer came over another one before this side knew that the peer had given
// up the first.
const Anew = "connected anew: it had heard nothing for too long, or was cut off"

// Gone returns the error of work under way with a process that has gone: UNAVAILABLE, or NOT_FOUND if it was never
// there. why is the reason, nil if it is not known.
func Gone(name string, why error) error {
	switch {
	case status.CodeOf(why) == status.NotFound:
		return why
	case why != nil:
		return status.New(status.Unavailable, "%w", why)
	}
	return status.New(status.Unavailable, "%s has gone", name)
}
