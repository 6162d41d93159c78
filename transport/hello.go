package transport

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// HelloTime bounds how long a side waits for the other's Hello or Welcome, where its context does not. The accepting
// side may ask for more time, again and again: see Incoming.Wait.
const HelloTime = 10 * time.Second

// Credentials are what a process shows to others, and demands of them.
type Credentials struct {
	// Token is the cluster's own, or of a dialer that of its Pass; where it is empty, the accepting side asks for none.
	Token string
	// TokenPath is the file with the token, which the accepting side names to those who do not show it; "" is not said.
	TokenPath string
	Software  string            // such as "pathways 0.1.0"
	Versions  map[string]string // what must agree, such as "jax"; compared where both sides have a key
	// Proof decides whether a Hello of ROLE_PEER is let in, in place of the token;
	// nil leaves it to the token.
	Proof func(*wire.Hello) error
	// TenantOf returns, on the accepting side, the name of the tenant that a token belongs to, where tenants have tokens
	// of their own. It may be called by many goroutines. Nil knows none.
	TenantOf func(token []byte) (name string, ok bool)
	// Certified is, on the accepting side, the holder of the dialer's certificate; an operator if there is none: then the
	// token decides alone.
	Certified Holder
	// Waits is told on the dialing side, for people, what the accepting side waits for before it lets this one in. It
	// must not block; nil is allowed.
	Waits func(why string)
	// Identity is what this process is probed for, see ErrProbed; without one it answers no probe with OK.
	Identity []byte
}

// Incoming is a connection whose Hello has been checked. It must be answered by
// Welcome or Refuse before anything else is sent.
type Incoming struct {
	Conn
	Hello    *wire.Hello
	Protocol uint32        // the one both sides speak
	Holder                 // who the dialer is, by its token and certificate; of ROLE_PEER it says nothing
	Silence  time.Duration // for Welcome.silence_ms; 0 if a connection does not end of it

	software string
}

// greeted is told by Greet and Welcome that the other side has been let in.
type greeted interface{ Greeted(maxFrame int) }

// linked is a Conn that can be resumed, and tells by which Welcome.link.
type linked interface{ Offer(w *wire.Welcome) }

func letIn(c Conn, maxFrame int) {
	if g, ok := c.(greeted); ok {
		g.Greeted(maxFrame)
	}
}

// ShortFrame bounds the messages of those who send no long ones: peers, whose blocks are short or go by other ways,
// and those who ask how the cluster is.
const ShortFrame = 64 << 10

// maxFrame bounds the messages that a process of a role sends to the one that has let it in.
func maxFrame(role wire.Role) int {
	switch role {
	case wire.Role_ROLE_PEER, wire.Role_ROLE_ADMIN:
		return ShortFrame
	}
	return math.MaxInt
}

// Greet says hello on a new connection and waits for the answer. Fields of hello
// that Credentials know are filled in, in a copy. On an error the connection is
// closed.
//
// Errors: the other side's refusal, with its code; UNAVAILABLE or
// DEADLINE_EXCEEDED where it did not answer.
func Greet(ctx context.Context, c Conn, hello *wire.Hello, cred Credentials) (_ *wire.Welcome, err error) {
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	hello = proto.CloneOf(hello)
	hello.ProtocolMin, hello.ProtocolMax = wire.ProtocolMin, wire.ProtocolMax
	if hello.Token == "" {
		hello.Token = cred.Token
	}
	if hello.Software == "" {
		hello.Software = cred.Software
	}
	if hello.Versions == nil {
		hello.Versions = cred.Versions
	}
	payload, err := proto.Marshal(hello)
	if err != nil {
		return nil, status.New(status.Internal, "the hello does not encode: %w", err)
	}
	if err := c.Send(wire.KindHello, payload); err != nil {
		return nil, err
	}
	welcome, err := awaitWelcome(ctx, c, cred.Waits)
	if err != nil {
		return nil, err
	}
	if err := welcome.Status.Err(); err != nil {
		return nil, status.Wrap(err, "%s refused the connection", c.Peer())
	}
	if welcome.Protocol < wire.ProtocolMin || welcome.Protocol > wire.ProtocolMax {
		return nil, status.New(status.FailedPrecondition,
			"%s, %s, chose protocol %d, this side, %s, speaks %d to %d; install the same version of openpathways on both",
			c.Peer(), cmp.Or(welcome.Software, "of unknown version"), welcome.Protocol,
			cmp.Or(hello.Software, "of unknown version"), wire.ProtocolMin, wire.ProtocolMax)
	}
	letIn(c, math.MaxInt)
	return welcome, nil
}

// awaitWelcome returns the answer to a hello. It waits for as long as the other side says that it has to.
func awaitWelcome(ctx context.Context, c Conn, waits func(why string)) (*wire.Welcome, error) {
	for said := ""; ; {
		kind, payload, err := receive(ctx, c)
		if err != nil {
			return nil, err
		}
		if kind != wire.KindWait {
			welcome := new(wire.Welcome)
			return welcome, decode(c, kind, payload, wire.KindWelcome, welcome)
		}
		m := new(wire.Wait)
		if err := wire.Decode(kind, payload, m); err != nil {
			return nil, err
		}
		if why := wire.Clean(m.Why); waits != nil && why != said {
			said = why
			waits(why)
		}
	}
}

