package stream

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func cred() transport.Credentials {
	return transport.Credentials{Token: "secret", Versions: map[string]string{"jax": "0.10.2"}}
}

// places are the kinds of address, with their options.
func places(t testing.TB) map[string]func(t testing.TB) (string, Options) {
	secured := transporttest.Certificates(t)
	return map[string]func(t testing.TB) (string, Options){
		"unix": func(t testing.TB) (string, Options) {
			return "unix:" + filepath.Join(t.TempDir(), "s"), Options{Credentials: cred()}
		},
		"tcp": func(testing.TB) (string, Options) { return "tcp:127.0.0.1:0", Options{Credentials: cred()} },
		"tls": func(testing.TB) (string, Options) {
			return "tcp:127.0.0.1:0", Options{Credentials: cred(), TLS: secured}
		},
	}
}

func listen(t testing.TB, address string, o Options) *Listener {
	t.Helper()
	l := statustest.Value(Listen(address, o, nil)).OK(t)
	t.Cleanup(func() { l.Close() })
	return l
}

func TestConn(t *testing.T) {
	for name, place := range places(t) {
		t.Run(name, func(t *testing.T) {
			transporttest.Conn(t, 3<<20, func(t *testing.T) (a, b transport.Conn) {
				address, o := place(t)
				return transporttest.Greeted(t, listen(t, address, o), o)
			})
		})
	}
}

func TestGreetings(t *testing.T) {
	for name, place := range places(t) {
		t.Run(name, func(t *testing.T) {
			address, o := place(t)
			transporttest.Greetings(t, listen(t, address, o), o, o.Credentials)
		})
	}
}

func BenchmarkConn(b *testing.B) {
	for name, place := range places(b) {
		b.Run(name, func(b *testing.B) {
			transporttest.ConnBench(b, func(b *testing.B) (x, y transport.Conn) {
				address, o := place(b)
				return transporttest.Greeted(b, listen(b, address, o), o)
			})
		})
	}
}

// sockets returns a Conn and the bare socket on its other side.
func sockets(t testing.TB, config Config, trusted bool) (*Conn, net.Conn) {
	t.Helper()
	l := statustest.Value(net.Listen("unix", filepath.Join(t.TempDir(), "s"))).OK(t)
	defer l.Close()
	raw := statustest.Value(net.Dial("unix", l.Addr().String())).OK(t)
	other := statustest.Value(l.Accept()).OK(t)
	c := New(other, "the test", config, trusted)
	t.Cleanup(func() { raw.Close(); c.Close() })
	return c, raw
}

func frame(kind wire.Kind, payload []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	return append(append(b, byte(kind)), payload...)
}

func TestBadFramesEndTheConnection(t *testing.T) {
	for _, c := range []struct {
		name    string
		bytes   []byte
		trusted bool
		code    status.Code
	}{
		{"kind 0", []byte{1, 0, 0, 0, 0, 9}, true, status.InvalidArgument},
		{"too long", []byte{0, 0, 0, 255, 20}, true, status.InvalidArgument},
		{"too long before welcome", []byte{1, 0, 1, 0, 1}, false, status.InvalidArgument},
		{"a web browser", []byte("GET / HTTP/1.1\r\n\r\n"), true, status.InvalidArgument},
		{"half a header", []byte{1, 0}, true, status.Unavailable},
		{"half a payload", []byte{5, 0, 0, 0, 20, 1}, true, status.Unavailable},
		{"half a long payload", append([]byte{0, 0, 16, 0, 20}, make([]byte, 100000)...), true, status.Unavailable},
		{"nothing", nil, true, status.Unavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, raw := sockets(t, Config{}, c.trusted)
			go func() {
				raw.Write(c.bytes) // the other side may close before it has read all
				raw.Close()
			}()
			statustest.Fails(t, "the error", statustest.Of2(conn.Recv()), c.code)
			statustest.Fails(t, "afterwards", conn.Send(20, nil), c.code)
		})
	}
}

