package bulk

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/stream"
)

// A test binary that is started with this in its environment is another process:
// "number kind directory mode size". It prints its address, and one of plain
// sockets, and reads the addresses of the test's processes from its standard input,
// whose end is its own.
const processEnv = "BULK_PROCESS"

func TestMain(m *testing.M) {
	if s := os.Getenv(processEnv); s != "" {
		if err := process(s); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0") // or each process of a test ends a second later
	goleak.VerifyTestMain(m)
}

func key(id, part uint64) transport.Key {
	return transport.Key{Space: transport.Transfers(1), ID: id, Part: part}
}

// fill makes bytes that tell blocks apart, in memory that is no other's yet:
// looking at each of them would take the race detector most of a test's time.
//
//go:norace
func fill(b []byte, seed uint64) {
	for i := range b {
		b[i] = byte(uint64(i)*31 + uint64(i)>>8 + seed)
	}
}

// patience is how long processes wait for each other, where a test waits for them to give up.
const patience = 300 * time.Millisecond

func listen(kind, dir string, number int, dialTime time.Duration) (*Exchange, string, error) {
	l, err := stream.Listen(address(kind, dir, number), options(), nil)
	if err != nil {
		return nil, "", err
	}
	x, err := New(Config{Self: uint64(number), Host: "here", Hello: &wire.Hello{Cluster: "test"}, Options: options(),
		Listeners: []transport.Listener{l}, Lends: true, DialTime: dialTime})
	return x, l.Address(), err
}

// process is another process.
func process(s string) error {
	var number, size int
	var kind, dir, mode string
	if _, err := fmt.Sscan(s, &number, &kind, &dir, &mode, &size); err != nil {
		return err
	}
	x, at, err := listen(kind, dir, number, patience)
	if err != nil {
		return err
	}
	network, plainAt := "tcp", "127.0.0.1:0"
	if kind == "unix" {
		network, plainAt = "unix", filepath.Join(dir, fmt.Sprint("plain", number))
	}
	plain, err := net.Listen(network, plainAt)
	if err != nil {
		return err
	}
	go servePlain(plain, size)
	fmt.Println(at)
	fmt.Println(plain.Addr())
	in := bufio.NewReader(os.Stdin)
	test, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	x.Peers([]*wire.Process{{Number: 1, Name: "test", Host: "here", Addresses: []string{strings.TrimSpace(test)}}}, nil,
		nil)
	switch mode {
	case "sink":
		take(x, 1, 1, size, nil, func(_ uint64, b transport.Block) { b.Release() })
	case "into":
		take(x, 1, 1, size, make([]byte, size), func(uint64, transport.Block) {})
	case "echo": // sends them back
		take(x, 1, 1, size, nil, func(id uint64, b transport.Block) {
			x.PushBytes(1, key(id, 1), b.Data, func(error) { b.Release() })
		})
	case "flood": // sends blocks, as many as are taken, and takes what comes
		data := make([]byte, size)
		for id := range uint64(8) {
			var send func(id uint64)
			send = func(id uint64) {
				x.PushBytes(1, key(id, 1), data, func(err error) {
					if err == nil {
						send(id + 8)
					}
				})
			}
			send(id)
			take(x, id, 8, size, nil, func(_ uint64, b transport.Block) { b.Release() })
		}
	}
	_, _ = io.Copy(io.Discard, in) // until the test ends it
	return x.Close()
}

// take takes blocks id, id + step … of the test's, into memory of its own or new one.
func take(x *Exchange, id, step uint64, size int, own []byte, came func(id uint64, b transport.Block)) {
	x.Expect(1, key(id, 0), int64(size), own, func(b transport.Block, err error) {
		if err == nil {
			came(id, b)
			take(x, id+step, step, size, own, came)
		}
	})
}

// servePlain takes size bytes at a time, and answers with one.
func servePlain(l net.Listener, size int) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		into := make([]byte, size)
		for {
			if _, err := io.ReadFull(c, into); err != nil {
				break
			}
			if _, err := c.Write(into[:1]); err != nil {
				break
			}
		}
		c.Close()
	}
}

// child is another process.
type child struct {
	number  int
	address string
	plain   string
	command *exec.Cmd
	stdin   io.WriteCloser
}

// with starts other processes, numbers 2, 3 …, and returns process 1.
func with(t testing.TB, kind, mode string, size, others int) (*Exchange, []*child) {
	t.Helper()
	return withIn(t, kind, mode, size, others, patience)
}

// withIn is with, of a process 1 that waits so long for others.
func withIn(t testing.TB, kind, mode string, size, others int, dialTime time.Duration) (*Exchange, []*child) {
	t.Helper()
	dir := t.TempDir()
	x, at, err := listen(kind, dir, 1, dialTime)
	statustest.OK(t, err)
	t.Cleanup(func() { x.Close() })
	var children []*child
	for number := 2; number < 2+others; number++ {
		c := &child{number: number, command: exec.Command(os.Args[0])}
		c.command.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s %s %s %d", processEnv, number, kind, dir, mode, size))
		c.command.Stderr = os.Stderr
		c.stdin, err = c.command.StdinPipe()
		statustest.OK(t, err)
		out := statustest.Value(c.command.StdoutPipe()).OK(t)
		statustest.OK(t, c.command.Start())
		t.Cleanup(func() {
			_ = c.command.Process.Signal(unix.SIGCONT) // the test may have failed while it was stopped
			c.stdin.Close()
			_ = c.command.Wait() // it may have been killed
		})
		statustest.OK(t, statustest.Of(fmt.Fscan(out, &c.address, &c.plain)))
		fmt.Fprintln(c.stdin, at)
		x.Peers([]*wire.Process{
			{Number: uint64(number), Name: fmt.Sprint("child-", number), Host: "here", Addresses: []string{c.address}}}, nil,
			nil)
		children = append(children, c)
	}
	return x, children
}