// Await reads and checks the Hello of a connection that has come. A dialer that
// is not let in is told why and its connection is closed.
//
// Errors: why it is not let in; ErrProbed where it only asked who listens here.
func Await(ctx context.Context, c Conn, cred Credentials) (*Incoming, error) {
	hello := new(wire.Hello)
	kind, payload, err := receive(ctx, c)
	if err == nil {
		err = decode(c, kind, payload, wire.KindHello, hello)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	in := &Incoming{Conn: c, Hello: hello, software: cred.Software}
	if hello.Role == wire.Role_ROLE_PROBE {
		return nil, in.answer(cred)
	}
	if err := in.check(cred); err != nil {
		in.Refuse(err)
		return nil, err
	}
	return in, nil
}

func (in *Incoming) check(cred Credentials) (err error) {
	h := in.Hello
	if h.Role == wire.Role_ROLE_PEER && cred.Proof != nil {
		if err := cred.Proof(h); err != nil {
			return err
		}
	} else {
		if in.Holder, err = cred.holder(h); err != nil {
			return err
		}
	}
	h.Token = "" // a Hello that is printed does not show the secret
	if in.Protocol, err = wire.Agree(h.ProtocolMin, h.ProtocolMax); err != nil {
		return status.Wrap(err, "%s cannot talk to %s", cmp.Or(h.Software, "a program of unknown version"),
			cmp.Or(in.software, "this one"))
	}
	return skew(h.Versions, cred.Versions)
}

// Begins checks the beginning of an encoded Hello, which includes the token if one is shown. Credentials without a
// token accept any.
func (c Credentials) Begins(hello []byte) error {
	if c.Token == "" {
		return nil
	}
	token, shown := wire.TokenIn(hello)
	if !shown {
		return c.wrongToken("")
	}
	if _, ok := c.holderOf(token); !ok {
		return c.wrongToken("another")
	}
	return nil
}

// wrongToken says what to do without the cluster's token.
func (c Credentials) wrongToken(shown string) error {
	what := "the token is not this cluster's"
	if shown == "" {
		what = "this cluster asks for its token, and none was shown"
	}
	where := "set PATHWAYS_TOKEN_FILE (commands: --token-file) to a file with its token, or PATHWAYS_TOKEN to the token"
	if c.TokenPath != "" {
		where += "; its operator has that in " + c.TokenPath
	}
	return status.New(status.Unauthenticated, "%s; %s", what, where)
}

// skew compares versions where both sides have them.
func skew(theirs, ours map[string]string) error {
	for _, what := range slices.Sorted(maps.Keys(ours)) {
		if their, ok := theirs[what]; ok && their != ours[what] {
			return status.New(status.FailedPrecondition,
				"%s differs: %q on the side that connects, %q on the other; install the same version on both", what, their,
				ours[what])
		}
	}
	return nil
}

// Welcome lets the dialer in. It fills in the protocol and the software.
func (in *Incoming) Welcome(w *wire.Welcome) error {
	w.Protocol = in.Protocol
	if l, ok := in.Conn.(linked); ok {
		l.Offer(w)
	}
	if w.Software == "" {
		w.Software = in.software
	}
	w.SilenceMs = uint32(min(in.Silence.Milliseconds(), math.MaxUint32))
	payload, err := proto.Marshal(w)
	if err != nil {
		return status.New(status.Internal, "the welcome does not encode: %w", err)
	}
	if err := in.Send(wire.KindWelcome, payload); err != nil {
		return err
	}
	letIn(in.Conn, maxFrame(in.Hello.Role))
	return nil
}

// WaitAgain is how often a dialer is to be told that it has to wait, so that it does not give up.
const WaitAgain = HelloTime / 4

// Wait tells a dialer that it has to wait for its answer, and why, for people.
func (in *Incoming) Wait(why string) error {
	payload, err := proto.Marshal(&wire.Wait{Why: why})
	if err != nil {
		return status.New(status.Internal, "what a process waits for does not encode: %w", err)
	}
	return in.Send(wire.KindWait, payload)
}

// Refuse tells the dialer why it is not let in, and closes the connection.
func (in *Incoming) Refuse(why error) {
	payload, err := proto.Marshal(&wire.Welcome{Status: wire.Of(why), Software: in.software})
	if err == nil {
		_ = in.Send(wire.KindWelcome, payload) // it may have gone already
	}
	in.Close()
}

// receive receives one message, within HelloTime. The end of ctx closes the connection.
func receive(ctx context.Context, c Conn) (wire.Kind, []byte, error) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, HelloTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	kind, payload, err := c.Recv()
	if !stop() {
		if ctx.Err() == context.DeadlineExceeded {
			return 0, nil, status.New(status.DeadlineExceeded, "%s said nothing for %v: it is stopped (kill -CONT resumes "+
				"it), it hangs, or it is not a process of Open Pathways", c.Peer(), time.Since(begun).Round(100*time.Millisecond))
		}
		return 0, nil, status.New(status.Cancelled, "connecting to %s was cancelled", c.Peer())
	}
	return kind, payload, err
}

// decode decodes a message that is to be of a kind.
func decode(c Conn, kind wire.Kind, payload []byte, want wire.Kind, into proto.Message) error {
	if kind != want {
		return status.New(status.InvalidArgument,
			"%s began with a message of kind %v, expected %v; is it a process of Open Pathways?", c.Peer(), kind, want)
	}
	return wire.Decode(kind, payload, into)
}
