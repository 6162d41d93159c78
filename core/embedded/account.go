package embedded

import (
	"sync"

	"github.com/openpathways/pathways/core/ledger"
)

// account is the ledger of a process with devices of its own, with a lock: threads of the client make and free objects
// at the same time. Every method may be called from any goroutine, and blocks for the lock alone. The methods that have
// no comment are the ledger's.
//
// Without a limit there is nothing to decide, so nothing is counted: the ID of every object is 0.
type account struct {
	counts bool
	mu     sync.Mutex
	ledger *ledger.Ledger
}

// newAccount returns an empty account in which each of the devices has this limit, in bytes; 0 is none.
//
// Errors: INVALID_ARGUMENT for a negative limit.
func newAccount(devices int, limit int64) (*account, error) {
	a := &account{counts: limit > 0, ledger: ledger.New()}
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
}

func (a *account) Place(o ledger.Owner, devices []int) (ledger.Placement, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Place(o, devices)
}

func (a *account) Create(o ledger.Owner, specs []ledger.Spec, ids []ledger.ID) error {
	if !a.counts {
		clear(ids)
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Create(o, specs, ids)
}

func (a *account) Free(id ledger.ID) {
	if id == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ledger.Free(id)
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
