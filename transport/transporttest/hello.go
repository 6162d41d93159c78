package transporttest

import (
	"context"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// Greeted dials a listener, which lets it in, and returns both ends.
func Greeted(t testing.TB, l transport.Listener, d transport.Dialer) (dialed, accepted transport.Conn) {
	t.Helper()
	type end struct {
		c   transport.Conn
		err error
	}
	let := make(chan end)
	go func() {
		in, err := l.Accept()
		if err == nil {
			err = in.Welcome(&wire.Welcome{Process: 7})
		}
		if err != nil {
			let <- end{nil, err}
			return
		}
		let <- end{in.Conn, nil}
	}()
	c, w, err := d.Dial(context.Background(), l.Address(), &wire.Hello{Role: wire.Role_ROLE_CLIENT})
	statustest.OK(t, err)
	if w.Process != 7 || w.Protocol != wire.ProtocolMax {
		t.Errorf("welcome: process %d, protocol %d", w.Process, w.Protocol)
	}
	other := <-let
	statustest.OK(t, other.err)
	return c, other.c
}

// Greetings checks who is let in by a listener that has these credentials: a
// token, and a version of "jax". The dialer has the same.
func Greetings(t *testing.T, l transport.Listener, d transport.Dialer, cred transport.Credentials) {
	ctx := context.Background()
	for _, c := range []struct {
		name  string
		hello *wire.Hello
		code  status.Code
		says  []string
	}{
		{"wrong token", &wire.Hello{Token: "guess"}, status.Unauthenticated, []string{"token"}},
		{"prefix of the token", &wire.Hello{Token: cred.Token[:1]}, status.Unauthenticated, []string{"token"}},
		{"a tenant that brings devices", &wire.Hello{Token: transport.Tenant.Token(cred.Token), Role: wire.Role_ROLE_WORKER},
			status.PermissionDenied, []string{"tenant", "pathways token worker"}},
		{"a tenant that joins an epoch", &wire.Hello{Token: transport.Tenant.Token(cred.Token), Role: wire.Role_ROLE_MEMBER},
			status.PermissionDenied, []string{"tenant"}},
		{"a worker that begins a session",
			&wire.Hello{Token: transport.Worker.Token(cred.Token), Role: wire.Role_ROLE_CLIENT},
			status.PermissionDenied, []string{"worker", "pathways token tenant"}},
		{"a worker that asks", &wire.Hello{Token: transport.Worker.Token(cred.Token), Role: wire.Role_ROLE_ADMIN},
			status.PermissionDenied, []string{"worker"}},
		{"a token that is made from a tenant's",
			&wire.Hello{Token: transport.Tenant.Token(transport.Tenant.Token(cred.Token))},
			status.Unauthenticated, []string{"token"}},
		{"other version", &wire.Hello{Versions: map[string]string{"jax": "0.0.7"}}, status.FailedPrecondition,
			[]string{"jax", `"0.0.7"`, `"` + cred.Versions["jax"] + `"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			statustest.Fails(t, "the dialer", statustest.Of2(d.Dial(ctx, l.Address(), c.hello)), c.code, c.says...)
		})
	}
	t.Run("another version of something unknown", func(t *testing.T) {
		go func() {
			if in, err := l.Accept(); err != nil {
				t.Error(err)
			} else {
				in.Refuse(status.New(status.ResourceExhausted, "there are 3 sessions, at most 3 are allowed"))
			}
		}()
		hello := &wire.Hello{Versions: map[string]string{"torch": "2"}}
		statustest.Fails(t, "refused by the process", statustest.Of2(d.Dial(ctx, l.Address(), hello)),
			status.ResourceExhausted, "at most 3")
	})
	t.Run("a dialer that waits can be canceled", func(t *testing.T) { cancelled(t, l, d) })
	t.Run("one with the right hello is let in", func(t *testing.T) {
		a, b := Greeted(t, l, d)
		a.Close()
		b.Close()
	})
}

// cancelled checks that a dialer which waits for its answer can be cancelled.
func cancelled(t *testing.T, l transport.Listener, d transport.Dialer) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, _, err := d.Dial(ctx, l.Address(), &wire.Hello{})
		done <- err
	}()
	in, err := l.Accept() // never answered
	statustest.OK(t, err)
	cancel()
	statustest.Fails(t, "a dialer that gave up", <-done, status.Cancelled)
	in.Close()
}
