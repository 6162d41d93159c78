package transport

import (
	"crypto/subtle"
	"errors"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// ErrProbed is the error of Await for a connection of ROLE_PROBE. It was answered and closed, and is nothing to report.
var ErrProbed = errors.New("the connection was a probe")

// answer tells a probe whether this is the process that it looks for. It asks for no token: the controller shows none
// at an address before it knows who listens there, and all that the dialer learns is yes or no.
func (in *Incoming) answer(cred Credentials) error {
	h := in.Hello
	var err error
	if in.Protocol, err = wire.Agree(h.ProtocolMin, h.ProtocolMax); err != nil {
		in.Refuse(err)
		return err
	}
	if len(cred.Identity) == 0 || subtle.ConstantTimeCompare(h.Identity, cred.Identity) != 1 {
		in.Refuse(status.New(status.NotFound, "another process of Open Pathways listens there"))
		return ErrProbed
	}
	_ = in.Welcome(&wire.Welcome{}) // it may have gone
	in.Close()
	return ErrProbed
}
