package controller

import (
	"slices"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// A client that waits for devices asks again about once a second until it gets them. That is no error, and it is logged
// once for each wait.
const (
	sameWait  = 30e9 // ns; a client that asks again within this time still waits: clients ask about once a second
	remembers = 256  // clients; where more wait, one that asks again may be logged again
)

// waiting is a client that was refused for lack of devices.
type waiting struct {
	who   string
	asked int64 // State.now of the last time
}

// turnAway logs that a process is refused.
func (st *State) turnAway(h *wire.Hello, peer string, err error) {
	who := describe(h.Name, peer)
	if h.Role != wire.Role_ROLE_CLIENT || status.CodeOf(err) != status.ResourceExhausted {
		st.warn(about{kind: wire.EventRefused}, "refused "+who, err)
		return
	}
	waits := st.stopsWaiting(who)
	st.waiting = append(st.waiting, waiting{who, st.now})
	if len(st.waiting) > remembers {
		st.waiting = slices.Delete(st.waiting, 0, 1)
	}
	switch {
	case waits:
	case len(st.sessions) >= st.limits.Sessions:
		st.warn(about{kind: wire.EventRefused}, "refused "+who, err)
	default:
		st.note(about{kind: wire.EventRefused}, "refused "+who+", which may wait and ask again", err)
	}
}

// stopsWaiting forgets that a client waits, and reports whether it did.
func (st *State) stopsWaiting(who string) bool {
	i := slices.IndexFunc(st.waiting, func(w waiting) bool { return w.who == who })
	if i < 0 {
		return false
	}
	asked := st.waiting[i].asked
	st.waiting = slices.Delete(st.waiting, i, i+1)
	return st.now-asked < sameWait
}

func describe(name, peer string) string {
	if name == "" {
		return peer
	}
	return name
}

func (st *State) refuse(number uint64, err error) {
	st.out = append(st.out, Action{Kind: Refuse, To: []uint64{number}, Err: err})
}
