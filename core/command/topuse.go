package command

import "github.com/openpathways/pathways/core/wire"

// uses is how busy devices were lately, as successive reports tell. Computations count when they have ended.
type uses map[uint64][]useLook // by worker's number, oldest first

// useLook is the device time of a worker's devices up to a moment.
type useLook struct {
	at int64   // milliseconds since the controller began
	ns []int64 // by device
}

// overLooks is over how many looks each value is the average: workers tell once a second, and not when one looks.
const overLooks = 3

// add takes a look at a cluster.
func (u uses) add(r *wire.Report) {
	there := map[uint64]bool{}
	for _, w := range r.EachWorker() {
		n := w.Process.GetNumber()
		there[n] = true
		looks := u[n]
		if len(looks) > 0 && looks[len(looks)-1].at > r.UptimeMs { // another controller
			looks = nil
		}
		if len(looks) == 0 || looks[len(looks)-1].at < r.UptimeMs { // otherwise it is the same report
			looks = append(looks, useLook{r.UptimeMs, w.Last.GetDeviceNs()})
		}
		u[n] = looks[max(0, len(looks)-sparks-overLooks):]
	}
	for n := range u {
		if !there[n] {
			delete(u, n)
		}
	}
}

// of returns what part of its time a device was busy, from 0 to 1, oldest first.
func (u uses) of(worker uint64, device int) (busy []float64) {
	looks := u[worker]
	for i := 1; i < len(looks); i++ {
		from, to := looks[max(0, i-overLooks)], looks[i]
		if device >= len(from.ns) || device >= len(to.ns) {
			continue
		}
		busy = append(busy, min(1, max(0, float64(to.ns[device]-from.ns[device])/float64(to.at-from.at)/1e6)))
	}
	return busy[max(0, len(busy)-sparks):]
}

// all returns how many of a worker's devices were busy, oldest first.
func (u uses) all(w *wire.Report_Worker) (busy []float64) {
	for d := range w.Devices {
		one := u.of(w.Process.GetNumber(), d)
		for i := range one {
			if i == len(busy) {
				busy = append(busy, 0)
			}
			busy[i] += one[i]
		}
	}
	return busy
}
