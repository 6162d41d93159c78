package cluster

/*
#include "cluster.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/status"
)

// keepsMoments is how many moments are kept for those that ask later: many losses of large clusters, and some hundred
// KiB at most.
const keepsMoments = 1024

// Numbered is a moment with its place among all of this process: 1, 2, 3 …
type Numbered struct {
	Number uint64 `json:"number"`
	client.Moment
}

// moments are the events of this process's sessions.
var moments happenings

// happenings keeps the newest moments. Its methods may be called from any goroutine.
type happenings struct {
	mu      sync.Mutex // guards the rest
	last    uint64
	kept    []Numbered
	changed chan struct{} // closed with the next moment; nil if it is not awaited
}

// happened handles a moment. Programs look for what they have lost before the script is told.
func happened(m client.Moment) {
	if m.Kind == client.MomentLost || m.Kind == client.MomentRebound {
		C.pr_lose()
	}
	moments.add(m)
}

// add keeps a moment, and tells the user.
func (h *happenings) add(m client.Moment) {
	h.mu.Lock()
	h.last++
	if len(h.kept) == keepsMoments {
		h.kept = slices.Delete(h.kept, 0, keepsMoments/2)
	}
	h.kept = append(h.kept, Numbered{h.last, m})
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
	h.mu.Unlock()
	if line := momentLine(m); line != "" {
		heldLines.add(line)
	}
}

// away says that there is no connection to the controller, behind what this is the reason of, and why; "" if there is
// one.
func (h *happenings) away() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range slices.Backward(h.kept) {
		switch m.Kind {
		case client.MomentDisconnected:
			return ", since there is no connection to the controller: " + m.Reason
		case client.MomentResumed, client.MomentRestarted, client.MomentEnded:
			return ""
		}
	}
	return ""
}

// after returns the moments behind a number that are kept. If there are none, it waits for one until the timeout.
func (h *happenings) after(number uint64, timeout time.Duration) (list []Numbered, last uint64) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for over := false; ; {
		h.mu.Lock()
		list, last = nil, h.last
		for _, m := range h.kept {
			if m.Number > number {
				list = append(list, m)
			}
		}
		if h.changed == nil {
			h.changed = make(chan struct{})
		}
		changed := h.changed
		h.mu.Unlock()
		if len(list) > 0 || over {
			return list, last
		}
		select {
		case <-changed:
		case <-timer.C:
			over = true
		}
	}
}

// Moments returns what has happened to the sessions of this process after the moment of a number, and the number of the
// last one. It waits up to the timeout for one.
func Moments(number uint64, timeout time.Duration) (list []Numbered, last uint64) {
	return moments.after(number, timeout)
}

// momentLine is what users are told; "" for a kind that this does not know, and for an end that they asked for.
func momentLine(m client.Moment) string {
	devices := status.Count(len(m.Devices), "device")
	switch m.Kind {
	case client.MomentLost:
		return fmt.Sprintf("worker %s is lost, and what was on its %s; another worker may take its place", m.Worker, devices)
	case client.MomentCame:
		return fmt.Sprintf("worker %s comes for %s", m.Worker, devices)
	case client.MomentRebound:
		return fmt.Sprintf("%s can be used again, on worker %s", devices, m.Worker)
	case client.MomentDisconnected:
		return fmt.Sprintf("there is no connection to the controller; calls wait for it, for %v at most", m.Lease)
	case client.MomentResumed:
		return "there is a connection to the controller again, and nothing was lost"
	case client.MomentRestarted:
		return "the controller was started again, and has the session as it was"
	case client.MomentEnded:
		if m.Reason == "" {
			return ""
		}
		return "the session is lost: " + m.Reason
	}
	return ""
}
