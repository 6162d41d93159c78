package worker

import (
	"strings"
	"sync"

	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport/collective"
)

// collective answers a device's call of a collective.
func (w *Worker) collective(c *device.CollectiveCall) {
	spec, err := w.specs.of(c.Spec)
	if err != nil {
		c.Done(err)
		return
	}
	call := collective.Call{Launch: c.Launch, Local: c.Local, Spec: spec, Operands: c.Operands, Results: c.Results,
		Done: c.Done}
	w.observe(&call)
	w.config.Engine.Enter(call)
}

// specs are the collectives that programs call, each read once.
type specs struct {
	mu   sync.RWMutex // guards read
	read map[string]*spmd.Spec
}

// Specs that are kept; where there are more, all are read again.
const maxSpecs = 4096

func (s *specs) of(text string) (*spmd.Spec, error) {
	s.mu.RLock()
	spec := s.read[text]
	s.mu.RUnlock()
	if spec != nil {
		return spec, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if spec := s.read[text]; spec != nil {
		return spec, nil
	}
	spec, err := spmd.ParseSpec(text)
	if err != nil {
		return nil, err
	}
	if s.read == nil || len(s.read) >= maxSpecs {
		s.read = map[string]*spmd.Spec{}
	}
	s.read[strings.Clone(text)] = spec
	return spec, nil
}