// nothingLeft returns a function that fails the test where this process holds more than it does now.
func nothingLeft(t testing.TB) func() {
	t.Helper()
	files, shared := held(t)
	return func() {
		t.Helper()
		if f, s := held(t); f > files || s > shared {
			t.Errorf("%d open files and %d mappings of shared memory are left, %d and %d were there before", f, s, files,
				shared)
		}
	}
}

// held is what this process holds of the system: open files, and mappings of
// shared memory.
func held(t testing.TB) (files int, shared int) {
	t.Helper()
	fds := statustest.Value(os.ReadDir("/proc/self/fd")).OK(t)
	for _, fd := range fds {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.Contains(to, "socket:") ||
			strings.Contains(to, "memfd:") {
			files++
		}
	}
	maps := statustest.Value(os.ReadFile("/proc/self/maps")).OK(t)
	return files, bytes.Count(maps, []byte("memfd:pathways"))
}

// Bytes go to another process and come back as they were.
func TestBytesGoToAnotherProcessAndBack(t *testing.T) {
	for _, kind := range []string{"unix", "tcp"} {
		for _, size := range []int{0, 8, 16 << 10, 100_000, 5<<20 + 3} {
			t.Run(fmt.Sprint(kind, size), func(t *testing.T) {
				left := nothingLeft(t)
				x, _ := with(t, kind, "echo", size, 1)
				var back sync.WaitGroup
				blocks := uint64(20)
				if size > 1<<20 {
					blocks = 5
				}
				for id := uint64(1); id <= blocks; id++ {
					data := make([]byte, size)
					fill(data, id)
					back.Add(2)
					x.PushBytes(2, key(id, 0), data, func(err error) {
						statustest.Check(t, err)
						back.Done()
					})
					x.Expect(2, key(id, 1), int64(size), nil, func(b transport.Block, err error) {
						defer back.Done()
						if err != nil {
							t.Error(err)
							return
						}
						if !bytes.Equal(b.Data, data) {
							t.Errorf("block %d came back as other bytes", id)
						}
						b.Release()
					})
				}
				back.Wait()
				x.Close()
				left()
			})
		}
	}
}

// A process is killed while blocks go both ways. What was under way with it ends,
// and its neighbor goes on.
func TestKilledProcessLeavesItsNeighborWorking(t *testing.T) {
	const size = 4 << 20
	for _, kind := range []string{"unix", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			left := nothingLeft(t)
			x, children := with(t, kind, "flood", size, 2)
			data := make([]byte, size)
			var ends, others sync.WaitGroup // of what goes with the first, and with the second
			check := func(err error) {
				statustest.Fails(t, "the error", err, status.Unavailable, "process 2 (child-2)")
			}
			first, second := make(chan struct{}, 1), make(chan struct{}, 1) // a block went to or came from them
			for _, c := range children {
				peer := uint64(c.number)
				for id := range uint64(8) {
					var send, take func(id uint64)
					end := func(err error) bool {
						of := second
						if peer == 2 {
							of = first
						}
						if err == nil {
							select {
							case of <- struct{}{}:
							default:
							}
						} else if peer == 2 {
							check(err)
							ends.Done()
						} else {
							others.Done()
						}
						return err == nil
					}
					send = func(id uint64) {
						x.PushBytes(peer, key(id, 0), data, func(err error) {
							if end(err) {
								send(id + 8)
							}
						})
					}
					take = func(id uint64) {
						x.Expect(peer, key(id, 1), size, nil, func(b transport.Block, err error) {
							if err == nil {
								b.Release()
							}
							if end(err) {
								take(id + 8)
							}
						})
					}
					if peer == 2 {
						ends.Add(2)
					} else {
						others.Add(2)
					}
					send(id)
					take(id)
				}
			}
			for range 40 {
				<-first // it is in the middle
			}
			statustest.OK(t, children[0].command.Process.Kill())
			ends.Wait()
			for range 40 {
				<-second
			}
			x.Close()
			others.Wait() // until then a block may be in use
			left()
		})
	}
}

// An exchange that closes while it gets memory for a block waits for that.
func TestCloseWhileMemoryIsMade(t *testing.T) {
	data := make([]byte, 32<<20)
	for range 5 {
		left := nothingLeft(t)
		x, _ := with(t, "unix", "echo", len(data), 1)
		sent := make(chan error, 1)
		x.PushBytes(2, key(1, 0), data, func(err error) { sent <- err })
		x.Expect(2, key(1, 1), int64(len(data)), nil, func(b transport.Block, err error) {
			if err == nil {
				b.Release()
			}
		})
		statustest.Soon(t, func() bool { return x.pool.Stats().Mapped > 0 || len(sent) > 0 }, true, "it is being sent")
		x.Close()
		left()
	}
}
