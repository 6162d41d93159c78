package controller

import (
	"cmp"

	"github.com/openpathways/pathways/core/wire"
)

// The description of a session's devices that its client gets.

// showDevices tells a session's client of its devices and of their workers.
func (st *State) showDevices(s *session, m *wire.Welcome) (complete func()) {
	there := st.present
	s.missing = 0
	s.workers.each(func(slot int) {
		w := st.workers[slot]
		if w.views++; w.gone != nil {
			s.missing++
		}
	})
	for i, p := range s.brings {
		s.platforms = append(s.platforms, p.GetName())
		if i == 0 {
			m.Platform = p
		} else {
			m.MorePlatforms = append(m.MorePlatforms, p)
		}
	}
	platforms, b := s.platforms, s.binding
	return func() { describeDevices(m, b, platforms, there) }
}

// describeDevices fills in the devices of a session's welcome, and their workers, as they were when the session began.
// It reads only what does not change.
func describeDevices(m *wire.Welcome, b *binding, platforms []string, there []*worker) {
	onHost := sharingHosts(there)
	var told set
	for i, span := range b.spans {
		w := b.at[i]
		if !told.has(w.slot) {
			told.add(w.slot)
			m.Workers = append(m.Workers, w.process)
		}
		platform := w.platformIn(platforms)
		for _, local := range w.offer.Devices[span.Local : span.Local+span.Count] {
			d := len(m.Devices)
			m.Devices = append(m.Devices, describeDevice(d, span.Worker, uint32(b.view.Device(d).Island.Index), platform,
				local, onHost[w.process.Host]))
		}
	}
}

// sharingHosts counts, by host, the devices of workers that have no memory but their machine's. It reads only what does
// not change.
func sharingHosts(workers []*worker) map[string]int64 {
	onHost := map[string]int64{}
	for _, w := range workers {
		onHost[w.process.Host] += w.sharesHost()
	}
	return onHost
}

// sharesHost counts the devices of a worker that have no memory but their machine's.
func (w *worker) sharesHost() (devices int64) {
	for _, d := range w.offer.Devices {
		if d.HostMemory > 0 {
			devices++
		}
	}
	return devices
}

// countSharing counts the devices of a worker that comes, or takes them away when it goes, by 1 or -1.
func (st *State) countSharing(w *worker, by int64) {
	host := w.process.Host
	if st.sharing[host] += by * w.sharesHost(); st.sharing[host] == 0 {
		delete(st.sharing, host)
	}
}

// describeDevice returns a device as a client sees it. OnHost is memoryOf's.
func describeDevice(d int, process uint64, slice, platform uint32, local *wire.LocalDevice, onHost int64) *wire.Device {
	limit, share := memoryOf(local, onHost)
	return &wire.Device{Number: uint32(d), Worker: process, Local: local.Local, Slice: slice, Platform: platform,
		Kind: local.Kind, Memories: local.Memories, DefaultMemory: local.DefaultMemory, MemoryLimit: limit,
		MemoryShare: share, HostMemory: local.HostMemory > 0}
}

// memoryOf returns the bytes that arrays may take on a device, and those that they
// may take when as many devices as onHost, of one host, take as much; 0 is not known.
func memoryOf(d *wire.LocalDevice, onHost int64) (limit, share int64) {
	limit = cmp.Or(d.MemoryLimit, d.HostMemory)
	if d.HostMemory <= 0 || onHost <= 0 {
		return limit, limit
	}
	return limit, min(limit, d.HostMemory/onHost)
}
