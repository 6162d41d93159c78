package server

import (
	"testing"

	"github.com/openpathways/pathways/transport"
)

// AcceptUntilEnd has a server accept connections until the test ends, which closes both.
func AcceptUntilEnd(t testing.TB, s *Server, l transport.Listener) {
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		_ = s.Accept(l) // ends with the listener
	}()
	t.Cleanup(func() {
		l.Close()
		<-accepted
		s.Close()
	})
}
