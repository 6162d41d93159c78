package stream

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/transporttest"
)

// soon is how long a newcomer may wait for its welcome while others flood the listener: less than those have that say
// nothing, so that it did not wait for one of them to lose its place.
const soon = transport.HelloTime / 2

// idle keeps n connections open that say nothing.
func idle(t *testing.T, l *Listener, n int) {
	t.Helper()
	network, at, err := split(l.Address())
	statustest.OK(t, err)
	for range n {
		socket := statustest.Value(net.Dial(network, at)).OK(t)
		t.Cleanup(func() { socket.Close() })
	}
}

// getIn checks that newcomers get in at once, one after the other.
func getIn(t *testing.T, l *Listener, o Options) {
	t.Helper()
	for range 3 {
		begin := time.Now()
		a, b := transporttest.Greeted(t, l, o)
		if took := time.Since(begin); took > soon {
			t.Errorf("let in after %v, at most %v are allowed", took, soon)
		}
		a.Close()
		b.Close()
	}
}

// files lets a test open so many files, or leaves it out.
func files(t *testing.T, n uint64) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < n {
		t.Skipf("needs %d open files, %d are allowed", n, limit.Cur)
	}
}

// Connections that say nothing shut no other out, neither those that stay nor those that keep coming.
func TestIdleConnectionsShutNoOtherOut(t *testing.T) {
	const many = 5000
	for name, place := range places(t) {
		t.Run(name, func(t *testing.T) {
			files(t, many+4*maxNewcomers)
			address, o := place(t)
			l := listen(t, address, o)
			idle(t, l, many)
			getIn(t, l, o)

			stop := make(chan struct{})
			var floods sync.WaitGroup
			network, at, _ := split(l.Address())
			floods.Go(func() {
				var open []net.Conn
				defer func() {
					for _, socket := range open {
						socket.Close()
					}
				}()
				for {
					select {
					case <-stop:
						return
					default:
					}
					if socket, err := net.Dial(network, at); err == nil {
						if open = append(open, socket); len(open) > 2*maxOfSource {
							open[0].Close()
							open = open[1:]
						}
					}
					time.Sleep(50 * time.Microsecond) // a pace of some 10,000 a second
				}
			})
			getIn(t, l, o)
			close(stop)
			floods.Wait()
			l.new.mu.Lock()
			have := len(l.new.all)
			l.new.mu.Unlock()
			if have > maxOfSource {
				t.Errorf("%d connections of one source wait for their hello, at most %d are allowed", have, maxOfSource)
			}
		})
	}
}

// The oldest of an address that said nothing goes first, and no address takes the places of others.
func TestNewcomersMakeRoom(t *testing.T) {
	var all newcomers
	come := func(source string) *newcomer { return &newcomer{source: source} }
	first := come("a")
	all.add(first)
	all.spoke(first)
	var second *newcomer
	for i := range maxOfSource - 1 {
		n := come("a")
		if i == 0 {
			second = n
		}
		if out := all.add(n); out != nil {
			t.Fatalf("the newcomer %d went where there was room", i)
		}
	}
	if out := all.add(come("a")); out != second || !all.remove(second) {
		t.Error("not the oldest that said nothing went")
	}
	other := come("b")
	if out := all.add(other); out != nil {
		t.Error("an address went for another's bound")
	}
	for i := range maxNewcomers - 2 {
		if out := all.add(come(fmt.Sprint("c", i))); out == other || out == first {
			t.Fatal("an address with one connection lost it to many")
		}
	}
	statustest.Equal(t, len(all.all), maxNewcomers, "newcomers that wait")
	if all.remove(other) || all.remove(first) {
		t.Error("one that stayed had to go")
	}
}

func TestSourcesAreToldApartByNetwork(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1", "10.0.0.1", true},
		{"10.0.0.1", "10.0.0.2", false},
		{"::ffff:10.0.0.1", "10.0.0.1", true},
		{"2001:db8::1", "2001:db8::2:3", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
	} {
		source := func(ip string) string { return sourceOf(from{addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}}) }
		if (source(c.a) == source(c.b)) != c.same {
			t.Errorf("%s is %s, %s is %s", c.a, source(c.a), c.b, source(c.b))
		}
	}
}

// from is a socket of which nothing is known but where it comes from.
type from struct {
	net.Conn
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }

// A peer that shows no token can send a few KiB at most, and is told why no more are read.
func TestLongGreetingsAreRefused(t *testing.T) {
	o := Options{Credentials: cred()}
	l := listen(t, "tcp:127.0.0.1:0", o)
	dial := func() net.Conn {
		socket := statustest.Value(net.Dial("tcp", strings.TrimPrefix(l.Address(), "tcp:"))).OK(t)
		t.Cleanup(func() { socket.Close() })
		return socket
	}
	for _, c := range []struct {
		name  string
		hello *wire.Hello
		code  status.Code
	}{
		{"no token", &wire.Hello{ProtocolMax: 1}, status.Unauthenticated},
		{"another token", &wire.Hello{Token: "guess"}, status.Unauthenticated},
		{"token", &wire.Hello{Token: "secret"}, status.Unavailable}, // it waits for the rest
	} {
		t.Run(c.name, func(t *testing.T) {
			c.hello.Name = strings.Repeat("n", 2*firstSize)
			payload := statustest.Value(proto.Marshal(c.hello)).OK(t)
			socket := dial()
			statustest.OK(t, statustest.Of(socket.Write(wire.AppendFrame(nil, wire.KindHello, payload)[:firstSize+100])))
			if c.code == status.Unavailable {
				_ = socket.(*net.TCPConn).CloseWrite()
			}
			statustest.Fails(t, "the error", refusal(t, socket), c.code)
		})
	}
	// A worker's hello may be long where it shows the token.
	a, b := make(chan *transport.Incoming, 1), make(chan error, 1)
	go func() {
		in, err := l.Accept()
		if err == nil {
			err = in.Welcome(&wire.Welcome{})
		}
		a <- in
		b <- err
	}()
	long := strings.Repeat("n", greetingSize-1000)
	conn, _, err := Dial(t.Context(), l.Address(), &wire.Hello{Name: long}, o)
	statustest.OK(t, err)
	conn.Close()
	if in := <-a; in == nil || in.Hello.Name != long || <-b != nil {
		t.Error("a long hello with the token came otherwise")
	} else {
		in.Close()
	}
	statustest.Fails(t, "a hello that is too long",
		statustest.Of2(Dial(t.Context(), l.Address(), &wire.Hello{Name: long + long}, o)), status.InvalidArgument)
}

// refusal is what a listener says before it closes, UNAVAILABLE where that is nothing.
func refusal(t *testing.T, socket net.Conn) error {
	t.Helper()
	_ = socket.SetReadDeadline(time.Now().Add(20 * time.Second))
	all := statustest.Value(io.ReadAll(socket)).OK(t)
	if len(all) == 0 {
		return status.New(status.Unavailable, "it closed the connection")
	}
	kind, payload, _, err := wire.NextFrame(all)
	if err != nil || kind != wire.KindWelcome {
		t.Fatalf("a message of kind %d, %v", kind, err)
	}
	var w wire.Welcome
	statustest.OK(t, proto.Unmarshal(payload, &w))
	return w.Status.Err()
}

// resident is how much memory this process has, in bytes.
func resident(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	pages := statustest.Value(strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)).OK(t)
	return pages * int64(os.Getpagesize())
}

// endless are connections between two sides in this process, each with a message that is announced and never ends.
type endless struct {
	t                  *testing.T
	l                  *Listener
	conns              []transport.Conn
	sockets            []net.Conn // from which the messages come
	receiving, sending sync.WaitGroup
	errs               chan error // of those that receive
}

func newEndless(t *testing.T, l *Listener, o Options, peers int) *endless {
	e := &endless{t: t, l: l, errs: make(chan error, peers)}
	for range peers {
		a, b := transporttest.Greeted(t, l, o)
		e.conns = append(e.conns, a, b)
		socket, _, err := a.(*Conn).Detach(0, nil)
		statustest.OK(t, err)
		e.sockets = append(e.sockets, socket)
		e.receiving.Go(func() {
			_, _, err := b.Recv()
			e.errs <- err
		})
	}
	return e
}

// announce says how long the messages are.
func (e *endless) announce(size uint32) {
	for _, socket := range e.sockets {
		statustest.OK(e.t, statustest.Of(socket.Write(append(binary.LittleEndian.AppendUint32(nil, size), 20))))
	}
}

// send sends all of each message but its last piece.
func (e *endless) send(size int) {
	piece := make([]byte, 1<<20)
	for _, socket := range e.sockets {
		e.sending.Go(func() {
			for sent := 0; sent+len(piece) < size; sent += len(piece) {
				if _, err := socket.Write(piece); err != nil { // of one that was ended
					return
				}
			}
		})
	}
}

// waitsForRoom waits until so many connections ask for room, or were ended for its want.
func (e *endless) waitsForRoom(many int) {
	e.t.Helper()
	statustest.Soon(e.t, func() bool {
		e.l.long.mu.Lock()
		defer e.l.long.mu.Unlock()
		return len(e.l.long.pool.waiting)+len(e.errs) >= many
	}, true, "%d connections ask for room, or were ended", many)
}