// What is slow, stuck or silent ends the connection; nothing ends one whose peer
// shows life.
func TestSilentOrStuckPeerEndsTheConnection(t *testing.T) {
	const bound = 40 * time.Millisecond
	t.Run("half a frame", func(t *testing.T) {
		conn, raw := sockets(t, Config{FrameTime: bound}, true)
		stop := make(chan struct{})
		ended := make(chan struct{})
		go func() { // a byte at a time, without end
			defer close(ended)
			b := frame(20, make([]byte, 1<<20))
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				if _, err := raw.Write(b[i : i+1]); err != nil {
					return
				}
			}
		}()
		statustest.Fails(t, "the error", statustest.Of2(conn.Recv()), status.Unavailable, "did not end it")
		close(stop)
		<-ended
	})
	t.Run("silence", func(t *testing.T) {
		conn, _ := sockets(t, Config{Silence: bound}, true)
		statustest.Fails(t, "the error", statustest.Of2(conn.Recv()), status.Unavailable, "silent")
	})
	t.Run("does not read", func(t *testing.T) {
		conn, _ := sockets(t, Config{WriteTime: bound, MaxPending: 1 << 20}, true)
		payload := make([]byte, 1<<20)
		var err error
		for err == nil {
			err = conn.Send(20, payload)
		}
		statustest.Fails(t, "the error", err, status.Unavailable, "read nothing")
	})
	t.Run("heartbeats", func(t *testing.T) {
		config := Config{Heartbeat: 5 * time.Millisecond, Silence: time.Minute}
		conn, raw := sockets(t, config, true)
		statustest.OK(t, conn.Send(20, nil))
		got, want := make([]byte, 2*header), append(frame(20, nil), frame(wire.KindHeartbeat, nil)...)
		if _, err := io.ReadFull(raw, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v %v", got, err)
		}
		// They are passed over, unless they say something.
		beat := frame(wire.KindHeartbeat, nil)
		raw.Write(append(append(append(beat, beat...), frame(wire.KindHeartbeat, []byte{8})...), beat...))
		if k, payload, err := conn.Recv(); k != wire.KindHeartbeat || len(payload) != 1 || err != nil {
			t.Errorf("kind %d, %d bytes, %v", k, len(payload), err)
		}
		if conn.Buffered() {
			t.Error("an empty heartbeat counts as a message")
		}
	})
	t.Run("close does not wait for who does not read", func(t *testing.T) {
		conn, _ := sockets(t, Config{CloseTime: bound, MaxPending: 4 << 20}, true)
		for range 3 {
			statustest.OK(t, conn.Send(20, make([]byte, 1<<20)))
		}
		conn.Close()
	})
}

// A dialer sends heartbeats as often as the Welcome asks, if its own options are for fewer of them. One that follows
// waits as long for its peer as the peer does for it.
func TestHeartbeatsAreAsOftenAsTheWelcomeAsks(t *testing.T) {
	for name, place := range places(t) {
		t.Run(name, func(t *testing.T) {
			address, o := place(t)
			l := listen(t, address, o)
			const own, asked = time.Hour, 20 * time.Millisecond
			for _, c := range []struct{ asks, want time.Duration }{{asked, asked}, {0, own}, {2 * own, own}} {
				o.Config.Heartbeat, o.Config.Silence = own, 3*time.Hour
				dialed := make(chan *Conn, 1)
				go func() {
					conn, _, err := Dial(t.Context(), l.Address(), &wire.Hello{Role: wire.Role_ROLE_CLIENT}, o)
					statustest.Check(t, err)
					dialed <- conn
				}()
				in := statustest.Value(l.Accept()).OK(t)
				in.Silence = 2 * time.Hour
				statustest.Check(t, in.Welcome(&wire.Welcome{HeartbeatMs: uint32(c.asks / time.Millisecond)}))
				conn := <-dialed
				if conn == nil {
					return
				}
				statustest.Equal(t, conn.config.Heartbeat, c.want, "asked for one each %v, it sends one each", c.asks)
				silence := 3 * time.Hour
				if o.Follows {
					silence = in.Silence
				}
				statustest.Equal(t, conn.config.Silence, silence, "it waits for")
				o.Follows = !o.Follows
				if c.want == asked { // which come, though the timer was set for the other interval
					heard := in.Conn.(*Conn).reader.reads.Load
					go in.Recv() // which passes over heartbeats until the connection ends
					before := heard()
					statustest.Soon(t, func() bool { return heard() >= before+2 }, true, "two have come")
				}
				conn.Close()
				in.Conn.Close()
			}
		})
	}
}

