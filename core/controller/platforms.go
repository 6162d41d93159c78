package controller

import (
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// maxPlatforms bounds the platforms that a client may name. There are fewer.
const maxPlatforms = 16

// platformsFor returns the platforms of the devices that a client will see, or why it may not have a session now.
func (st *State) platformsFor(h *wire.Hello) ([]string, error) {
	if len(h.Platforms) == 0 {
		return []string{st.layout.DefaultPlatform()}, nil
	}
	if len(h.Platforms) > maxPlatforms {
		return nil, invalid("a session of %d platforms was asked for; at most %d", len(h.Platforms), maxPlatforms)
	}
	there := st.layout.Platforms()
	for i, p := range h.Platforms {
		switch {
		case slices.Contains(h.Platforms[:i], p):
			return nil, invalid("a session was asked for with devices of platform %s twice; name each platform once", p)
		case h.Elastic && i > 0:
			return nil, invalid("an elastic session of several platforms was asked for; its devices are of one platform")
		case len(there) > 0 && !slices.Contains(there, p):
			return nil, status.New(status.ResourceExhausted, "the cluster has no devices of platform %s, and has some of %s; "+
				"start workers with such devices, or ask for another platform", p, strings.Join(there, " and "))
		}
	}
	return h.Platforms, nil
}

// knowPlatform adds the platform of a worker's devices, unless it is known.
func (b *binding) knowPlatform(w *worker) {
	if !slices.ContainsFunc(b.brings, func(p *wire.Platform) bool { return p.Name == w.platform }) {
		b.brings = append(b.brings, w.offer.Platform)
	}
}

// platformIn returns the index of a worker's platform among a session's.
func (w *worker) platformIn(platforms []string) uint32 {
	return uint32(max(0, slices.Index(platforms, w.platform)))
}
