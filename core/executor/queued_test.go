package executor

// Queued counts the gangs that wait now and those that ever had to.
func (i *Island) Queued() (now, ever int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, e := range i.gangs {
		if !e.started && e.failed == nil {
			now++
		}
	}
	return now, i.queued
}
