package worker_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/content"
)

// counting is a driver that counts compiles.
type counting struct {
	device.Driver
	compiles *atomic.Int32
}

func (d counting) Compile(ctx context.Context, p device.Program, options []byte) (device.Executable, error) {
	d.compiles.Add(1)
	return d.Driver.Compile(ctx, p, options)
}

// damage cuts the only file of a folder.
func damage(t *testing.T, folder string) {
	files := statustest.Value(filepath.Glob(filepath.Join(folder, "*.program"))).OK(t)
	statustest.MustEqual(t, len(files), 1, "the folder has files")
	statustest.OK(t, os.Truncate(files[0], 50))
}

// What a worker compiled is found by the next one with the same folder, whether its bytes go with the answer or not:
// then others can have them from there. The client need not send its text. A damaged file is compiled again.
func TestCacheOutlivesTheWorker(t *testing.T) {
	for name, inline := range map[string]uint64{"in messages": 1 << 20, "apart": 1} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			var made []byte
			for i, want := range []int32{1, 0, 1, 0} {
				t.Run("", func(t *testing.T) {
					if i == 2 {
						damage(t, folder)
					}
					drivers := simDrivers(t, 1, 1, sim.Options{})
					compiles := new(atomic.Int32)
					drivers[0] = counting{drivers[0], compiles}
					s := start(t, drivers, func(c *worker.Config) { c.Cache, c.DeviceID = folder, nil })
					p := addOne()
					m := &wire.Compile{Op: 9, Format: sim.Format, Options: sim.CompileOptions([]int{0}),
						Key: strings.Repeat("0a", 32), Inline: inline, Places: []*wire.Place{{Worker: firstWorker}},
						Text: wire.ContentOf(p.Source().Code)}
					m.Text.Process, m.Text.Transfer = clientProcess, 100
					sent := make(chan error, 1)
					content.Send(s.client, firstWorker, 100, [][]byte{p.Source().Code}, func(err error) { sent <- err })
					s.tell(wire.KindCompile, m)
					s.until("an answer", func() bool { return len(s.compiled) == 1 })
					answer := s.compiled[0]
					if answer.Status.Err() != nil || answer.Info.GetName() != p.Name || answer.Cached != (want == 0) ||
						answer.Loadable.Kept != (inline == 1) {
						t.Fatalf("the answer is %v", answer)
					}
					statustest.Equal(t, compiles.Load(), want, "how often it was compiled")
					switch err := <-sent; {
					case want > 0 && err != nil:
						t.Errorf("the text was not taken: %v", err)
					case want == 0 && status.CodeOf(err) != status.Cancelled:
						t.Errorf("the text that is not needed returns %v", err)
					}
					got := answer.Loadable.Serialized
					if answer.Loadable.Kept {
						var err error
						if got, err = s.fetched(9, 101); err != nil {
							t.Fatal(err)
						}
					}
					if i == 0 {
						made = bytes.Clone(got)
					} else if !bytes.Equal(got, made) || len(got) == 0 {
						t.Errorf("it has %d bytes, want the %d that were made first", len(got), len(made))
					}
				})
			}
		})
	}
}