// A dialer that stands still between its connection and its Hello sends no heartbeat first, which no listener would
// let in. The side that has read a Hello sends them at once.
func TestHeartbeatsFollowTheHello(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		config := Config{Heartbeat: time.Second}
		dialed, accepted := net.Pipe()
		c := New(dialed, "the listener", config, true)
		frames := make(chan []byte)
		go func() {
			defer close(frames)
			for got := make([]byte, header); ; {
				if _, err := io.ReadFull(accepted, got); err != nil {
					return
				}
				frames <- bytes.Clone(got)
			}
		}()
		time.Sleep(10 * config.Heartbeat)
		statustest.OK(t, c.Send(wire.KindHello, nil))
		for _, want := range []wire.Kind{wire.KindHello, wire.KindHeartbeat} {
			if got := <-frames; !bytes.Equal(got, frame(want, nil)) {
				t.Errorf("sent %v, want a message of kind %d", got, want)
			}
		}
		accepted.Close()
		for range frames {
		}
		c.Close()

		dialed, accepted = net.Pipe()
		c = newConn(accepted, "the dialer", config, false, frame(wire.KindHello, nil))
		got := make([]byte, header)
		if _, err := io.ReadFull(dialed, got); err != nil || !bytes.Equal(got, frame(wire.KindHeartbeat, nil)) {
			t.Errorf("%v %v", got, err)
		}
		dialed.Close()
		c.Close()
	})
}

func TestFilesCrossWithTheirFrames(t *testing.T) {
	address := "unix:" + filepath.Join(t.TempDir(), "s")
	o := Options{Credentials: cred()}
	x, y := transporttest.Greeted(t, listen(t, address, o), o)
	a, b := x.(*Conn), y.(*Conn)
	defer a.Close()
	defer b.Close()
	b.TakeFiles()
	const n = 20
	for i := range n {
		path := filepath.Join(t.TempDir(), "f")
		statustest.OK(t, os.WriteFile(path, []byte{byte(i)}, 0o600))
		f := statustest.Value(os.Open(path)).OK(t)
		defer f.Close()
		statustest.OK(t, a.Send(20, make([]byte, i*1000)))
		statustest.OK(t, a.PostFile(21, []byte{byte(i)}, f))
	}
	for i := range n {
		if k, payload, err := b.Recv(); k != 20 || len(payload) != i*1000 || err != nil {
			t.Fatal(k, len(payload), err)
		}
		k, payload, err := b.Recv()
		if k != 21 || err != nil || payload[0] != byte(i) {
			t.Fatal(k, payload, err)
		}
		f := b.File()
		if f == nil {
			t.Fatalf("no file came with message %d", i)
		}
		if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, []byte{byte(i)}) {
			t.Errorf("file %d holds %v, %v", i, got, err)
		}
		f.Close()
	}
	if b.File() != nil {
		t.Error("a file came that was not sent")
	}
	// Files that no message speaks of end the connection, and are closed.
	f, err := os.Open(os.DevNull)
	statustest.OK(t, err)
	defer f.Close()
	for range maxFiles + 10 {
		if a.PostFile(22, nil, f) != nil {
			break
		}
	}
	for err == nil {
		_, _, err = b.Recv()
	}
	b.DropFiles()
	if b.File() != nil {
		t.Error("a file is left")
	}
}

func TestDetachedSocketHasWhatWasNotRead(t *testing.T) {
	conn, raw := sockets(t, Config{}, true)
	raw.Write(append(frame(20, []byte("x")), "rest"...))
	statustest.OK(t, statustest.Of2(conn.Recv()))
	statustest.OK(t, conn.Send(21, []byte("y")))
	socket, rest, err := conn.Detach(22, []byte("z"))
	statustest.OK(t, err)
	defer socket.Close()
	more := make([]byte, 4-len(rest))
	if _, err := io.ReadFull(socket, more); err != nil || string(append(rest, more...)) != "rest" {
		t.Errorf("%q %q %v", rest, more, err)
	}
	got := make([]byte, 12)
	if _, err := io.ReadFull(raw, got); err != nil ||
		!bytes.Equal(got, append(frame(21, []byte("y")), frame(22, []byte("z"))...)) {
		t.Errorf("%v %v", got, err)
	}
	conn.Close()
	statustest.Check(t, statustest.Of(socket.Write([]byte("z"))))
}

