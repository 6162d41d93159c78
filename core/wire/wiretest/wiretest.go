// Package wiretest reads messages for tests. Only tests and their parts import it.
package wiretest

import (
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status/statustest"
)

// Decode returns the message that the bytes are, and ends the test if they are none.
func Decode[M any, P interface {
	*M
	proto.Message
}](t statustest.T, payload []byte) P {
	t.Helper()
	m := P(new(M))
	statustest.OKf(t, proto.Unmarshal(payload, m), "%T", m)
	return m
}
