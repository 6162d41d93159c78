package worker

import (
	"time"

	"github.com/openpathways/pathways/core/wire"
)

// This file tells the controller, with heartbeats, which connections to other processes are broken, or were.

// Processes that cannot be reached are told once they have been so for apartAfter: a
// broken connection is mostly made again at once. No more are told than maxApart.
const (
	apartAfter = time.Second
	maxApart   = 64
)

// apart lists processes that the exchange cannot reach, and counts the others.
func (w *Worker) apart() (apart []*wire.Apart, more uint32) {
	if w.config.Apart == nil {
		return nil, 0
	}
	all := w.config.Apart()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range all {
		switch since := time.Since(a.Since); {
		case since < apartAfter:
		case len(apart) == maxApart:
			more++
		default:
			apart = append(apart, &wire.Apart{Process: a.Peer, Name: w.names[a.Peer], SinceMs: since.Milliseconds(),
				Why: a.Why.Error()})
		}
	}
	return apart, more
}

// links lists the links to other processes that have lost their connection, and counts those beyond the limit.
func (w *Worker) links() (told []*wire.PeerLink, more uint32) {
	if w.config.Breaks == nil {
		return nil, 0
	}
	all := w.config.Breaks()
	if len(all) > maxApart {
		all, more = all[:maxApart], uint32(len(all)-maxApart)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range all {
		l := &wire.PeerLink{Process: b.Peer, Name: w.names[b.Peer], Cuts: b.Count, Why: b.Why.Error(),
			LastMs: time.Since(b.Last).Milliseconds(), BackMs: b.Lasted.Milliseconds()}
		if b.Lasted == 0 {
			l.CutMs = max(l.LastMs, 1)
		}
		told = append(told, l)
	}
	return told, more
}