// close ends the connections, and checks that each had an error that says why.
func (e *endless) close() {
	for _, socket := range e.sockets {
		socket.Close()
	}
	e.sending.Wait()
	e.receiving.Wait()
	close(e.errs)
	for err := range e.errs {
		if code := status.CodeOf(err); code != status.ResourceExhausted && code != status.Unavailable {
			e.t.Errorf("a message that never ended: %v", err)
		}
	}
	for _, c := range e.conns {
		c.Close()
	}
}

// watchMemory looks at how much memory this process has. The function that it returns ends that, and returns the most.
func watchMemory(t *testing.T) (peak func() int64) {
	stop, watched := make(chan struct{}), make(chan int64)
	go func() {
		var most int64
		for {
			select {
			case <-stop:
				watched <- most
				return
			case <-time.After(time.Millisecond):
				most = max(most, resident(t))
			}
		}
	}()
	return func() int64 { close(stop); return <-watched }
}

// Messages that never end take an allowance a connection and the pool's room together, and nothing when their
// connections end. One that does end gets through meanwhile, as soon as those in its way are found to have stalled.
func TestMessagesThatNeverEnd(t *testing.T) {
	const (
		peers = 40
		size  = 63 << 20
		most  = peers*allowance + 2*largestFrame
		slack = 64 << 20 // of the test, and of what the system rounds to
	)
	o := Options{Credentials: cred()}
	l := listen(t, "unix:"+filepath.Join(t.TempDir(), "s"), o)
	e := newEndless(t, l, o, peers)
	debug.FreeOSMemory()
	before := resident(t)
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	heapBefore := heap.HeapInuse

	e.announce(size)
	if grown := resident(t) - before; grown > slack {
		t.Errorf("%d MiB are held for what was announced", grown>>20)
	}
	e.send(size)
	peak := watchMemory(t)
	e.waitsForRoom(peers - 2) // all but those that have their turn
	// One that is all there gets through, before most of the others.
	a, b := transporttest.Greeted(t, l, o)
	payload := bytes.Repeat([]byte{7}, 4*allowance) // does not fit beside one of the others
	go a.Send(20, payload)
	if _, got, err := b.Recv(); err != nil || !bytes.Equal(got, payload) {
		t.Errorf("a message of %d bytes came as %d, %v", len(payload), len(got), err)
	}
	if ended := len(e.errs); ended == 0 || ended > peers/4 {
		t.Errorf("%d connections of %d were ended before it came, expected those that were in its way", ended, peers)
	}
	a.Close()
	b.Close()
	if held := peak() - before; held > most+slack {
		t.Errorf("%d MiB are held, at most %d are allowed", held>>20, (most+slack)>>20)
	}

	e.close()
	if p := &l.long.pool; len(p.holding) != 0 || len(p.waiting) != 0 || len(l.long.of) != 0 || p.lent != 0 ||
		p.first != nil {
		t.Errorf("room is still lent: %+v", p)
	}
	runtime.ReadMemStats(&heap)
	if grown := int64(heap.HeapInuse) - int64(heapBefore); grown > slack {
		t.Errorf("Go's heap has grown by %d MiB", grown>>20)
	}
	if grown := resident(t) - before; grown > slack {
		t.Errorf("%d MiB are not given back", grown>>20)
	}
}

// The room of a message is its receiver's until it receives again, or its connection ends; those that wait for room
// end with their connections.
func TestRoomOfMessagesInUse(t *testing.T) {
	const size = 8 << 20
	o := Options{Credentials: cred()}
	l := listen(t, "unix:"+filepath.Join(t.TempDir(), "s"), o)
	l.long.largest = size
	payload := make([]byte, size)
	pair := func() (a, b transport.Conn) {
		a, b = transporttest.Greeted(t, l, o)
		t.Cleanup(func() { a.Close(); b.Close() })
		go a.Send(20, payload)
		return a, b
	}
	receive := func(b transport.Conn) error {
		_, got, err := b.Recv()
		if err == nil && len(got) != size {
			err = fmt.Errorf("%d bytes came", len(got))
		}
		return err
	}
	a1, b1 := pair()
	_, b2 := pair()
	for _, b := range []transport.Conn{b1, b2} { // both halves of the room are in use now
		statustest.OK(t, receive(b))
	}
	_, b3 := pair()
	_, b4 := pair()
	third, fourth := make(chan error, 1), make(chan error, 1)
	go func() { third <- receive(b3) }()
	statustest.Soon(t, func() int {
		l.long.mu.Lock()
		defer l.long.mu.Unlock()
		return len(l.long.pool.waiting)
	}, 1, "connections that wait for room")
	b3.Close()
	if err := <-third; err == nil {
		t.Error("a message came that had no room")
	}
	go func() { fourth <- receive(b4) }()
	go a1.Send(20, nil)
	if _, _, err := b1.Recv(); err != nil { // it is done with its message
		t.Error(err)
	}
	statustest.Check(t, <-fourth)
	b2.Close()
	_, b5 := pair()
	statustest.Checkf(t, receive(b5), "in the room of a connection that was closed")
}

