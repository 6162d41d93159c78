package worker

import (
	"time"

	"github.com/openpathways/pathways/core/status"
)

// giveUp looks after a run that has failed, on a driver that cannot end what it has launched. If it is done with its
// part, nothing more happens. If it is not, and only runs that have failed can be in its way, at two looks one after
// the other, it waits for members that will not come.
func (g *gang) giveUp(why error, before bool) {
	w := g.w
	time.AfterFunc(w.config.StuckAfter/2, func() {
		w.mu.Lock()
		there, free := w.gangs[g.ID] == g, true
		for id, o := range w.gangs {
			if id < g.ID && o.failure() == nil {
				free = false // it may only take its time
			}
		}
		w.mu.Unlock()
		switch {
		case !there || w.ctx.Err() != nil:
		case free && before:
			w.config.Stuck(status.Wrap(why,
				"operation %d has failed, and does not end on worker %s, whose devices wait for others", g.ID, w.config.Name))
		default:
			g.giveUp(why, free)
		}
	})
}
