package cluster_test

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport/link"
	socket "github.com/openpathways/pathways/transport/stream"
)

var connections = flag.Int("connections", 10_000, "how many workers connect to the controller of BenchmarkConnections")

// connectTo names the controller to which a process of BenchmarkConnections connects.
const connectTo = "PATHWAYS_TEST_CONNECT_TO"

// BenchmarkConnections measures what a controller has of memory for workers that are connected to it over sockets, each
// with four devices. They are connections of another process, which is this program again.
func BenchmarkConnections(b *testing.B) {
	if address := os.Getenv(connectTo); address != "" {
		connectAll(b, address)
		return
	}
	address := "unix:" + filepath.Join(b.TempDir(), "c")
	ctx, cancel := context.WithCancel(b.Context())
	ended, listening := make(chan error, 1), make(chan bool)
	go func() {
		ended <- cluster.ServeController(ctx, cluster.ControllerConfig{Listen: []string{address}, Heartbeat: 5 * time.Second,
			Silence: time.Hour, Lease: time.Minute, Log: slog.New(slog.DiscardHandler),
			Listening: func([]string) { close(listening) }})
	}()
	<-listening
	before := memoryUsed(b)
	c := exec.Command(os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkConnections$", "-test.benchtime=1x",
		fmt.Sprint("-connections=", *connections))
	c.Env = append(os.Environ(), connectTo+"="+address)
	in := statustest.Value(c.StdinPipe()).OK(b)
	out := statustest.Value(c.StdoutPipe()).OK(b)
	statustest.OK(b, c.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() && !bytes.HasSuffix(lines.Bytes(), []byte("connected")) {
	}
	after := memoryUsed(b)
	b.ReportMetric(0, "ns/op")
	for i, unit := range []string{"resident", "heap", "stacks"} {
		b.ReportMetric(float64(after[i]-before[i])/float64(*connections)/1024, "KiB-"+unit+"/connection")
	}
	b.ReportMetric(float64(after[0])/(1<<20), "MiB-resident")
	in.Close()
	go func() {
		for lines.Scan() {
		}
	}()
	statustest.Check(b, c.Wait())
	cancel()
	statustest.Check(b, <-ended)
}

// memoryUsed returns how many bytes this process has in memory, in Go's heap, and in stacks.
func memoryUsed(b *testing.B) (all [3]int64) {
	b.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var size, resident int64
	_, err := fmt.Sscan(string(statustest.Value(os.ReadFile("/proc/self/statm")).OK(b)), &size, &resident)
	statustest.OK(b, err)
	return [...]int64{resident * int64(os.Getpagesize()), int64(m.HeapAlloc), int64(m.StackInuse)}
}

// connectAll makes the connections, says so, and keeps them until the standard input ends.
func connectAll(b *testing.B, address string) {
	o := socket.Options{Config: socket.Config{Heartbeat: 5 * time.Second}}
	var reading sync.WaitGroup
	defer reading.Wait()
	for i := range *connections {
		offer := &wire.WorkerOffer{Platform: &wire.Platform{Name: "sim"}}
		for d := range uint32(4) {
			offer.Devices = append(offer.Devices, &wire.LocalDevice{Local: d, Kind: "sim", Memories: []string{"device"}})
		}
		conn, _, err := link.Dial(b.Context(), o, address,
			&wire.Hello{Role: wire.Role_ROLE_WORKER, Name: fmt.Sprint("worker-", i), Worker: offer})
		statustest.OK(b, err)
		defer conn.Close()
		reading.Go(func() {
			for err := error(nil); err == nil; {
				_, _, err = conn.Recv()
			}
		})
	}
	fmt.Println("\nconnected")
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
}
