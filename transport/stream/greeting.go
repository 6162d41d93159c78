package stream

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// Bounds of connections that have not said hello yet.
const (
	maxNewcomers = 1024     // of a listener
	maxOfSource  = 512      // of those, from one source
	greetingSize = 64 << 10 // bytes of a hello: a worker's with a thousand devices fits
	firstSize    = 4 << 10  // of a hello, by which the token has been shown; without it no more are read
	farewellTime = time.Second
)

// A newcomer is a connection that has not said hello yet.
type newcomer struct {
	socket net.Conn
	peer   string
	source string // whose bound it counts for
	spoke  bool   // something was read from it; guarded by newcomers.mu
	gone   bool   // it made room for another; guarded by newcomers.mu
}

// newcomers are those of a listener. One that comes is always taken: where there are too many, the oldest goes that
// has said nothing, of the same source or of the one that has the most.
type newcomers struct {
	mu     sync.Mutex
	all    []*newcomer    // as they came
	counts map[string]int // of each source
}

// add takes a newcomer, and returns the one that has to go, or nil.
func (a *newcomers) add(n *newcomer) (out *newcomer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts == nil {
		a.counts = map[string]int{}
	}
	switch {
	case a.counts[n.source] >= maxOfSource:
		out = a.oldest(n.source)
	case len(a.all) >= maxNewcomers:
		most := ""
		for source, count := range a.counts {
			if count > a.counts[most] {
				most = source
			}
		}
		out = a.oldest(most)
	}
	if out != nil {
		out.gone = true
		a.drop(out)
	}
	a.all = append(a.all, n)
	a.counts[n.source]++
	return out
}

// oldest is who of a source goes first. Called with mu.
func (a *newcomers) oldest(source string) *newcomer {
	at := slices.IndexFunc(a.all, func(n *newcomer) bool { return n.source == source && !n.spoke && !hasSpoken(n.socket) })
	if at < 0 {
		at = slices.IndexFunc(a.all, func(n *newcomer) bool { return n.source == source })
	}
	return a.all[at]
}

// hasSpoken reports whether there is something to be read from a socket.
func hasSpoken(socket net.Conn) (spoken bool) {
	if raw := rawOf(socket); raw != nil {
		_ = raw.Control(func(fd uintptr) { // it fails where the socket was closed
			n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			spoken = err == nil && n > 0
		})
	}
	return spoken
}

func (a *newcomers) drop(n *newcomer) {
	at := slices.Index(a.all, n)
	if at < 0 {
		return
	}
	a.all = slices.Delete(a.all, at, at+1)
	if a.counts[n.source]--; a.counts[n.source] == 0 {
		delete(a.counts, n.source)
	}
}

func (a *newcomers) spoke(n *newcomer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n.spoke = true
}

// remove takes one out that has greeted or ended. It reports whether it had to make room before.
func (a *newcomers) remove(n *newcomer) (gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(n)
	return n.gone
}

// close ends all.
func (a *newcomers) close() {
	a.mu.Lock()
	all := slices.Clone(a.all)
	a.mu.Unlock()
	for _, n := range all {
		n.socket.Close()
	}
}

// sourceOf names the source that a connection counts against: the process at the other end of a unix socket, or the
// address at that of TCP. For IPv6 it is the network, since providers assign no less.
func sourceOf(socket net.Conn) string {
	tcp, ok := socket.RemoteAddr().(*net.TCPAddr)
	if !ok {
		process := ""
		if raw := rawOf(socket); raw != nil {
			_ = raw.Control(func(fd uintptr) {
				if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
					process = fmt.Sprint("process ", peer.Pid)
				}
			})
		}
		return process
	}
	ip := tcp.AddrPort().Addr().Unmap()
	if ip.Is6() {
		const network = 64 // bits
		return netip.PrefixFrom(ip.WithZone(""), network).Masked().String()
	}
	return ip.String()
}

// speaksTLS reports whether what came first is a TLS record of a handshake. As a frame's header it would announce more
// than a greeting may have.
func speaksTLS(first []byte) bool {
	const handshake, major, lastMinor = 22, 3, 4
	return first[0] == handshake && first[1] == major && first[2] >= 1 && first[2] <= lastMinor
}

// resumed is a socket whose first bytes were read already.
type resumed struct {
	net.Conn
	first []byte
}

func (r *resumed) Read(into []byte) (int, error) {
	if len(r.first) > 0 {
		n := copy(into, r.first)
		r.first = r.first[n:]
		return n, nil
	}
	return r.Conn.Read(into)
}

// readGreeting reads the frame of a Hello, whose header has come, and nothing after it. Its memory grows as bytes come;
// a newcomer that has to show a token and does not is read no further.
func readGreeting(socket io.Reader, head []byte, cred transport.Credentials) ([]byte, error) {
	n, kind := int(binary.LittleEndian.Uint32(head)), wire.Kind(head[4])
	switch {
	case kind != wire.KindHello:
		return nil, status.New(status.InvalidArgument,
			"it began with a message of kind %v, expected %v; is it a process of Open Pathways?", kind, wire.KindHello)
	case n > greetingSize:
		return nil, status.New(status.InvalidArgument, "it began with a message of %d bytes, at most %d are allowed", n,
			greetingSize)
	}
	frame := slices.Clone(head)
	for checked := false; len(frame) < header+n; {
		if !checked && len(frame) >= firstSize {
			if err := cred.Begins(frame[header:]); err != nil {
				return nil, err
			}
			checked = true
		}
		step := min(header+n-len(frame), max(len(frame), firstSize-len(frame)))
		frame = slices.Grow(frame, step)
		got, err := io.ReadFull(socket, frame[len(frame):len(frame)+step])
		frame = frame[:len(frame)+got]
		if err != nil {
			return nil, cut(err)
		}
	}
	return frame, nil
}

// refuse tells a newcomer why it is not let in, as transport.Incoming does.
func refuse(socket net.Conn, software string, why error) {
	payload, err := proto.Marshal(&wire.Welcome{Status: wire.Of(why), Software: software})
	if err == nil {
		_, _ = socket.Write(wire.AppendFrame(nil, wire.KindWelcome, payload)) // it may have gone
	}
}

// part ends a connection so that its last words arrive: what a closed socket has not read makes the system take them
// back.
func part(socket net.Conn) {
	if half, ok := socket.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = socket.SetReadDeadline(time.Now().Add(farewellTime))
		_, _ = io.CopyN(io.Discard, socket, greetingSize)
	}
	socket.Close()
}