func TestListenChecksAddresses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	statustest.OK(t, os.WriteFile(file, nil, 0o600))
	secured := transporttest.Certificates(t)
	open := secured.Clone()
	open.ClientAuth = tls.NoClientCert
	for _, c := range []struct {
		address string
		o       Options
		code    status.Code
	}{
		{"x", Options{}, status.InvalidArgument},
		{"unix:", Options{}, status.InvalidArgument},
		{"tcp:localhost", Options{}, status.InvalidArgument},
		{"unix:/" + strings.Repeat("x", 200), Options{}, status.InvalidArgument},
		{"unix:" + file, Options{}, status.AlreadyExists},
		{"tcp:0.0.0.0:0", Options{Credentials: cred()}, status.FailedPrecondition},
		{"tcp::0", Options{Credentials: cred()}, status.FailedPrecondition},
		{"tcp:example.org:1", Options{Credentials: cred()}, status.FailedPrecondition},
		{"tcp:127.0.0.1:0", Options{TLS: open}, status.FailedPrecondition},
		{"tcp:127.0.0.1:0", Options{Credentials: cred(), TLS: &tls.Config{RootCAs: secured.RootCAs}},
			status.FailedPrecondition},
	} {
		l, err := Listen(c.address, c.o, nil)
		statustest.Fails(t, c.address, err, c.code)
		if err == nil {
			l.Close()
		}
	}
	statustest.Fails(t, "another machine without TLS", statustest.Of2(Dial(context.Background(), "tcp:10.1.2.3:4",
		&wire.Hello{}, Options{Credentials: cred()})), status.FailedPrecondition)

	address := "unix:" + filepath.Join(dir, "s")
	l := listen(t, address, Options{})
	info, err := os.Stat(filepath.Join(dir, "s"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	statustest.Fails(t, "a socket in use", statustest.Of(Listen(address, Options{}, nil)), status.AlreadyExists)
	l.net.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	statustest.OK(t, statustest.Of(os.Stat(filepath.Join(dir, "s"))))
	listen(t, address, Options{}) // a stale file is replaced
}

func TestCertificatesOfStrangersAreRefused(t *testing.T) {
	o := Options{Credentials: cred(), TLS: transporttest.Certificates(t)}
	l := listen(t, "tcp:127.0.0.1:0", o)
	for name, with := range map[string]*tls.Config{
		"another authority": transporttest.Certificates(t),
		"no certificate":    {RootCAs: o.TLS.RootCAs},
		"old TLS":           {RootCAs: o.TLS.RootCAs, Certificates: o.TLS.Certificates, MaxVersion: tls.VersionTLS12},
	} {
		if _, _, err := Dial(context.Background(), l.Address(), &wire.Hello{},
			Options{Credentials: cred(), TLS: with}); err == nil {
			t.Errorf("%s: let in", name)
		}
	}
	if _, _, err := Dial(context.Background(), l.Address(), &wire.Hello{}, Options{Credentials: cred()}); err == nil {
		t.Error("no TLS: let in")
	}
	a, b := transporttest.Greeted(t, l, o)
	a.Close()
	b.Close()
}

// FuzzRecv feeds a reader bytes: it returns the messages in them, or an error,
// and never more than they hold.
func FuzzRecv(f *testing.F) {
	f.Add(frame(20, []byte("hello")))
	f.Add(append(frame(wire.KindHeartbeat, nil), frame(21, make([]byte, 70000))...))
	f.Add([]byte{255, 255, 255, 3, 1, 0, 0})
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		left, right := net.Pipe()
		c := New(right, "the test", Config{MaxFrame: 1 << 20}, true)
		go func() {
			left.Write(in)
			left.Close()
		}()
		var again []byte
		for {
			c.Buffered()
			k, payload, err := c.Recv()
			if err != nil {
				break
			}
			again = append(again, frame(k, payload)...)
		}
		c.Close()
		// What was received is what was sent, but for heartbeats.
		var want []byte
		for len(in) >= header {
			n := int(binary.LittleEndian.Uint32(in))
			if n > 1<<20 || in[4] == 0 || len(in) < header+n {
				break
			}
			if n > 0 || wire.Kind(in[4]) != wire.KindHeartbeat {
				want = append(want, in[:header+n]...)
			}
			in = in[header+n:]
		}
		if !bytes.Equal(again, want) {
			t.Errorf("received %d bytes of messages, sent %d", len(again), len(want))
		}
	})
}

// What the peer said before it closed is received, also by who learns from a write
// that it has closed.
func TestWhatThePeerSaidLastIsReceived(t *testing.T) {
	for name, place := range places(t) {
		t.Run(name, func(t *testing.T) {
			address, o := place(t)
			a, b := transporttest.Greeted(t, listen(t, address, o), o)
			statustest.OK(t, a.Send(wire.KindGoodbye, []byte("enough")))
			a.Close()
			statustest.Soon(t, func() bool { return b.Send(wire.KindHeartbeat, []byte("to nobody")) != nil }, true,
				"what is sent to a closed connection fails")
			if kind, payload, err := b.Recv(); err != nil || kind != wire.KindGoodbye || string(payload) != "enough" {
				t.Errorf("received %v %q, %v", kind, payload, err)
			}
			statustest.Fails(t, "afterwards", statustest.Of2(b.Recv()), status.Unavailable)
			b.Close()
		})
	}
}