// Many messages that do end get through, however much they are together.
func TestManyLongMessages(t *testing.T) {
	const peers, size, largest = 8, 8 << 20, 8 << 20
	o := Options{Credentials: cred()}
	l := listen(t, "unix:"+filepath.Join(t.TempDir(), "s"), o)
	l.long.largest = largest
	payload := make([]byte, size)
	var all sync.WaitGroup
	for range peers {
		a, b := transporttest.Greeted(t, l, o)
		all.Go(func() {
			statustest.Check(t, a.Send(20, payload))
		})
		all.Go(func() {
			if _, got, err := b.Recv(); err != nil || len(got) != size {
				t.Errorf("%d bytes came, %v", len(got), err)
			}
			a.Close()
			b.Close()
		})
	}
	all.Wait()
}

// A role that sends short messages has a short bound.
func TestBoundsOfRoles(t *testing.T) {
	o := Options{Credentials: cred()}
	for role, code := range map[wire.Role]status.Code{wire.Role_ROLE_CLIENT: status.OK, wire.Role_ROLE_WORKER: status.OK,
		wire.Role_ROLE_ADMIN: status.InvalidArgument, wire.Role_ROLE_PEER: status.InvalidArgument} {
		l := listen(t, "unix:"+filepath.Join(t.TempDir(), "s"), o)
		got := make(chan error, 1)
		go func() {
			in, err := l.Accept()
			if err == nil {
				defer in.Close()
				if err = in.Welcome(&wire.Welcome{}); err == nil {
					_, _, err = in.Recv()
				}
			}
			got <- err
		}()
		c, _, err := Dial(context.Background(), l.Address(), &wire.Hello{Role: role}, o)
		statustest.OK(t, err)
		statustest.Check(t, c.Send(20, make([]byte, transport.ShortFrame+1)))
		statustest.Fails(t, fmt.Sprint(role), <-got, code)
		c.Close()
	}
}

// A flood of refusals is told in part, with how many more there were.
func TestFloodsAreToldOnce(t *testing.T) {
	var told []error
	all := tales{tell: func(_ string, err error) { told = append(told, err) }}
	for range 5 * maxTales {
		all.add("somebody", io.EOF)
	}
	statustest.Equal(t, len(told), maxTales, "clients that were told")
	all.since = all.since.Add(-taleTime)
	all.add("somebody", io.EOF)
	if last := told[len(told)-1].Error(); len(told) != maxTales+1 || !strings.Contains(last, fmt.Sprint(4*maxTales)) {
		t.Errorf("%d were told, the last: %s", len(told), last)
	}
}

// FuzzGreeting feeds a listener's first reads bytes: what it returns is the frame of a Hello, and nothing else that
// was sent.
func FuzzGreeting(f *testing.F) {
	payload, err := proto.Marshal(&wire.Hello{Token: "secret", Name: strings.Repeat("n", firstSize)})
	statustest.OK(f, err)
	f.Add(wire.AppendFrame(nil, wire.KindHello, payload))
	f.Add(append(wire.AppendFrame(nil, wire.KindHello, nil), 1, 2))
	f.Add([]byte{255, 255, 0, 0, 1, 8, 1})
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < header {
			return
		}
		speaksTLS(in)
		from := bytes.NewReader(in[header:])
		got, err := readGreeting(from, in[:header], cred())
		if err != nil {
			return
		}
		if n := len(in) - from.Len(); !bytes.Equal(got, in[:n]) {
			t.Errorf("%d bytes were read, and %d returned", n, len(got))
		}
		kind, _, rest, err := wire.NextFrame(got)
		if err != nil || kind != wire.KindHello || len(rest) > 0 || len(got) > header+greetingSize {
			t.Errorf("a greeting of kind %d with %d bytes, %v", kind, len(got), err)
		}
		if len(got) >= header+firstSize && cred().Begins(got[header:]) != nil {
			t.Error("a long greeting without the token was read")
		}
	})
}
