package worker

import (
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// The engine hears of workers that have gone, and not of clients: it looks for those that have gone among the ranks of
// each gang, once there are any.
func TestEngineHearsOfNoClientsThatHaveGone(t *testing.T) {
	var lost losses
	w := &Worker{names: map[uint64]string{}}
	w.config.Engine, w.config.Exchange = &lost, alone{}
	w.peers(&wire.Peers{Gone: []uint64{1}, Clients: true})
	w.peers(&wire.Peers{Gone: []uint64{2, 3}})
	if !slices.Equal(lost.processes, []uint64{2, 3}) {
		t.Errorf("the engine heard that processes %v have gone, and workers 2 and 3 have", lost.processes)
	}
}

// losses is an engine that writes down which processes it heard have gone.
type losses struct {
	Engine
	processes []uint64
}

func (l *losses) Lost(process uint64, _ error) { l.processes = append(l.processes, process) }

// alone is an exchange without peers.
type alone struct{ transport.Mover }

func (alone) Peers([]*wire.Process, []uint64, error) {}
