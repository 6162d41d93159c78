package embedded

import (
	"errors"
	"slices"
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
	codeOn []int64            // bytes of programs' code, by device
}

// temp is the memory that a computation takes until it has ended.
type temp struct {
	place ledger.Placement
	bytes int64
	code  *code
}

// code is the memory that a program itself takes: on each device from the admission of its first run there until the
// program is forgotten and no run of it is under way, as on clusters. The account's mu guards what changes.
type code struct {
	bytes     int64 // on each device
	label     string
	on        []resident
	runs      int
	forgotten bool
}

// resident is code on the devices of one placement.
type resident struct {
	place   ledger.Placement
	devices []int
	charge  ledger.ID
}

// isOn reports whether the code is on the devices of a placement.
func (c *code) isOn(p ledger.Placement) bool {
	return slices.ContainsFunc(c.on, func(r resident) bool { return r.place == p })
}

// ofTemp marks the number of a computation: no object's ID has this bit.
const ofTemp = 1 << 63

// fullError is the error of a request that does not fit now.
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
	a := &account{limit: limit, ledger: ledger.New(), temps: map[ledger.ID]temp{}, codeOn: make([]int64, devices)}
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
	clear(a.codeOn)
}

func (a *account) Place(o ledger.Owner, devices []int) (ledger.Placement, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Place(o, devices)
}

// Admit is the ledger's Admit, for a computation of a program whose code is c, on these devices; c is nil of an array
// that no program makes. It returns a number that Free ends the computation by, or 0 if there is nothing to end.
func (a *account) Admit(o ledger.Owner, r ledger.Request, c *code, devices []int, ids []ledger.ID) (computation uint64,
	err error) {
	if a.limit <= 0 {
		clear(ids)
		return 0, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	alone := r.Temp
	for i := range r.Specs {
		alone += r.Specs[i].ShardBytes
	}
	hasCode := c != nil && c.bytes > 0
	made, first := ids, hasCode && !c.isOn(r.Placement)
	if hasCode {
		alone += c.bytes
	}
	if first {
		r.Specs = append(r.Specs[:len(r.Specs):len(r.Specs)], ledger.Spec{ShardBytes: c.bytes, Placement: r.Placement,
			Label: c.label})
		made = make([]ledger.ID, len(r.Specs))
	}
	if err := a.ledger.Admit(o, r, made); err != nil {
		if status.CodeOf(err) == status.ResourceExhausted && alone <= a.limit {
			err = &fullError{err}
		}
		return 0, err
	}
	if first {
		copy(ids, made)
		c.on = append(c.on, resident{r.Placement, devices, made[len(ids)]})
		a.countCode(devices, c.bytes)
	}
	if !hasCode && r.Temp <= 0 {
		return 0, nil
	}
	a.last++
	t := temp{place: r.Placement, bytes: r.Temp}
	if hasCode {
		t.code = c
		c.runs++
	}
	a.temps[ofTemp|a.last] = t
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
		if t.code != nil {
			t.code.runs--
			a.unload(t.code)
		}
	}
}

// Forget records that a program has gone. Its code goes when the runs of it have ended that are under way.
func (a *account) Forget(c *code) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.forgotten = true
	a.unload(c)
}

// unload takes code out of the ledger that nothing uses any more. mu is held.
func (a *account) unload(c *code) {
	if c.runs > 0 || !c.forgotten {
		return
	}
	for _, r := range c.on {
		a.ledger.Free(r.charge)
		a.countCode(r.devices, -c.bytes)
	}
	c.on = nil
}

// countCode adds bytes to the code on devices. mu is held.
func (a *account) countCode(devices []int, bytes int64) {
	for _, d := range devices {
		a.codeOn[d] += bytes
	}
}

// Code returns the bytes of programs' code on a device.
func (a *account) Code(device int) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.codeOn[device]
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
