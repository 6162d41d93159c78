package transport

import (
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/wire"
)

// SayGoodbye tells the other side of a control connection that this side leaves, and why; nil is no error.
//
// Errors: those of Conn.Send.
func SayGoodbye(to Conn, why error) error {
	payload, err := proto.Marshal(&wire.Goodbye{Status: wire.Of(why)})
	if err != nil {
		return err
	}
	return to.Send(wire.KindGoodbye, payload)
}
