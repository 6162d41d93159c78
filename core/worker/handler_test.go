package worker_test

import (
	"context"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// picky is a driver whose compiler refuses programs that lack a handler.
type picky struct {
	device.Driver
	lacks string
}

func (d picky) Compile(ctx context.Context, p device.Program, options []byte) (device.Executable, error) {
	if d.lacks != "" {
		return nil, status.New(status.NotFound, "no handler for %s", d.lacks)
	}
	return d.Driver.Compile(ctx, p, options)
}

// A handler that cannot be had is told of where a program turns out to need it, and
// only there; one that would be another's is an error at once.
func TestMissingHandlerIsReportedWhereItIsNeeded(t *testing.T) {
	for _, c := range []struct {
		lacks string
		why   error
		want  status.Code
		text  string
	}{
		{"", nil, status.OK, ""},
		{"", status.New(status.NotFound, "it is not here"), status.OK, ""},
		{"mine", status.New(status.NotFound, "it is not here"), status.NotFound, "no handler for mine; it is not here"},
		{"other", status.New(status.NotFound, "it is not here"), status.NotFound, "no handler for other"},
		{"", status.New(status.AlreadyExists, "it is another's"), status.AlreadyExists, "it is another's"},
	} {
		drivers := simDrivers(t, 1, 1, sim.Options{})
		drivers[0] = picky{drivers[0], c.lacks}
		s := start(t, drivers, func(w *worker.Config) {
			w.Handler = func(h *wire.Handler) error {
				statustest.Equal(t, h.Target, "mine", "it is asked for")
				return c.why
			}
		})
		p := addOne()
		s.tell(wire.KindCompile,
			&wire.Compile{Op: 1, Format: sim.Format, Code: p.Source().Code, Options: sim.CompileOptions([]int{0}),
				Places: []*wire.Place{{Worker: firstWorker}}, Handlers: []*wire.Handler{{Target: "mine"}}})
		s.until("a compile", func() bool { return len(s.compiled) == 1 })
		s.mu.Lock()
		m := s.compiled[0]
		s.mu.Unlock()
		err := m.Status.Err()
		if status.CodeOf(err) != c.want || c.want != status.OK && !strings.HasSuffix(err.Error(), c.text) {
			t.Errorf("lacking %q, for the reason %v: %v, want %v and %q", c.lacks, c.why, err, c.want, c.text)
		}
		if c.want == status.OK && len(m.Loadable.GetHandlers()) != 1 {
			t.Error("who loads the program does not hear of its handler")
		}
	}
}
