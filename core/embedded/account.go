package embedded

import (
	"errors"
	"sync"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/status"
)

// account is the ledger of a process with devices of its own, with a lock: threads of the client make and free objects
// at the same time. Every method may be called from any goroutine, and blocks for the lock alone. The methods that have
// no comment are the ledger's.
//
// Without a limit there is nothing to decide, so nothing is counted: the ID of every object is 0.
type account struct {
	limit int64 // of each device
	mu    sync.Mutex
	// Guarded by mu.
	ledger *ledger.Ledger
	temps  map[ledger.ID]temp // computations under way, by a number that is no object's
	last   uint64             // such number
}

// temp is what a computation takes until it has ended.
type temp struct {
	place ledger.Placement
	bytes int64
}

// ofTemp marks the number of a computation: no object's ID has this bit.
const ofTemp = 1 << 63

// fullError is the error of what does not fit now.
type fullError struct{ error }

func (e *fullError) Unwrap() error { return e.error }

// CanWait reports whether an error says that there is no room now for something that would fit if it were alone.
func CanWait(err error) bool {
	var full *fullError
	return errors.As(err, &full)
}

// newAccount returns an empty account in which each of the devices has this limit, in bytes; 0 is none.
//
// Errors: INVALID_ARGUMENT for a negative limit.
func newAccount(devices int, limit int64) (*account, error) {
	a := &account{limit: limit, ledger: ledger.New(), temps: map[ledger.ID]temp{}}
	for d := range devices {
		if err := a.ledger.SetLimit(d, limit); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *account) AddOwner(o ledger.Owner, name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.AddOwner(o, name)
}

func (a *account) DropOwner(o ledger.Owner) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ledger.DropOwner(o)
	clear(a.temps) // an account has one owner
}

func (a *account) Place(o ledger.Owner, devices []int) (ledger.Placement, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Place(o, devices)
}

// Admit is the ledger's Admit. It returns a number that Free ends the computation by, or 0 if that takes no memory.
func (a *account) Admit(o ledger.Owner, r ledger.Request, ids []ledger.ID) (computation uint64, err error) {
	if a.limit <= 0 {
		clear(ids)
		return 0, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.ledger.Admit(o, r, ids); err != nil {
		alone := r.Temp
		for i := range r.Specs {
			alone += r.Specs[i].ShardBytes
		}
		if status.CodeOf(err) == status.ResourceExhausted && alone <= a.limit {
			err = &fullError{err}
		}
		return 0, err
	}
	if r.Temp <= 0 {
		return 0, nil
	}
	a.last++
	a.temps[ofTemp|a.last] = temp{r.Placement, r.Temp}
	return ofTemp | a.last, nil
}

// Free drops an object, or ends a computation.
func (a *account) Free(id ledger.ID) {
	if id == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if id&ofTemp == 0 {
		a.ledger.Free(id)
	} else if t, found := a.temps[id]; found {
		delete(a.temps, id)
		a.ledger.End(t.place, t.bytes)
	}
}

func (a *account) Device(device int) ledger.Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Device(device)
}

func (a *account) Len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Len()
}
