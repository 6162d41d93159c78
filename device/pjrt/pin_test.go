package pjrt

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
)

func TestACPUPinsNothing(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		unpin, err := client(t, p, 1).Pin(make([]byte, 4096))
		if unpin != nil || status.CodeOf(err) != status.Unimplemented {
			t.Errorf("error %v", err)
		}
	})
}

// BenchmarkHostMemory is how fast arrays come from and go to memory that the devices were told of, and other memory.
// PATHWAYS_PLUGIN names the plugin; a CPU's shows nothing here.
func BenchmarkHostMemory(b *testing.B) {
	c := client(b, plugins(b)[0], 1)
	for _, mib := range []int64{1, 16, 256} {
		size := mib << 20
		data, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
		statustest.OK(b, err)
		s := shape.Shape{DType: shape.U8, Dims: []int64{size}}
		come := func() device.Buffer {
			done := make(chan struct{})
			x, err := c.FromHost(device.Host{Shape: s, Data: data, Semantics: device.UntilDone, Done: func() { close(done) }})
			if err == nil {
				err = x.Ready().Wait(b.Context())
			}
			statustest.OK(b, err)
			<-done
			return x
		}
		unpin := func() {}
		for _, kind := range []string{"pageable", "pinned"} {
			b.Run(fmt.Sprintf("%d MiB/%s/to the device", mib, kind), func(b *testing.B) {
				if kind == "pinned" {
					if unpin, err = c.Pin(data); err != nil {
						b.Skip(err)
					}
				}
				defer unpin()
				b.SetBytes(size)
				for b.Loop() {
					come().Close()
				}
			})
			b.Run(fmt.Sprintf("%d MiB/%s/to the host", mib, kind), func(b *testing.B) {
				if kind == "pinned" {
					if unpin, err = c.Pin(data); err != nil {
						b.Skip(err)
					}
				}
				defer unpin()
				x := come()
				defer x.Close()
				b.SetBytes(size)
				for b.Loop() {
					e, err := x.ToHost(data)
					if err == nil {
						err = e.Wait(b.Context())
					}
					statustest.OK(b, err)
				}
			})
		}
		statustest.OK(b, unix.Munmap(data))
	}
}
